"""Topics: a list of all topics, and one topic with its queues and consumer groups."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec

from gantrymq.client.admin.base import any_address, transport_of
from gantrymq.console.cluster_view import MESSAGE_TYPE, ClusterView, TopicSeen, message_type
from gantrymq.console.fan_out import Unasked
from gantrymq.console.listing import Cut, ListArguments, cut
from gantrymq.console.pages import BadArguments
from gantrymq.console.queries.kinds import is_tools_group, topic_kind
from gantrymq.console.queries.messages import MessageFilter, MessagesPage, filtered
from gantrymq.console.queries.servers import servers_of
from gantrymq.errors import GantryError
from gantrymq.protocol.bodies.route import TopicRouteData
from gantrymq.protocol.bodies.stats import TopicStatsTable
from gantrymq.protocol.bodies.topic_config import PERM_READ, PERM_WRITE
from gantrymq.protocol.message import MessageQueue
from gantrymq.system.clock import monotonic

#: Largest number of queues for which the time of the oldest message is queried.
MAX_QUEUES_WITH_TIMES = 128
#: Longest wait of the list for lags and figures, together with the wait for the topics, s. A list without them reloads
#: itself.
_EXTRAS_WAIT_S = 0.15
#: The tabs of a topic's page.
TABS = ("messages", "queues", "consumers", "settings")


class TopicsArguments(ListArguments, kw_only=True):
    """Arguments of the list. `kind` is topic, retry, dlq, system or all."""

    kind: str = "topic"


class Topic(msgspec.Struct):
    """A topic on all brokers. `perm` is the union of its permissions: rw, r, w or -.

    Values that are unknown, or not queried yet, are None. Only rows of the shown page have `messages`, `in_tps`,
    `bytes` (an estimate) and `newest_ms`.
    """

    name: str
    kind: str
    message_type: str
    read_queues: int
    write_queues: int
    perm: str
    brokers: list[str]
    #: Largest lag of a group, messages, and the number of groups.
    lag: int | None = None
    groups: int | None = None
    messages: int | None = None
    in_tps: float | None = None
    bytes: int | None = None
    #: Shortest retention time of its brokers, h.
    retention_h: int | None = None
    newest_ms: int | None = None


class Topics(msgspec.Struct):
    #: None until the first query is complete.
    table: Cut[Topic] | None
    kind: str
    clusters: list[str]
    unasked: list[Unasked]
    #: False while figures of shown topics are still queried.
    is_complete: bool = True


class TopicArguments(MessageFilter, kw_only=True):
    """Arguments of the page. `tab` is messages, queues, consumers or settings. The filter is for the messages."""

    name: str
    tab: str = "messages"


class Queue(msgspec.Struct):
    """One queue. Times are store times, ms; 0 for an empty queue. `oldest_ms` is None if it was not reported."""

    broker: str
    queue_id: int
    min_offset: int
    max_offset: int
    oldest_ms: int | None
    newest_ms: int

    @property
    def messages(self) -> int:
        return self.max_offset - self.min_offset


class TopicOnBroker(msgspec.Struct):
    broker: str
    address: str
    read_queues: int
    write_queues: int
    perm: str


class TopicPage(msgspec.Struct):
    name: str
    kind: str
    clusters: list[str]
    message_type: str
    in_tps: float
    #: The value is None if a broker did not report its queues.
    messages: int | None
    brokers: list[TopicOnBroker]
    #: Only the tab "queues" has the times of the oldest messages.
    queues: list[Queue]
    #: Consumer groups that subscribe to the topic or have offsets in it.
    groups: list[str]
    unasked: list[Unasked]
    tab: str
    #: The messages that match the filter; None on other tabs.
    found: MessagesPage | None
    #: Lag of each of `groups`, messages; None until the first query is complete.
    lags: dict[str, int | None]
    #: The attributes other than the message type, such as `cleanup.policy`, sorted by name.
    attributes: dict[str, str]


async def topics(view: ClusterView, arguments: TopicsArguments) -> Topics:
    began = monotonic()
    known, servers, lags, retention = await asyncio.gather(
        view.topics.get(), servers_of(view), _lags(view), _retention(view)
    )
    clusters = sorted(servers.info.cluster_addr_table)
    if known is None:
        return Topics(None, arguments.kind, clusters, [])
    rows = [
        _topic(name, kind, seen, lags)
        for name, seen in known.seen.items()
        if (kind := topic_kind(name, servers)) == arguments.kind or arguments.kind == "all"
    ]
    columns = {
        "name": lambda t: t.name,
        "message_type": lambda t: t.message_type,
        "write_queues": lambda t: t.write_queues,
        "read_queues": lambda t: t.read_queues,
        "brokers": lambda t: len(t.brokers),
        "perm": lambda t: t.perm,
        "lag": lambda t: t.lag or 0,
    }
    table = cut(rows, arguments, columns, text=lambda t: t.name, default="name")
    has_figures, failed = await _add_figures(view, table.rows, retention, began + _EXTRAS_WAIT_S)
    unasked = list(dict.fromkeys([*known.unasked, *failed]))
    return Topics(table, arguments.kind, clusters, unasked, lags is not None and has_figures)


async def _lags(view: ClusterView) -> dict[str, list[int]] | None:
    """Returns the lag of each group by topic; None until the first query of groups is complete."""
    known = await view.groups.get(_EXTRAS_WAIT_S)
    if known is None:
        return None
    lags: dict[str, list[int]] = {}
    for group, of_topics in known.progress.items():
        if not is_tools_group(group):
            for topic, progress in of_topics.items():
                lags.setdefault(topic, []).append(progress.lag)
    return lags


async def _add_figures(
    view: ClusterView, rows: list[Topic], retention: dict[str, int], until: float
) -> tuple[bool, list[Unasked]]:
    """Adds the figures that are available at the time `until`, s.

    Returns whether all queries have ended, and the failures.
    """
    figures, errors = await view.topic_figures.get((row.name for row in rows), max(until - monotonic(), 0.0))
    unasked = [Unasked(name, str(error)) for name, error in sorted(errors.items())]
    for row in rows:
        hours = [retention.get(broker) for broker in row.brokers]
        row.retention_h = min((one for one in hours if one is not None), default=None)
        if (one := figures.get(row.name)) is not None:
            row.messages, row.in_tps, row.bytes, row.newest_ms = one.messages, one.in_tps, one.bytes, one.newest_ms
            unasked += one.unasked
    return len(figures) + len(errors) >= len(rows), unasked


async def _retention(view: ClusterView) -> dict[str, int]:
    """Returns the retention time of each broker, h. Empty if unknown."""
    with suppress(GantryError):
        return await view.retention.get(_EXTRAS_WAIT_S) or {}
    return {}


async def topic(view: ClusterView, arguments: TopicArguments) -> TopicPage:
    """Returns the page of a topic. Raises NoRouteInfo if the topic does not exist, or BadArguments."""
    name = arguments.name
    if arguments.tab not in TABS:
        raise BadArguments(f"{arguments.tab!r}: expected one of {', '.join(TABS)}")
    route = await view.admin.topic_route(name)
    addresses = {data.broker_name: address for data in route.broker_datas if (address := any_address(data))}
    (
        configs,
        (stats, oldest, unasked),
        (groups, without_groups),
        (found, without_messages),
        known,
    ) = await asyncio.gather(
        view.each(addresses.values(), lambda address: view.admin.topic_config(address, name)),
        _stats(view, arguments, addresses),
        _groups(view, name),
        _messages(view, arguments),
        view.groups.get(),
    )
    queues = [
        Queue(
            queue.broker_name,
            queue.queue_id,
            of_queue.min_offset,
            of_queue.max_offset,
            oldest.get(queue),
            of_queue.last_update_timestamp,
        )
        for queue, of_queue in sorted(stats.offset_table.items())
    ]
    config = next(iter(configs.results.values()), None)
    progress = known.progress if known is not None else {}
    return TopicPage(
        name,
        topic_kind(name, await view.servers.get()),
        sorted({data.cluster for data in route.broker_datas}),
        message_type(config) if config is not None else "",
        stats.topic_put_tps,
        None if unasked else sum(queue.messages for queue in queues),
        _on_brokers(route, addresses),
        queues,
        groups,
        list(dict.fromkeys([*configs.unasked, *unasked, *without_groups, *without_messages])),
        arguments.tab,
        found,
        {group: of_topics[name].lag if name in (of_topics := progress.get(group, {})) else None for group in groups},
        {key: value for key, value in sorted(config.attributes.items()) if key != MESSAGE_TYPE} if config else {},
    )


async def _stats(
    view: ClusterView, arguments: TopicArguments, addresses: dict[str, str]
) -> tuple[TopicStatsTable, dict[MessageQueue, int], list[Unasked]]:
    """Returns the offsets of the queues, the times of their oldest messages for the tab "queues", and the failures."""
    try:
        stats, unasked = await view.topic_stats(arguments.name)
    except GantryError as e:
        return TopicStatsTable(), {}, [Unasked(arguments.name, str(e))]
    oldest: dict[MessageQueue, int] = {}
    if arguments.tab == "queues":
        stored = [queue for queue, of_queue in stats.offset_table.items() if of_queue.max_offset]
        oldest = await oldest_times(view, addresses, stored)
    return stats, oldest, unasked


async def _groups(view: ClusterView, name: str) -> tuple[list[str], list[Unasked]]:
    try:
        return await view.groups_of_topic(name)
    except GantryError as e:
        return [], [Unasked(name, str(e))]


async def _messages(view: ClusterView, arguments: TopicArguments) -> tuple[MessagesPage | None, list[Unasked]]:
    """Returns the messages for the tab "messages", and the failures. Raises BadArguments."""
    if arguments.tab != "messages":
        return None, []
    try:
        found = await filtered(view, arguments.name, arguments)
    except GantryError as e:
        return None, [Unasked(arguments.name, str(e))]
    return found, found.unasked


async def oldest_times(
    view: ClusterView, addresses: dict[str, str], queues: list[MessageQueue]
) -> dict[MessageQueue, int]:
    """Returns the store time of the oldest message of each queue, ms, if the broker reports it.

    Queries only the first MAX_QUEUES_WITH_TIMES queues.
    """
    asked = {str(n): queue for n, queue in enumerate(queues[:MAX_QUEUES_WITH_TIMES]) if queue.broker_name in addresses}

    async def query(number: str) -> int:
        queue = asked[number]
        return await transport_of(view.admin).api.earliest_store_time(
            addresses[queue.broker_name], queue.topic, queue.queue_id, view.settings.timeout_ms
        )

    answers = await view.each(asked, query)
    return {asked[number]: time for number, time in answers.results.items() if time > 0}


def perm_text(perm: int) -> str:
    return ("r" if perm & PERM_READ else "") + ("w" if perm & PERM_WRITE else "") or "-"


def _topic(name: str, kind: str, seen: TopicSeen, lags: dict[str, list[int]] | None) -> Topic:
    row = Topic(name, kind, seen.message_type, seen.read_queues, seen.write_queues, perm_text(seen.perm), seen.brokers)
    if lags is not None:
        of_topic = lags.get(name, [])
        row.lag, row.groups = max(of_topic, default=None), len(of_topic)
    return row


def _on_brokers(route: TopicRouteData, addresses: dict[str, str]) -> list[TopicOnBroker]:
    return [
        TopicOnBroker(
            data.broker_name,
            addresses.get(data.broker_name, ""),
            data.read_queue_nums,
            data.write_queue_nums,
            perm_text(data.perm),
        )
        for data in sorted(route.queue_datas, key=lambda data: data.broker_name)
    ]
