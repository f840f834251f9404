"""Lite topics: the parent topics, one lite topic of them, and a group with its clients and its lag."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import msgspec

from gantrymq.client.admin.client import AdminClient
from gantrymq.console.cluster_view import ClusterView
from gantrymq.console.fan_out import Unasked, query_each
from gantrymq.console.listing import Cut, ListArguments, cut
from gantrymq.console.queries.groups import connected
from gantrymq.console.queries.servers import servers_of
from gantrymq.errors import BrokerError
from gantrymq.protocol.bodies.lite import BrokerLiteInfoBody, LiteGroupInfoBody, LiteLagInfo, LiteTopicInfoBody
from gantrymq.protocol.codes import ResponseCode
from gantrymq.system.clock import now_ms

#: Number of lite topics with the largest lags, of each broker.
_TOP = 20
#: Largest number of clients whose lite topics are queried.
_MAX_CLIENTS = 100


class LiteTopicsArguments(ListArguments, kw_only=True):
    """Arguments of the list. With `topic` and `lite_topic`, the page also shows this lite topic."""

    topic: str = ""
    lite_topic: str = ""


class ParentTopic(msgspec.Struct):
    """A topic of the type LITE on all brokers. `minutes` is the expiration of its lite topics, -1 for never."""

    name: str
    lite_topics: int
    minutes: int
    groups: list[str]


class LiteSubscriber(msgspec.Struct, frozen=True):
    group: str
    client_id: str


class LiteTopicOnBroker(msgspec.Struct):
    """A lite topic on one broker. `newest_ms` is the time of its last message, or None."""

    broker: str
    min_offset: int
    max_offset: int
    newest_ms: int | None
    subscribers: list[LiteSubscriber]


class LiteTopicsPage(msgspec.Struct):
    """`found` is the requested lite topic on each broker that has it, or None without a request."""

    table: Cut[ParentTopic]
    #: Light queues and subscriptions of all brokers.
    light_queues: int
    subscriptions: int
    topic: str
    lite_topic: str
    found: list[LiteTopicOnBroker] | None
    unasked: list[Unasked]


class LiteGroupArguments(msgspec.Struct):
    name: str


class LiteLag(msgspec.Struct):
    """The lag of a group in a lite topic on one broker. `seconds` is the wait of the oldest message, or None."""

    lite_topic: str
    broker: str
    lag: int
    seconds: float | None


class LiteClient(msgspec.Struct):
    """A client of a group: the largest number of its lite topics on a broker, and its last pops, or None."""

    client_id: str
    lite_topics: int
    accessed_ms: int | None = None
    consumed_ms: int | None = None


class LiteGroupPage(msgspec.Struct):
    name: str
    topic: str
    lag: int
    seconds: float | None
    lags: list[LiteLag]
    clients: list[LiteClient]
    #: Number of clients that are left out.
    more_clients: int
    unasked: list[Unasked]


async def lite_topics(view: ClusterView, arguments: LiteTopicsArguments) -> LiteTopicsPage:
    """Returns the parent topics of all brokers with light queues."""
    names = await _brokers(view)
    brokers = await view.each(names, lambda address: _broker_info(view.admin, address))
    unasked = list(brokers.unasked)
    light_queues = subscriptions = 0
    rows: dict[str, ParentTopic] = {}
    for address, info in brokers.results.items():
        if info is None:
            continue
        light_queues += info.current_lmq_num
        subscriptions += info.lite_subscription_count
        topics = list(info.topic_meta or {})
        parents = await view.each(topics, partial(view.admin.parent_topic_info, address))
        unasked += parents.unasked
        for topic, parent in parents.results.items():
            row = rows.setdefault(topic, ParentTopic(topic, 0, parent.ttl, []))
            row.lite_topics += parent.lite_topic_count
            row.groups = sorted({*row.groups, *(parent.groups or ())})
    table = cut(
        rows.values(),
        arguments,
        {"name": lambda row: row.name, "lite_topics": lambda row: row.lite_topics, "minutes": lambda row: row.minutes},
        text=lambda row: f"{row.name} {' '.join(row.groups)}",
        default="name",
    )
    found: list[LiteTopicOnBroker] | None = None
    if arguments.topic and arguments.lite_topic:
        holders = [
            address
            for address, info in brokers.results.items()
            if info is not None and arguments.topic in (info.topic_meta or {})
        ]
        if not holders and not brokers.unasked:
            unasked.append(Unasked(arguments.topic, "no broker has this topic with the type LITE"))
        responses = await view.each(
            holders, lambda address: view.admin.lite_topic_info(address, arguments.topic, arguments.lite_topic)
        )
        unasked += responses.unasked
        found = [_on_broker(names[address], info) for address, info in sorted(responses.results.items())]
        found = [one for one in found if one.max_offset or one.subscribers]
    return LiteTopicsPage(
        table,
        light_queues,
        subscriptions,
        arguments.topic,
        arguments.lite_topic,
        found,
        list(dict.fromkeys(unasked)),
    )


async def lite_group(view: ClusterView, arguments: LiteGroupArguments) -> LiteGroupPage:
    """Returns the lag and the clients of a group that reads lite topics."""
    name, now = arguments.name, now_ms()
    names = await _brokers(view)
    responses = await view.each(names, lambda address: _group_info(view.admin, address, name))
    unasked = list(responses.unasked)
    infos = {address: info for address, info in responses.results.items() if info is not None}
    if not infos and not responses.unasked:
        unasked.append(Unasked(name, "no broker has lite topics of this group"))
    lags: list[LiteLag] = []
    topic, lag, oldest = "", 0, 0
    for address, info in infos.items():
        topic = info.parent_topic or topic
        lag += max(info.total_lag_count, 0)
        if info.earliest_unconsumed_timestamp > 0:
            oldest = min(oldest or info.earliest_unconsumed_timestamp, info.earliest_unconsumed_timestamp)
        lags += [_lag(one, names[address], now) for one in info.lag_count_top_k or ()]
    connections = await view.each(infos, lambda address: connected(view, name, address))
    unasked += connections.unasked
    ids = sorted({one.client_id for found in connections.results.values() for one in found.connection_set})
    # The requests to the brokers have timeouts.
    queried = await query_each(
        ids[:_MAX_CLIENTS], lambda client_id: _client(view, infos, topic, name, client_id, unasked), None
    )
    clients = [client for _, client in sorted(queried.results.items())]
    return LiteGroupPage(
        name,
        topic,
        lag,
        max(now - oldest, 0) / 1000 if oldest else None,
        sorted(lags, key=lambda one: (-one.lag, one.lite_topic))[:_TOP],
        clients,
        len(ids) - len(clients),
        list(dict.fromkeys(unasked)),
    )


async def _client(
    view: ClusterView, addresses: Collection[str], topic: str, group: str, client_id: str, unasked: list[Unasked]
) -> LiteClient:
    """Returns a client of the group. Adds the failed brokers to `unasked`."""
    infos = await view.each(
        addresses, lambda address: view.admin.lite_client_info(address, topic, group, client_id, max_count=1)
    )
    unasked += infos.unasked
    client = LiteClient(client_id, 0)
    for info in infos.results.values():
        client.lite_topics = max(client.lite_topics, info.lite_topic_count)
        client.accessed_ms = max(client.accessed_ms or 0, info.last_access_time) or None
        client.consumed_ms = max(client.consumed_ms or 0, info.last_consume_time) or None
    return client


async def _brokers(view: ClusterView) -> dict[str, str]:
    """Returns the name of each broker by the address of its master."""
    return {address: name for name, address in (await servers_of(view)).masters.items()}


async def _broker_info(admin: AdminClient, address: str) -> BrokerLiteInfoBody | None:
    """Returns the figures of a broker; None if it has no light queues."""
    try:
        return await admin.broker_lite_info(address)
    except BrokerError as e:
        if e.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return None
        raise


async def _group_info(admin: AdminClient, address: str, group: str) -> LiteGroupInfoBody | None:
    """Returns the lag of a group on a broker; None if the broker has no lite topics or not this group."""
    try:
        return await admin.lite_group_info(address, group, top_k=_TOP)
    except BrokerError as e:
        if e.code in (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST):
            return None
        raise


def _on_broker(broker: str, info: LiteTopicInfoBody) -> LiteTopicOnBroker:
    offsets = info.topic_offset
    return LiteTopicOnBroker(
        broker,
        offsets.min_offset if offsets else 0,
        offsets.max_offset if offsets else 0,
        (offsets.last_update_timestamp if offsets else 0) or None,
        [LiteSubscriber(one.group, one.client_id) for one in info.subscriber or ()],
    )


def _lag(info: LiteLagInfo, broker: str, now: int) -> LiteLag:
    since = info.earliest_unconsumed_timestamp
    return LiteLag(info.lite_topic or "", broker, info.lag_count, max(now - since, 0) / 1000 if since > 0 else None)
