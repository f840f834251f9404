"""Consumer groups: how far all of them are behind, and one with its members, subscriptions and queues."""

from __future__ import annotations

import msgspec

from gantrymq.client.admin.base import any_address
from gantrymq.client.broker_api import PullStatus
from gantrymq.client.doctor.groups_seen import MAX_MEMBERS, subscriptions_of
from gantrymq.console.asking import Unasked
from gantrymq.console.eye import Eye, TopicProgress
from gantrymq.console.history import Rebalance
from gantrymq.console.listing import Cut, ListArguments, cut
from gantrymq.console.queries.kinds import is_tools_group
from gantrymq.console.queries.servers import servers_of
from gantrymq.errors import BrokerError, NoRouteInfo
from gantrymq.protocol.bodies.connection import ConsumerConnection
from gantrymq.protocol.bodies.consumer import (
    PROP_CLIENT_VERSION,
    PROP_CONSUMER_START_TIMESTAMP,
    PROP_THREADPOOL_CORE_SIZE,
    ConsumerRunningInfo,
)
from gantrymq.protocol.bodies.stats import OffsetWrapper
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.message import MessageQueue, decode_messages
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX
from gantrymq.protocol.version_name import version_name
from gantrymq.system.clock import now_ms, time

#: Queues that are behind of which the next message is looked at.
MAX_QUEUES_LOOKED_INTO = 64
MAX_REBALANCES = 20
#: Of so long the trend is, s.
TREND_S = 900
#: Of a message only the time is wanted.
_FIRST_BYTES = 1


class GroupsArguments(ListArguments, kw_only=True):
    """With `system` those of tools and brokers, too."""

    system: bool = False


class Group(msgspec.Struct):
    """A group. `seconds` is at most how old the oldest message is that it hasn't consumed, None where nothing waits."""

    name: str
    topics: list[str]
    behind: int
    seconds: float | None
    tps: float


class Groups(msgspec.Struct):
    #: None while they are being asked for.
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
    """A member's speed in a topic: messages a second, ms a message, failures of the last hour."""

    topic: str
    ok_tps: float
    failed_tps: float
    ms: float
    failed_in_the_hour: int


class Member(msgspec.Struct):
    """A consumer; what it didn't tell itself is None. `cached` messages wait in it for a handler."""

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
    #: It speaks gRPC: `address` is its proxy's.
    by_proxy: bool = False


class GroupQueue(msgspec.Struct):
    """How far the group is in a queue. `seconds` is how long its next message has been waiting."""

    topic: str
    broker: str
    queue_id: int
    end: int
    consumed: int
    behind: int
    seconds: float | None
    member: str


class GroupPage(msgspec.Struct):
    name: str
    #: All that there are: a group belongs to none of them.
    clusters: list[str]
    topics: list[str]
    tps: float
    behind: int
    seconds: float | None
    #: So many messages a second it got further behind in the last quarter of an hour; less than 0: it catches up.
    trend: float | None
    model: str
    consume_from: str
    members: list[Member]
    #: Whether all members that told subscribe to the same.
    subscriptions_agree: bool
    queues: list[GroupQueue]
    #: Who came and left, as the console has seen it since it was started, or keeps it; the newest first.
    rebalances: list[Rebalance]
    unasked: list[Unasked]


async def groups(eye: Eye, arguments: GroupsArguments) -> Groups:
    known = await eye.groups.get()
    clusters = sorted((await servers_of(eye)).info.cluster_addr_table)
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
        "behind": lambda g: g.behind,
        "seconds": lambda g: g.seconds or 0.0,
        "tps": lambda g: g.tps,
    }
    found = cut(rows, arguments, columns, text=lambda g: f"{g.name} {' '.join(g.topics)}", default="-behind")
    return Groups(found, arguments.system, clusters, known.unasked)


async def group(eye: Eye, arguments: GroupArguments) -> GroupPage:
    """Raises NoRouteInfo for a group that nobody knows."""
    name = arguments.name
    servers = await servers_of(eye)
    unasked: list[Unasked] = []
    try:
        stats = await eye.admin.consume_stats(name)
        progress, tps = stats.offset_table, stats.consume_tps
    except NoRouteInfo:
        known = await eye.groups.get()
        if known is not None and name not in known.progress:
            raise
        progress, tps = {}, 0.0
    connections = await eye.each(servers.masters.values(), lambda address: connected(eye, name, address))
    unasked += connections.unasked
    merged = ConsumerConnection()
    known_at: dict[str, str] = {}
    members: dict[str, Member] = {}
    for address, connection in connections.answers.items():
        if connection.connection_set:
            merged = connection
        for one in connection.connection_set:
            known_at[one.client_id] = address
            members[one.client_id] = Member(one.client_id, one.client_addr, one.language, version_name(one.version))
    running = await eye.each(
        sorted(members)[:MAX_MEMBERS],
        lambda client_id: eye.admin.consumer_running_info(name, client_id, broker=known_at[client_id]),
    )
    unasked += running.unasked
    owners: dict[MessageQueue, str] = {}
    for client_id, info in running.answers.items():
        tell(members[client_id], info)
        owners |= dict.fromkeys([*info.mq_table, *info.mq_pop_table], client_id)
    waiting = await _waiting_since(eye, progress)
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
    told = {tuple(member.subscriptions) for member in members.values() if member.subscriptions is not None}
    return GroupPage(
        name,
        sorted(servers.info.cluster_addr_table),
        sorted({queue.topic for queue in progress if not queue.topic.startswith(RETRY_TOPIC_PREFIX)}),
        tps,
        sum(queue.behind for queue in queues),
        max((queue.seconds for queue in queues if queue.seconds is not None), default=None),
        await trend(eye, name),
        merged.message_model if members else "",
        merged.consume_from_where if members else "",
        [members[client_id] for client_id in sorted(members)],
        len(told) <= 1,
        queues,
        await eye.history.rebalances(name, MAX_REBALANCES) if eye.history is not None else [],
        list(dict.fromkeys(unasked)),
    )


def group_of(name: str, of_topics: dict[str, TopicProgress], now: int) -> Group:
    behind = sum(progress.behind for progress in of_topics.values())
    oldest = min(
        (progress.oldest_ms for progress in of_topics.values() if progress.behind and progress.oldest_ms), default=0
    )
    return Group(
        name,
        sorted(topic for topic in of_topics if not topic.startswith(RETRY_TOPIC_PREFIX)),
        behind,
        max(now - oldest, 0) / 1000 if oldest else None,
        sum(progress.tps for progress in of_topics.values()),
    )


async def trend(eye: Eye, name: str) -> float | None:
    """None where too little is kept of it."""
    if eye.history is None:
        return None
    series = f"group/{name}/behind"
    points = await eye.history.points([series], time() - TREND_S, time())
    known = [(at, value) for at, value in zip(points.times, points.values[series], strict=True) if value is not None]
    if len(known) < 2:
        return None
    (first, before), (last, now) = known[0], known[-1]
    return (now - before) / (last - first)


async def connected(eye: Eye, name: str, address: str) -> ConsumerConnection:
    try:
        return await eye.admin.consumer_connection(name, address)
    except BrokerError as e:
        if e.code == ResponseCode.CONSUMER_NOT_ONLINE:
            return ConsumerConnection()
        raise


def tell(member: Member, info: ConsumerRunningInfo) -> None:
    """What it says of itself."""
    member.queues = len(info.mq_table) + len(info.mq_pop_table)
    member.cached = sum(queue.cached_msg_count for queue in info.mq_table.values())
    member.threads = info.properties.get(PROP_THREADPOOL_CORE_SIZE)
    started = info.properties.get(PROP_CONSUMER_START_TIMESTAMP, "")
    member.started_ms = int(started) if started.isascii() and started.isdigit() else None
    member.subscriptions = [Subscription(*subscription) for subscription in subscriptions_of(info)]
    member.rates = rates_of(info)
    # A proxy answers for its clients, and writes their language before their version.
    told = info.properties.get(PROP_CLIENT_VERSION, "").split(" ", 1)
    if len(told) == 2:
        member.by_proxy = True
        member.language, member.version = told


def rates_of(info: ConsumerRunningInfo) -> list[Rate]:
    return [
        Rate(topic, one.consume_ok_tps, one.consume_failed_tps, one.consume_rt, one.consume_failed_msgs)
        for topic, one in sorted(info.status_table.items())
    ]


async def _waiting_since(eye: Eye, progress: dict[MessageQueue, OffsetWrapper]) -> dict[MessageQueue, int]:
    """When the next message of each queue that is behind was stored, ms; else when the last consumed one was.

    The last consumed one alone would say an hour of a queue that was idle for so long and has got a message just now.
    """
    behind = {queue: offsets for queue, offsets in progress.items() if offsets.lag}
    found = {queue: offsets.last_timestamp for queue, offsets in behind.items() if offsets.last_timestamp}
    info = (await servers_of(eye)).info.broker_addr_table
    asked = {str(n): queue for n, queue in enumerate(list(behind)[:MAX_QUEUES_LOOKED_INTO])}

    async def ask(number: str) -> int | None:
        queue = asked[number]
        address = any_address(info[queue.broker_name]) if queue.broker_name in info else None
        if address is None:
            return None
        result = await eye.admin.api.pull_at_once(
            address,
            queue,
            behind[queue].consumer_offset,
            1,
            "TOOLS_CONSUMER",
            max_bytes=_FIRST_BYTES,
            timeout_ms=eye.settings.timeout_ms,
        )
        if result.status is not PullStatus.FOUND:
            return None
        return next((message.store_timestamp for message in decode_messages(result.body)), None)

    answers = await eye.each(asked, ask)
    return found | {asked[number]: time for number, time in answers.answers.items() if time}
