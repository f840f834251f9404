"""Requests the state of consumer groups from brokers and members: lag and subscriptions."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from gantrymq.client.admin.base import transport_of
from gantrymq.client.admin.client import AdminClient
from gantrymq.errors import BrokerError, GantryError, NoRouteInfo, RouteNotReady
from gantrymq.protocol.bodies.consumer import ConsumerRunningInfo
from gantrymq.protocol.bodies.stats import ConsumeStats, OffsetWrapper
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.topic_name import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, is_system_topic

#: Limits for groups and members of each group, so that a diagnosis ends soon.
MAX_GROUPS = 50
MAX_MEMBERS = 20
#: Timeout for the members of all groups, because some may hang, s.
MEMBERS_TIMEOUT_S = 10.0
_MAX_CONCURRENT = 16
#: Prefixes of groups that belong to tools and are not checked.
_TOOLS = ("CID_RMQ_SYS_", "TOOLS_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONSAPI", "CID_SYS_RMQ_TRANS")

#: (topic, expression type, expression) of each topic.
Subscriptions = tuple[tuple[str, str, str], ...]


@dataclass(slots=True)
class Lag:
    """Lag of a group in one topic, in messages.

    `last_ms` is the store time of the last consumed message. If several queues have lag, it is the oldest such time.
    """

    messages: int = 0
    last_ms: int | None = None


@dataclass(slots=True)
class GroupSeen:
    """One group. `lags` is keyed by topic. `members` has client ids; None if the members are unknown."""

    name: str
    lags: dict[str, Lag] = field(default_factory=lambda: defaultdict(Lag))
    members: list[str] | None = None
    has_joined: bool = True
    subscriptions: dict[str, Subscriptions] = field(default_factory=dict)

    def add(self, stats: ConsumeStats) -> None:
        for queue, offsets in stats.offset_table.items():
            self.add_queue(queue, offsets)

    def add_queue(self, queue: MessageQueue, offsets: OffsetWrapper) -> None:
        lag = self.lags[queue.topic]
        lag.messages += offsets.lag
        if offsets.lag:
            lag.last_ms = min(offsets.last_timestamp, lag.last_ms or offsets.last_timestamp)


async def groups_seen(admin: AdminClient, masters: Iterable[str], topic: str | None) -> tuple[list[GroupSeen], int]:
    """Returns the groups of `topic`, or all groups, largest lag first, and how many exist. Raises BrokerError."""
    found: dict[str, GroupSeen] = {}
    if topic is not None:
        for name in await admin.groups_of_topic(topic):
            if not name.startswith(_TOOLS):
                found[name] = GroupSeen(name)
                found[name].add(await admin.consume_stats(name, topic))
    else:
        for address in masters:
            for name, of_topics in (
                await admin.broker_consume_stats(address, timeout=transport_of(admin).timeout_ms / 1000)
            ).by_group.items():
                if not name.startswith(_TOOLS):
                    group = found.setdefault(name, GroupSeen(name))
                    for stats in of_topics:
                        group.add(stats)
    for group in found.values():
        for name in [name for name in group.lags if is_system_topic(name) and not name.startswith(RETRY_TOPIC_PREFIX)]:
            del group.lags[name]
    groups = sorted(found.values(), key=lambda group: (-sum(lag.messages for lag in group.lags.values()), group.name))
    chosen = groups[:MAX_GROUPS]
    limit = asyncio.Semaphore(_MAX_CONCURRENT)

    async def ask(group: GroupSeen) -> None:
        async with limit:
            await _ask_members(admin, group)

    # After the timeout, `members` of the remaining groups stays None.
    with suppress(TimeoutError):
        async with asyncio.timeout(MEMBERS_TIMEOUT_S):
            await asyncio.gather(*(ask(group) for group in chosen))
    return chosen, len(groups)


async def dead_letter_counts(admin: AdminClient, topics: Iterable[str]) -> dict[str, int]:
    """Counts the messages in each of these dead-letter topics, by group. Leaves out groups without dead letters."""
    limit = asyncio.Semaphore(_MAX_CONCURRENT)
    found: dict[str, int] = {}

    async def count(topic: str) -> None:
        async with limit:
            with suppress(GantryError):
                stats = await admin.topic_stats(topic)
                if stats.message_count:
                    found[topic.removeprefix(DLQ_TOPIC_PREFIX)] = stats.message_count

    await asyncio.gather(*(count(topic) for topic in topics))
    return dict(sorted(found.items()))


async def _ask_members(admin: AdminClient, group: GroupSeen) -> None:
    try:
        connections = (await admin.consumer_connection(group.name)).connection_set
    except BrokerError as e:
        group.members = [] if e.code == ResponseCode.CONSUMER_NOT_ONLINE else None
        return
    except NoRouteInfo as e:
        if not isinstance(e, RouteNotReady):
            # Brokers create the retry topic when the first consumer joins.
            group.members, group.has_joined = [], False
        return
    except GantryError:
        return
    group.members = sorted(connection.client_id for connection in connections)
    if len(group.members) < 2:
        return

    async def ask(client_id: str) -> None:
        try:
            info = await admin.consumer_running_info(group.name, client_id)
        except GantryError:
            # The member has disconnected in the meantime, or does not support this request.
            return
        group.subscriptions[client_id] = subscriptions_of(info)

    await asyncio.gather(*(ask(client_id) for client_id in group.members[:MAX_MEMBERS]))


def subscriptions_of(info: ConsumerRunningInfo) -> Subscriptions:
    """Returns the subscriptions of a member without its group's retry topic."""
    return tuple(
        sorted(
            (one.topic, one.expression_type, one.sub_string)
            for one in info.subscription_set
            if not one.topic.startswith(RETRY_TOPIC_PREFIX)
        )
    )
