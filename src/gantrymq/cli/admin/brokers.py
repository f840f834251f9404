"""mqadmin's commands for clusters and brokers. Source: tools/command/cluster, broker, queue, producer."""

from __future__ import annotations

import difflib
import re
import time
from contextlib import suppress
from typing import Annotated, Any

import typer

from gantrymq.cli.admin.command import Broker, Cluster, Topic, command
from gantrymq.cli.admin.confirmation import Confirmation
from gantrymq.cli.admin.output import Output, human_time, listing, settings, table, warn
from gantrymq.cli.admin.values import TrueFalse, one_target
from gantrymq.cli.lazy import new_app
from gantrymq.client.admin.client import AdminClient
from gantrymq.errors import BrokerError, GantryError

app = new_app()

Interval = Annotated[
    int, typer.Option("-i", "--interval", min=0, help="Repeat at this interval, in seconds, until Ctrl-C.")
]


@command(app, "clusterList")
async def cluster_list(
    admin: AdminClient,
    more_stats: Annotated[bool, typer.Option("-m", "--moreStats", help="Totals of yesterday and today.")] = False,
    interval: Interval = 0,
    cluster: Annotated[str | None, typer.Option("-c", "--clusterName", help="Only this cluster.")] = None,
) -> Output:
    """List cluster infos."""
    info = await admin.cluster_info()
    names = [cluster] if cluster else sorted(info.cluster_addr_table)
    rows = [
        {"clusterName": name, "brokerName": broker.broker_name, "brokerId": number, "brokerAddr": address}
        | await _figures(admin, address)
        for name in names
        for broker in await admin.brokers_of(name)
        for number, address in sorted(broker.broker_addrs.items())
    ]
    columns: dict[str, Any] = {"clusterName": "Cluster Name", "brokerName": "Broker Name"}
    if more_stats:
        columns |= {
            "inTotalYesterday": "In Yesterday",
            "outTotalYesterday": "Out Yesterday",
            "inTotalToday": "In Today",
            "outTotalToday": "Out Today",
        }
    else:
        columns |= {
            "brokerId": "BID",
            "brokerAddr": "Addr",
            "version": "Version",
            "inTps": "In TPS",
            "outTps": "Out TPS",
            "hours": "Hours",
            "diskRatio": ("Space", lambda ratio: f"{ratio:.4f}"),
            "active": "Activated",
        }
    return listing(rows, columns)


@command(app, "brokerStatus")
async def broker_status(admin: AdminClient, cluster: Cluster = None, broker: Broker = None) -> Output:
    """Fetch broker runtime status data."""
    one_target(cluster, broker)
    addresses = [broker] if broker else await _all_addresses(admin, cluster or "")
    infos = {address: await admin.runtime_info(address) for address in addresses}
    parts = [part for address, info in infos.items() for part in (f"Broker {address}", settings(info))]
    return Output(infos, parts)


@command(app, "getBrokerConfig")
async def get_broker_config(admin: AdminClient, cluster: Cluster = None, broker: Broker = None) -> Output:
    """Get broker config by cluster or special broker."""
    one_target(cluster, broker)
    addresses = [broker] if broker else await _all_addresses(admin, cluster or "")
    configs = {address: await admin.broker_config(address) for address in addresses}
    parts = [part for address, config in configs.items() for part in (f"Broker {address}", settings(config))]
    return Output(configs, parts)


@command(app, "updateBrokerConfig")
async def update_broker_config(
    admin: AdminClient,
    key: Annotated[str, typer.Option("-k", "--key", help="Key.")],
    value: Annotated[str, typer.Option("-v", "--value", help="Value.")],
    cluster: Cluster = None,
    broker: Broker = None,
    slaves_too: Annotated[
        TrueFalse, typer.Option("-a", "--updateAllBroker", help="With -c: the slaves, too.")
    ] = TrueFalse.FALSE,
) -> Output:
    """Update broker's config."""
    one_target(cluster, broker)
    if broker:
        addresses = [broker]
    else:
        addresses = await (_all_addresses(admin, cluster or "") if slaves_too else admin.masters_of(cluster or ""))
    known = await _config_of(admin, addresses)
    await admin.update_broker_config(addresses, {key: value})
    for address, config in (await _config_of(admin, addresses)).items():
        if key not in known.get(address, config):
            near = difflib.get_close_matches(key, known[address], n=1)
            meant = f"; is {near[0]} meant?" if near else ""
            warn(f"{address} has taken {key}, as Java's does, but has no such key and makes nothing of it{meant}")
        elif not _is_same(config.get(key, ""), value):
            warn(f"{address} has {key}={config.get(key, '')} now, not {value}")
    return Output(
        {"brokers": addresses, "key": key, "value": value},
        [f"update broker config success, {address}" for address in addresses],
    )


Container = Annotated[
    str, typer.Option("-c", "--brokerContainerAddr", help="The broker container of Apache RocketMQ, HOST:PORT.")
]


@command(app, "addBroker")
async def add_broker(
    admin: AdminClient,
    container: Container,
    path: Annotated[str, typer.Option("-b", "--brokerConfigPath", help="A file on the container's host.")],
) -> Output:
    """Add a broker to specified container."""
    await admin.add_broker_to_container(container, path)
    return Output({"container": container, "configPath": path}, [f"add broker to {container} success"])


@command(app, "removeBroker")
async def remove_broker(
    admin: AdminClient,
    container: Container,
    identity: Annotated[str, typer.Option("-b", "--brokerIdentity", help="CLUSTER:NAME:ID of the broker.")],
    confirmation: Confirmation,
) -> Output:
    """Remove a broker from specified container."""
    match = re.fullmatch(r"([^:]+):([^:]+):(\d{1,18})", identity.strip())
    if match is None:
        raise typer.BadParameter(f"{identity!r}: must be CLUSTER:NAME:ID", param_hint="'--brokerIdentity'")
    if plan := await confirmation.check(f"stop the broker {identity}", [container]):
        return plan
    await admin.remove_broker_from_container(container, match[1], match[2], int(match[3]))
    return Output({"container": container, "broker": identity}, [f"remove broker from {container} success"])


@command(app, "cleanExpiredCQ")
async def clean_expired_cq(
    admin: AdminClient,
    confirmation: Confirmation,
    broker: Broker = None,
    cluster: Annotated[str | None, typer.Option("-c", "--cluster", help="This cluster; without any, all.")] = None,
) -> Output:
    """Clean expired ConsumeQueue on broker."""
    addresses = await _cleaned(admin, broker, cluster)
    if plan := await confirmation.check("delete expired files of consume queues", addresses):
        return plan
    await admin.clean_expired_consume_queues(addresses)
    return Output({"brokers": addresses}, [f"success on {', '.join(addresses)}"])


@command(app, "deleteExpiredCommitLog")
async def delete_expired_commit_log(
    admin: AdminClient,
    confirmation: Confirmation,
    broker: Broker = None,
    cluster: Annotated[str | None, typer.Option("-c", "--cluster", help="This cluster; without any, all.")] = None,
) -> Output:
    """Delete expired CommitLog files."""
    addresses = await _cleaned(admin, broker, cluster)
    if plan := await confirmation.check("delete expired files of the commit log", addresses):
        return plan
    await admin.delete_expired_commit_log(addresses)
    return Output({"brokers": addresses}, [f"success on {', '.join(addresses)}"])


@command(app, "cleanUnusedTopic")
async def clean_unused_topic(
    admin: AdminClient,
    confirmation: Confirmation,
    broker: Broker = None,
    cluster: Annotated[str | None, typer.Option("-c", "--cluster", help="This cluster; without any, all.")] = None,
) -> Output:
    """Clean unused topic on broker."""
    addresses = await _cleaned(admin, broker, cluster)
    if plan := await confirmation.check("delete the queues of topics that do not exist", addresses):
        return plan
    await admin.clean_unused_topics(addresses)
    return Output({"brokers": addresses}, [f"success on {', '.join(addresses)}"])


@command(app, "brokerConsumeStats")
async def broker_consume_stats(
    admin: AdminClient,
    broker: Annotated[str, typer.Option("-b", "--brokerAddr", help="HOST:PORT.")],
    timeout_ms: Annotated[int, typer.Option("-t", "--timeoutMillis", min=1, help="Milliseconds.")] = 50_000,
    level: Annotated[int, typer.Option("-l", "--level", help="Only queues with at least this lag.")] = 0,
    order: Annotated[TrueFalse, typer.Option("-o", "--order", help="Only ordered topics.")] = TrueFalse.FALSE,
) -> Output:
    """Fetch broker consume stats data."""
    stats = await admin.broker_consume_stats(broker, is_order=bool(order), timeout=timeout_ms / 1000)
    rows = [
        {
            "topic": queue.topic,
            "group": group,
            "brokerName": queue.broker_name,
            "queueId": queue.queue_id,
            "brokerOffset": progress.broker_offset,
            "consumerOffset": progress.consumer_offset,
            "diff": progress.lag,
            "lastTimestamp": progress.last_timestamp,
        }
        for group, of_topics in sorted(stats.by_group.items())
        for one in of_topics
        for queue, progress in sorted(one.offset_table.items())
        if progress.lag >= level
    ]
    total = sum(one.total_diff for of_topics in stats.by_group.values() for one in of_topics)
    shown = table(
        rows,
        {
            "topic": "Topic",
            "group": "Group",
            "brokerName": "Broker Name",
            "queueId": "QID",
            "brokerOffset": "Broker Offset",
            "consumerOffset": "Consumer Offset",
            "diff": "Diff",
            "lastTimestamp": ("Last Time", human_time),
        },
    )
    return Output({"queues": rows, "totalDiff": total}, [shown, f"Diff Total: {total}"])


@command(app, "producer")
async def producer(
    admin: AdminClient, broker: Annotated[str, typer.Option("-b", "--broker", help="HOST:PORT.")]
) -> Output:
    """Query producer's instances, connection, status, etc."""
    rows = [
        {
            "group": group,
            "clientId": one.client_id,
            "remoteIP": one.remote_ip,
            "language": one.language,
            "version": one.version,
            "lastUpdateTimestamp": one.last_update_timestamp,
        }
        for group, producers in sorted((await admin.producers(broker)).items())
        for one in producers
    ]
    return listing(
        rows,
        {
            "group": "Group",
            "clientId": "Client Id",
            "remoteIP": "Client Addr",
            "language": "Language",
            "lastUpdateTimestamp": ("Last Heartbeat", human_time),
        },
    )


@command(app, "queryCq")
async def query_cq(
    admin: AdminClient,
    topic: Topic,
    queue_id: Annotated[int, typer.Option("-q", "--queue", min=0, help="Queue id.")],
    index: Annotated[int, typer.Option("-i", "--index", min=0, help="The first queue offset.")],
    count: Annotated[int, typer.Option("-c", "--count", min=1, help="How many.")] = 10,
    broker: Annotated[str | None, typer.Option("-b", "--broker", help="HOST:PORT; else the topic's first.")] = None,
    group: Annotated[str | None, typer.Option("-g", "--consumer", help="Whether this group's filter takes them.")] = (
        None
    ),
) -> Output:
    """Query the index of a queue."""
    address = broker or (await admin.broker_address((await admin.topic_route(topic)).broker_datas[0].broker_name))
    found = await admin.consume_queue(address, topic, queue_id, index, count, group)
    rows = [
        {
            "queueOffset": offset,
            "physicOffset": unit.physic_offset,
            "physicSize": unit.physic_size,
            "tagsCode": unit.tags_code,
            "eval": unit.eval,
            "msg": unit.msg,
        }
        for offset, unit in enumerate(found.queue_data or [], index)
    ]
    shown = table(
        rows,
        {"queueOffset": "Offset", "physicOffset": "CommitLog Offset", "physicSize": "Size", "tagsCode": "Tags Code"},
    )
    span = {"maxQueueIndex": found.max_queue_index, "minQueueIndex": found.min_queue_index}
    return Output(span | {"queueData": rows}, [f"max: {found.max_queue_index}, min: {found.min_queue_index}", shown])


async def _config_of(admin: AdminClient, addresses: list[str]) -> dict[str, dict[str, str]]:
    """Returns {broker: its configuration}, without brokers that refuse the request because of a missing permission."""
    configs = {}
    for address in addresses:
        with suppress(BrokerError):
            configs[address] = await admin.broker_config(address)
    return configs


def _is_same(text: str, other: str) -> bool:
    try:
        return float(text) == float(other)
    except ValueError:
        return text.strip().lower() == other.strip().lower()


async def _all_addresses(admin: AdminClient, cluster: str) -> list[str]:
    """Returns the addresses of all masters and slaves of a cluster."""
    return [address for broker in await admin.brokers_of(cluster) for _, address in sorted(broker.broker_addrs.items())]


async def _cleaned(admin: AdminClient, broker: str | None, cluster: str | None) -> list[str]:
    if broker:
        return [broker]
    clusters = [cluster] if cluster else sorted((await admin.cluster_info()).cluster_addr_table)
    return [address for name in clusters for address in await admin.masters_of(name)]


async def _figures(admin: AdminClient, address: str) -> dict[str, Any]:
    """Returns the figures of a broker for clusterList, all zero if the broker doesn't respond."""
    try:
        info = await admin.runtime_info(address)
    except GantryError:
        info = {}
    earliest_ms = number_of(info, "earliestMessageTimeStamp")
    put = [number_of(info, f"msgPutTotal{when}") for when in ("YesterdayMorning", "TodayMorning", "TodayNow")]
    got = [number_of(info, f"msgGetTotal{when}") for when in ("YesterdayMorning", "TodayMorning", "TodayNow")]
    return {
        "version": info.get("brokerVersionDesc", ""),
        "inTps": first_rate(info.get("putTps")),
        "outTps": first_rate(info.get("getTransferredTps")),
        "hours": (time.time() - earliest_ms / 1000) / 3600 if earliest_ms > 0 else 0.0,
        "diskRatio": float(info.get("commitLogDiskRatio") or 0),
        "active": info.get("brokerActive") == "true",
        "inTotalYesterday": int(put[1] - put[0]),
        "outTotalYesterday": int(got[1] - got[0]),
        "inTotalToday": int(put[2] - put[1]),
        "outTotalToday": int(got[2] - got[1]),
    }


def number_of(info: dict[str, str], key: str) -> float:
    return float(info.get(key) or 0)


def first_rate(text: str | None) -> float:
    """Returns the first of the averages over 10, 60 and 600 s."""
    return float((text or "0").split()[0])
