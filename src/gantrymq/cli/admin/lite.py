"""mqadmin's commands for lite topics. Source: tools/command/lite/*."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from gantrymq.cli.admin.command import Broker, Cluster, command
from gantrymq.cli.admin.output import Output, Table, human_time, listing, table
from gantrymq.cli.admin.values import one_target
from gantrymq.cli.lazy import new_app
from gantrymq.client.admin.client import AdminClient
from gantrymq.protocol.bodies.lite import LiteLagInfo
from gantrymq.system.clock import now_ms

app = new_app()

ParentTopic = Annotated[str, typer.Option("-p", "--parentTopic", help="Parent topic.")]
ConsumerGroup = Annotated[str, typer.Option("-g", "--group", help="Consumer group.")]


def _time(timestamp_ms: int) -> str:
    return human_time(timestamp_ms) or "-"


async def _brokers(admin: AdminClient, topic: str) -> list[tuple[str, str]]:
    """Returns name and address of each broker of the topic, of a slave if there is no master."""
    route = await admin.topic_route(topic)
    return sorted((each.broker_name, each.broker_addrs[min(each.broker_addrs)]) for each in route.broker_datas)


@command(app, "getBrokerLiteInfo")
async def get_broker_lite_info(
    admin: AdminClient,
    broker: Broker = None,
    cluster: Cluster = None,
    show_detail: Annotated[bool, typer.Option("-d", "--showDetail", help="With topics and groups.")] = False,
) -> Output:
    """Get broker lite info."""
    one_target(cluster, broker)
    addresses = [broker] if broker else await admin.masters_of(cluster or "")
    rows = [
        {"brokerAddr": address} | msgspec.to_builtins(await admin.broker_lite_info(address)) for address in addresses
    ]
    columns = {
        "brokerAddr": "Broker",
        "storeType": "Store Type",
        "maxLmqNum": "Max LMQ",
        "currentLmqNum": "Current LMQ",
        "liteSubscriptionCount": "Subscriptions",
        "orderInfoCount": "Order Infos",
        "offsetTableSize": "Offsets",
        "eventMapSize": "Events",
    }
    lines = []
    if show_detail:
        for row in rows:
            lines += [f"{row['brokerAddr']} topics: {_text(row['topicMeta'] or {})}"]
            lines += [f"{row['brokerAddr']} groups: {_text(row['groupMeta'] or {})}"]
    return listing(rows, columns, *lines)


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


@command(app, "getParentTopicInfo")
async def get_parent_topic_info(admin: AdminClient, topic: ParentTopic) -> Output:
    """Get parent topic info."""
    rows = [
        {"brokerName": name} | msgspec.to_builtins(await admin.parent_topic_info(address, topic))
        for name, address in await _brokers(admin, topic)
    ]
    columns: dict[str, Any] = {
        "brokerName": "Broker Name",
        "ttl": ("Expires After", lambda minutes: "never" if minutes < 0 else f"{minutes} min"),
        "liteTopicCount": "Lite Topics",
        "lmqNum": "LMQ",
        "groups": ("Groups", lambda groups: ", ".join(sorted(groups or ()))),
    }
    return listing(rows, columns)


@command(app, "getLiteTopicInfo")
async def get_lite_topic_info(
    admin: AdminClient,
    topic: ParentTopic,
    lite_topic: Annotated[str, typer.Option("-l", "--liteTopic", help="Lite topic.")],
    show_client_id: Annotated[bool, typer.Option("-s", "--showClientId", help="With the subscribers.")] = False,
) -> Output:
    """Get lite topic info."""
    rows, subscribers = [], []
    for name, address in await _brokers(admin, topic):
        info = await admin.lite_topic_info(address, topic, lite_topic)
        offsets = info.topic_offset
        rows.append(
            {
                "brokerName": name,
                "minOffset": offsets.min_offset if offsets else 0,
                "maxOffset": offsets.max_offset if offsets else 0,
                "lastUpdateTimestamp": offsets.last_update_timestamp if offsets else 0,
                "shardingToBroker": info.sharding_to_broker,
                "subscribers": info.subscriber or [],
            }
        )
        subscribers += [[name, one.group, one.client_id] for one in info.subscriber or ()]
    columns: dict[str, Any] = {
        "brokerName": "Broker Name",
        "minOffset": "Min Offset",
        "maxOffset": "Max Offset",
        "lastUpdateTimestamp": ("Last Update", _time),
        "shardingToBroker": "Sharding",
        "subscribers": ("Subscribers", lambda clients: str(len(clients))),
    }
    parts: list[Table | str] = [table(rows, columns)]
    if show_client_id:
        parts.append(Table(["Broker Name", "Group", "Client Id"], subscribers))
    return Output(rows, parts)


@command(app, "getLiteClientInfo")
async def get_lite_client_info(
    admin: AdminClient,
    topic: ParentTopic,
    group: ConsumerGroup,
    client_id: Annotated[str, typer.Option("-c", "--clientId", help="Client id.")],
    show_detail: Annotated[bool, typer.Option("-s", "--showDetail", help="With the lite topics.")] = False,
) -> Output:
    """Get lite client info."""
    rows = [
        {"brokerName": name} | msgspec.to_builtins(await admin.lite_client_info(address, topic, group, client_id))
        for name, address in await _brokers(admin, topic)
    ]
    columns: dict[str, Any] = {
        "brokerName": "Broker Name",
        "liteTopicCount": ("Lite Topics", lambda count: str(count) if count > 0 else "-"),
        "lastAccessTime": ("Last Access", _time),
        "lastConsumeTime": ("Last Consume", _time),
    }
    lines = []
    if show_detail:
        lines = [f"{row['brokerName']}: {', '.join(sorted(row['liteTopicSet'] or ()))}" for row in rows]
    return listing(rows, columns, *lines)


@command(app, "getLiteGroupInfo")
async def get_lite_group_info(
    admin: AdminClient,
    topic: ParentTopic,
    group: ConsumerGroup,
    lite_topic: Annotated[str | None, typer.Option("-l", "--liteTopic", help="Only this lite topic.")] = None,
    top_k: Annotated[int, typer.Option("-k", "--topK", min=1, help="Lite topics of each broker.")] = 20,
) -> Output:
    """Get lite group info."""
    document: list[dict[str, Any]] = []
    offsets: list[list[Any]] = []
    counts: list[LiteLagInfo] = []
    times: list[LiteLagInfo] = []
    lag, earliest = 0, 0
    for name, address in await _brokers(admin, topic):
        info = await admin.lite_group_info(address, group, lite_topic, top_k=top_k)
        document.append({"brokerName": name} | msgspec.to_builtins(info))
        lag += max(info.total_lag_count, 0)
        if info.earliest_unconsumed_timestamp > 0:
            earliest = min(earliest or info.earliest_unconsumed_timestamp, info.earliest_unconsumed_timestamp)
        counts += info.lag_count_top_k or ()
        times += info.lag_timestamp_top_k or ()
        if (progress := info.lite_topic_offset_wrapper) is not None:
            last = _time(progress.last_timestamp)
            offsets.append([name, progress.broker_offset, progress.consumer_offset, progress.lag, last])
    parts: list[Table | str] = []
    if lite_topic is not None:
        parts.append(Table(["Broker Name", "Broker Offset", "Consumer Offset", "Lag", "Last Update"], offsets))
    parts.append(f"Total lag: {lag} messages")
    if earliest:
        parts.append(f"Oldest message: {human_time(earliest)} ({max(now_ms() - earliest, 0) // 1000} s ago)")
    if lite_topic is None:
        counts.sort(key=lambda each: -each.lag_count)
        times.sort(key=lambda each: each.earliest_unconsumed_timestamp)
        parts += ["Largest lags", _lags(counts), "Oldest messages", _lags(times)]
    return Output(document, parts)


def _lags(lags: list[LiteLagInfo]) -> Table:
    rows = [[each.lite_topic, each.lag_count, _time(each.earliest_unconsumed_timestamp)] for each in lags]
    return Table(["Lite Topic", "Lag", "Oldest Message"], rows)


@command(app, "triggerLiteDispatch")
async def trigger_lite_dispatch(
    admin: AdminClient,
    topic: ParentTopic,
    group: ConsumerGroup,
    client_id: Annotated[str | None, typer.Option("-c", "--clientId", help="Only to this client.")] = None,
    broker_name: Annotated[str | None, typer.Option("-b", "--brokerName", help="Only on this broker.")] = None,
) -> Output:
    """Trigger Lite Dispatch."""
    names = []
    for name, address in await _brokers(admin, topic):
        if broker_name in (None, name):
            await admin.trigger_lite_dispatch(address, group, client_id)
            names.append(name)
    return Output({"group": group, "brokers": names}, [f"{name}: dispatched" for name in names])
