"""mqadmin's commands for the configuration of consumer groups. Source: tools/command/consumer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from gantrymq.cli.admin.command import Broker, Cluster, Group, command
from gantrymq.cli.admin.confirmation import Confirmation
from gantrymq.cli.admin.output import Output, Table, settings
from gantrymq.cli.admin.values import TrueFalse, one_target, parse_attributes, read_json
from gantrymq.cli.lazy import new_app
from gantrymq.client.admin.client import AdminClient
from gantrymq.errors import BodyError
from gantrymq.protocol.bodies.subscription_group import GroupRetryPolicy, SubscriptionGroupConfig
from gantrymq.protocol.fastjson import decode_json

app = new_app()

_TRUE, _FALSE = TrueFalse.TRUE, TrueFalse.FALSE


@command(app, "updateSubGroup")
async def update_sub_group(
    admin: AdminClient,
    group: Group,
    cluster: Cluster = None,
    broker: Broker = None,
    consume_enable: Annotated[TrueFalse, typer.Option("-s", "--consumeEnable", help="May consume.")] = _TRUE,
    from_min: Annotated[TrueFalse, typer.Option("-m", "--consumeFromMinEnable", help="From the start.")] = _FALSE,
    broadcast: Annotated[TrueFalse, typer.Option("-d", "--consumeBroadcastEnable", help="May broadcast.")] = _FALSE,
    orderly: Annotated[TrueFalse, typer.Option("-o", "--consumeMessageOrderly", help="Retries in order.")] = _FALSE,
    retry_queue_nums: Annotated[int, typer.Option("-q", "--retryQueueNums", min=0, help="Retry queues.")] = 1,
    retry_max_times: Annotated[int, typer.Option("-r", "--retryMaxTimes", help="Retries, then dead letters.")] = 16,
    retry_policy: Annotated[str | None, typer.Option("-p", "--groupRetryPolicy", help="JSON.")] = None,
    broker_id: Annotated[int, typer.Option("-i", "--brokerId", help="Read from this replica.")] = 0,
    slow_broker_id: Annotated[
        int, typer.Option("-w", "--whichBrokerWhenConsumeSlowly", help="The replica for slow readers.")
    ] = 1,
    notify: Annotated[
        TrueFalse, typer.Option("-a", "--notifyConsumerIdsChanged", help="Notify members of membership changes.")
    ] = _TRUE,
    attributes: Annotated[str, typer.Option("--attributes", help="+name=value,-name")] = "",
) -> Output:
    """Update or create subscription group."""
    one_target(cluster, broker)
    config = SubscriptionGroupConfig(
        group,
        consume_enable=bool(consume_enable),
        consume_from_min_enable=bool(from_min),
        consume_broadcast_enable=bool(broadcast),
        consume_message_orderly=bool(orderly),
        retry_queue_nums=retry_queue_nums,
        retry_max_times=retry_max_times,
        group_retry_policy=_policy(retry_policy) if retry_policy else GroupRetryPolicy(),
        broker_id=broker_id,
        which_broker_when_consume_slowly=slow_broker_id,
        notify_consumer_ids_changed_enable=bool(notify),
        attributes=parse_attributes(attributes),
    )
    addresses = await admin.create_group(config, cluster=cluster, broker=broker)
    return Output(
        {"subscriptionGroupConfig": config, "brokers": addresses},
        [f"create subscription group to {address} success." for address in addresses],
    )


@command(app, "updateSubGroupList")
async def update_sub_group_list(
    admin: AdminClient,
    file: Annotated[Path, typer.Option("-f", "--filename", help="A JSON list of SubscriptionGroupConfig objects.")],
    cluster: Cluster = None,
    broker: Broker = None,
) -> Output:
    """Update or create subscription groups in batch."""
    one_target(cluster, broker)
    configs = read_json(file, list[SubscriptionGroupConfig])
    addresses = await admin.create_groups(configs, cluster=cluster, broker=broker)
    groups = [config.group_name for config in configs]
    return Output(
        {"groups": groups, "brokers": addresses},
        [f"create {len(groups)} subscription groups to {address} success." for address in addresses],
    )


@command(app, "deleteSubGroup")
async def delete_sub_group(
    admin: AdminClient,
    group: Group,
    confirmation: Confirmation,
    cluster: Cluster = None,
    broker: Broker = None,
    remove_offset: Annotated[TrueFalse, typer.Option("-r", "--removeOffset", help="Its offsets, too.")] = _FALSE,
) -> Output:
    """Delete subscription group from broker."""
    one_target(cluster, broker)
    action = f"delete consumer group {group!r}" + (" and its offsets" if remove_offset else "")
    if cluster is not None:
        action += ", its retry topic and its dead-letter queue"
    if plan := await confirmation.check(action, [broker] if broker else await admin.masters_of(cluster or "")):
        return plan
    addresses = await admin.delete_group(group, cluster=cluster, broker=broker, remove_offsets=bool(remove_offset))
    return Output(
        {"group": group, "brokers": addresses},
        [f"delete subscription group [{group}] from broker [{address}] success." for address in addresses],
    )


@command(app, "setConsumeMode")
async def set_consume_mode(
    admin: AdminClient,
    topic: Annotated[str, typer.Option("-t", "--topicName", help="Topic.")],
    group: Group,
    mode: Annotated[str, typer.Option("-m", "--mode", help="PULL or POP.")],
    cluster: Cluster = None,
    broker: Broker = None,
    pop_share_queue_num: Annotated[
        int, typer.Option("-q", "--popShareQueueNum", min=0, help="How many queues consumers share in POP.")
    ] = 0,
) -> Output:
    """Set consume message mode: pull, pop."""
    one_target(cluster, broker)
    if mode not in ("PULL", "POP"):
        raise typer.BadParameter("PULL or POP", param_hint="'-m' / '--mode'")
    addresses = await admin.set_consume_mode(group, topic, mode, pop_share_queue_num, cluster=cluster, broker=broker)
    return Output(
        {
            "topic": topic,
            "group": group,
            "mode": mode,
            "popShareQueueNum": pop_share_queue_num,
            "brokers": addresses,
        },
        [f"set consume mode to {address} success." for address in addresses],
    )


@command(app, "getConsumerConfig")
async def get_consumer_config(admin: AdminClient, group: Group) -> Output:
    """Get consumer config by subscription group name."""
    document: list[Any] = []
    parts: list[str | Table] = []
    for name in sorted((await admin.cluster_info()).cluster_addr_table):
        for broker in await admin.brokers_of(name):
            config = await admin.group_config(await admin.broker_address(broker.broker_name), group)
            if config is not None:
                document.append({"clusterName": name, "brokerName": broker.broker_name, "config": config})
                values = {key: str(value) for key, value in msgspec.to_builtins(config).items()}
                parts += [f"{name}: {broker.broker_name}", settings(values)]
    return Output(document, parts or [f"no broker has group {group}"])


def _policy(text: str) -> GroupRetryPolicy:
    try:
        return decode_json(text.encode(), GroupRetryPolicy)
    except BodyError as e:
        raise typer.BadParameter(str(e), param_hint="'-p' / '--groupRetryPolicy'") from e
