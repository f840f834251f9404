"""Consumer groups: a list of all groups with their lag, and one group with its members, subscriptions and queues."""

from __future__ import annotations

import asyncio

import msgspec

from gantrymq.client.admin.base import any_address, transport_of
from gantrymq.client.broker_api import PullStatus
from gantrymq.client.doctor.groups_seen import MAX_MEMBERS, subscriptions_of
from gantrymq.console.cluster_view import ClusterView
from gantrymq.console.fan_out import Unasked
from gantrymq.console.history import Rebalance
from gantrymq.console.listing import Cut, ListArguments, cut
from gantrymq.console.queries.group_state import STATES, Group, group_of, state_of
from gantrymq.console.queries.kinds import is_tools_group
from gantrymq.console.queries.servers import servers_of
from gantrymq.errors import BrokerError, GantryError, NoRouteInfo
from gantrymq.protocol.bodies.connection import ConsumerConnection
from gantrymq.protocol.bodies.consumer import (
    PROP_CLIENT_VERSION,
    PROP_CONSUMER_START_TIMESTAMP,
    PROP_PROXY_CLIENT_LANGUAGE,
    PROP_THREADPOOL_CORE_SIZE,
    ConsumerRunningInfo,
)
from gantrymq.protocol.bodies.stats import OffsetWrapper
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.message import MessageQueue, decode_messages
from gantrymq.protocol.topic_name import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from gantrymq.protocol.version_name import version_name
from gantrymq.system.clock import now_ms, time

#: Largest number of queues with lag whose next message is read.
MAX_QUEUES_READ = 64
MAX_REBALANCES = 20
#: Period of the trend, s.
TREND_S = 900
#: Bytes to read of a message, because only its store time is needed.
_FIRST_BYTES = 1


class GroupsArguments(ListArguments, kw_only=True):
    """Arguments of the list. `system` includes the internal groups of tools and brokers."""

    system: bool = False


class Groups(msgspec.Struct):
    #: None until the first query is complete.
    table: Cut[Group] | None
    system: bool
    clusters: list[str]
    unasked: list[Unasked]


class GroupArguments(msgspec.Struct):
    name: str


class Subscription(msgspec.Struct, frozen=True):
    topic: str
    type: str
    expression: str


class Rate(msgspec.Struct):
    """Rates of a member in a topic: messages/s, ms for each message, failures in the last hour."""

    topic: str
    ok_tps: float
    failed_tps: float
    ms: float
    failed_in_the_hour: int


class Member(msgspec.Struct):
    """A consumer. Values that it does not report are None. `cached` counts the messages that wait in it."""

    client_id: str
    address: str
    language: str
    version: str
    queues: int | None = None
    cached: int | None = None
    threads: str | None = None
    started_ms: int | None = None
    subscriptions: list[Subscription] | None = None
    rates: list[Rate] = []
    #: If true, the consumer is connected through a proxy, and `address` is that of the proxy.
    by_proxy: bool = False
    #: Lag of the consumer's queues, messages.
    lag: int = 0


class GroupQueue(msgspec.Struct):
    """The group's progress in a queue. `seconds` is the age of the next message."""

    topic: str
    broker: str
    queue_id: int
    end: int
    consumed: int
    lag: int
    seconds: float | None
    member: str


class GroupPage(msgspec.Struct):
    name: str
    #: Names of all clusters, because a group does not belong to a cluster.
    clusters: list[str]
    topics: list[str]
    tps: float
    lag: int
    seconds: float | None
    #: Growth of the lag in the last 15 minutes, messages/s. If it is negative, the group catches up.
    trend: float | None
    model: str
    consume_from: str
    members: list[Member]
    #: True if all members that report subscriptions report the same.
    subscriptions_agree: bool
    queues: list[GroupQueue]
    #: Recorded rebalances, newest first.
    rebalances: list[Rebalance]
    unasked: list[Unasked]
    #: See `state_of`.
    state: str
    #: Lag of queues that no reporting member has, messages.
    lag_without_member: int
    #: Number of dead-letter messages; None if unknown.
    dead_letters: int | None


async def groups(view: ClusterView, arguments: GroupsArguments) -> Groups:
    known, servers = await asyncio.gather(view.groups.get(), servers_of(view))
    clusters = sorted(servers.info.cluster_addr_table)
    if known is None:
        return Groups(None, arguments.system, clusters, [])
    now = now_ms()
    rows = [
        group_of(name, of_topics, now)
        for name, of_topics in known.progress.items()
        if arguments.system or not is_tools_group(name)
    ]
    columns = {
        "name": lambda g: g.name,
        "lag": lambda g: g.lag,
        "seconds": lambda g: g.seconds or 0.0,
        "tps": lambda g: g.tps,
        "state": lambda g: STATES.index(g.state),
    }
    found = cut(rows, arguments, columns, text=lambda g: f"{g.name} {' '.join(g.topics)}", default="-lag")
    return Groups(found, arguments.system, clusters, known.unasked)


async def group(view: ClusterView, arguments: GroupArguments) -> GroupPage:
    """Returns the page of a group. Raises NoRouteInfo if the group is unknown."""
    name = arguments.name
    servers = await servers_of(view)
    unasked: list[Unasked] = []
    try:
        stats = await view.admin.consume_stats(name)
        progress, tps = stats.offset_table, stats.consume_tps
    except NoRouteInfo:
        known = await view.groups.get()
        if known is not None and name not in known.progress:
            raise
        progress, tps = {}, 0.0
    connections = await view.each(servers.masters.values(), lambda address: connected(view, name, address))
    unasked += connections.unasked
    merged = ConsumerConnection()
    known_at: dict[str, str] = {}
    members: dict[str, Member] = {}
    for address, connection in connections.results.items():
        if connection.connection_set:
            merged = connection
        for one in connection.connection_set:
            known_at[one.client_id] = address
            members[one.client_id] = Member(one.client_id, one.client_addr, one.language, version_name(one.version))
    running = await view.each(
        sorted(members)[:MAX_MEMBERS],
        lambda client_id: view.admin.consumer_running_info(name, client_id, broker=known_at[client_id]),
    )
    unasked += running.unasked
    owners: dict[MessageQueue, str] = {}
    for client_id, info in running.results.items():
        add_running_info(members[client_id], info)
        owners |= dict.fromkeys([*info.mq_table, *info.mq_pop_table], client_id)
    waiting = await _waiting_since(view, progress)
    now = now_ms()
    queues = [
        GroupQueue(
            queue.topic,
            queue.broker_name,
            queue.queue_id,
            offsets.broker_offset,
            offsets.consumer_offset,
            offsets.lag,
            max(now - since, 0) / 1000 if (since := waiting.get(queue)) else None,
            owners.get(queue, ""),
        )
        for queue, offsets in sorted(progress.items())
    ]
    lag_without_member = 0
    for queue in queues:
        if queue.member:
            members[queue.member].lag += queue.lag
        else:
            lag_without_member += queue.lag
    lag = sum(queue.lag for queue in queues)
    seconds = max((queue.seconds for queue in queues if queue.seconds is not None), default=None)
    growth = await trend(view, name)
    # A member can be connected to a broker that did not respond.
    count = None if connections.unasked and not members else len(members)
    reported = {tuple(member.subscriptions) for member in members.values() if member.subscriptions is not None}
    return GroupPage(
        name,
        sorted(servers.info.cluster_addr_table),
        sorted({queue.topic for queue in progress if not queue.topic.startswith(RETRY_TOPIC_PREFIX)}),
        tps,
        lag,
        seconds,
        growth,
        merged.message_model if members else "",
        merged.consume_from_where if members else "",
        [members[client_id] for client_id in sorted(members)],
        len(reported) <= 1,
        queues,
        await view.history.rebalances(name, MAX_REBALANCES) if view.history is not None else [],
        list(dict.fromkeys(unasked)),
        state_of(lag, seconds, tps, count, growth),
        lag_without_member,
        await _dead_letter_count(view, name),
    )


async def _dead_letter_count(view: ClusterView, name: str) -> int | None:
    try:
        return (await view.admin.topic_stats(DLQ_TOPIC_PREFIX + name)).message_count
    except NoRouteInfo:
        return 0
    except GantryError:
        return None


async def trend(view: ClusterView, name: str) -> float | None:
    """Returns the growth of the lag, messages/s; None if the history has too few samples."""
    if view.history is None:
        return None
    series = f"group/{name}/lag"
    points = await view.history.points([series], time() - TREND_S, time())
    known = [(at, value) for at, value in zip(points.times, points.values[series], strict=True) if value is not None]
    if len(known) < 2:
        return None
    (first, before), (last, now) = known[0], known[-1]
    return (now - before) / (last - first)


async def connected(view: ClusterView, name: str, address: str) -> ConsumerConnection:
    try:
        return await view.admin.consumer_connection(name, address)
    except BrokerError as e:
        if e.code == ResponseCode.CONSUMER_NOT_ONLINE:
            return ConsumerConnection()
        raise


def add_running_info(member: Member, info: ConsumerRunningInfo) -> None:
    """Adds a member's own report to its data."""
    member.queues = len(info.mq_table) + len(info.mq_pop_table)
    member.cached = sum(queue.cached_msg_count for queue in info.mq_table.values())
    member.threads = info.properties.get(PROP_THREADPOOL_CORE_SIZE)
    started = info.properties.get(PROP_CONSUMER_START_TIMESTAMP, "")
    member.started_ms = int(started) if started.isascii() and started.isdigit() else None
    member.subscriptions = [Subscription(*subscription) for subscription in subscriptions_of(info)]
    member.rates = rates_of(info)
    # A proxy responds for its clients. Versions of direct clients can contain a space, too.
    language = info.properties.get(PROP_PROXY_CLIENT_LANGUAGE)
    if language is not None:
        member.by_proxy = True
        member.language = language
        member.version = info.properties.get(PROP_CLIENT_VERSION, "").removeprefix(f"{language} ")


def rates_of(info: ConsumerRunningInfo) -> list[Rate]:
    return [
        Rate(topic, one.consume_ok_tps, one.consume_failed_tps, one.consume_rt, one.consume_failed_msgs)
        for topic, one in sorted(info.status_table.items())
    ]


async def _waiting_since(view: ClusterView, progress: dict[MessageQueue, OffsetWrapper]) -> dict[MessageQueue, int]:
    """Returns the store time of the next message of each queue with lag, ms.

    If unknown, returns the store time of the last consumed message, which is too early if the queue was idle before its
    next message.
    """
    lagging = {queue: offsets for queue, offsets in progress.items() if offsets.lag}
    found = {queue: offsets.last_timestamp for queue, offsets in lagging.items() if offsets.last_timestamp}
    info = (await servers_of(view)).info.broker_addr_table
    asked = {str(n): queue for n, queue in enumerate(list(lagging)[:MAX_QUEUES_READ])}

    async def query(number: str) -> int | None:
        queue = asked[number]
        address = any_address(info[queue.broker_name]) if queue.broker_name in info else None
        if address is None:
            return None
        result = await transport_of(view.admin).api.pull_at_once(
            address,
            queue,
            max(lagging[queue].consumer_offset, lagging[queue].min_offset),
            1,
            "TOOLS_CONSUMER",
            max_bytes=_FIRST_BYTES,
            timeout_ms=view.settings.timeout_ms,
        )
        if result.status is not PullStatus.FOUND:
            return None
        return next((message.store_timestamp for message in decode_messages(result.body)), None)

    answers = await view.each(asked, query)
    return found | {asked[number]: time for number, time in answers.results.items() if time}
