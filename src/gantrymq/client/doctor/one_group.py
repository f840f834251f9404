"""Requests the state of one consumer group from brokers and members, without conclusions."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.doctor.groups_seen import MAX_MEMBERS, MEMBERS_TIMEOUT_S, GroupSeen, subscriptions_of
from gantrymq.errors import BrokerError, GantryError, NoRouteInfo, PartialFailure, RouteNotReady
from gantrymq.protocol.bodies.connection import ConsumerConnection
from gantrymq.protocol.bodies.consumer import ConsumerRunningInfo
from gantrymq.protocol.bodies.stats import OffsetWrapper
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.topic_name import DLQ_TOPIC_PREFIX, retry_topic


@dataclass(slots=True)
class OneGroup:
    """State of a group. Dictionaries are keyed by HOST:PORT of a master, unless stated otherwise."""

    name: str
    brokers: dict[str, str] = field(default_factory=dict)
    #: Configuration of the group on the brokers that have it.
    configs: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    #: All groups on these brokers.
    known: frozenset[str] = frozenset()
    #: Connected consumers, by broker. A broker that did not respond has no entry.
    connected: dict[str, ConsumerConnection] = field(default_factory=dict)
    progress: dict[MessageQueue, OffsetWrapper] = field(default_factory=dict)
    dead_letters: int = 0
    has_joined: bool = True
    #: State that members report, by client id.
    running: dict[str, ConsumerRunningInfo] = field(default_factory=dict)
    #: Errors of members that do not respond, by client id.
    silent: dict[str, GantryError] = field(default_factory=dict)

    @property
    def members(self) -> list[str]:
        """Client ids of the members, sorted."""
        return sorted({one.client_id for answer in self.connected.values() for one in answer.connection_set})

    @property
    def summary(self) -> GroupSeen:
        """The group in the form in which several groups are checked."""
        group = GroupSeen(self.name, members=self.members if self.connected else None, has_joined=self.has_joined)
        for queue, offsets in self.progress.items():
            group.add_queue(queue, offsets)
        group.subscriptions = {client_id: subscriptions_of(info) for client_id, info in self.running.items()}
        return group


async def observe_group(admin: AdminClient, name: str, masters: dict[str, str]) -> OneGroup:
    """Requests the state of a group. `masters` has broker names by HOST:PORT. Raises BrokerError for a rejection."""
    group = OneGroup(name, masters)
    for address in masters:
        configs = await admin.group_configs(address)
        group.known |= configs.keys()
        if name in configs:
            group.configs[address] = configs[name]
        with suppress(GantryError):
            group.connected[address] = await _connected(admin, name, address)
    with suppress(NoRouteInfo, PartialFailure):
        group.progress = (await admin.consume_stats(name)).offset_table
    try:
        with suppress(RouteNotReady):
            await admin.topic_route(retry_topic(name))
    except NoRouteInfo:
        # Brokers create the retry topic when the first consumer joins. Before that, only brokers have the offsets.
        group.has_joined = False
        for address in masters:
            for stats in (await admin.broker_consume_stats(address)).by_group.get(name, ()):
                group.progress |= stats.offset_table
    with suppress(NoRouteInfo, PartialFailure):
        group.dead_letters = (await admin.topic_stats(DLQ_TOPIC_PREFIX + name)).message_count
    await _ask(admin, group)
    return group


async def _connected(admin: AdminClient, name: str, address: str) -> ConsumerConnection:
    try:
        return await admin.consumer_connection(name, address)
    except BrokerError as e:
        if e.code == ResponseCode.CONSUMER_NOT_ONLINE:
            return ConsumerConnection()
        raise


async def _ask(admin: AdminClient, group: OneGroup) -> None:
    """Requests the state of each member through a broker to which the member is connected."""
    by_client = {one.client_id: address for address, answer in group.connected.items() for one in answer.connection_set}

    async def ask(client_id: str) -> None:
        try:
            group.running[client_id] = await admin.consumer_running_info(
                group.name, client_id, broker=by_client[client_id]
            )
        except GantryError as e:
            group.silent[client_id] = e

    with suppress(TimeoutError):
        async with asyncio.timeout(MEMBERS_TIMEOUT_S):
            await asyncio.gather(*(ask(client_id) for client_id in sorted(by_client)[:MAX_MEMBERS]))
