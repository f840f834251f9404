"""Who is connected: the members of consumer and producer groups (`ConsumerManager`, `ProducerManager`).

Plain tables, told the time in seconds; a `member` is whatever stands for a client's connection.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gantrymq.broker.group_subscriptions import GroupSubscriptions
from gantrymq.broker.kept_bytes import MEMBER_BYTES, KeptBytes, size_of
from gantrymq.errors import RequestRefused
from gantrymq.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from gantrymq.protocol.codes import ResponseCode

M = TypeVar("M")

#: Groups of one connection, consumers' and producers'. A heartbeat with as many has 3 MiB.
MAX_GROUPS_OF_ONE = 10_000


@dataclass(slots=True)
class Client(Generic[M]):
    """A client as its last heartbeat described it."""

    client_id: str
    member: M
    language: int
    version: int
    last_heartbeat: float


@dataclass(slots=True)
class ConsumerGroup(Generic[M]):
    """A consumer group with at least one live member."""

    name: str
    consume_type: str
    message_model: str
    consume_from_where: str
    clients: dict[M, Client[M]] = field(default_factory=dict)
    member_subscriptions: GroupSubscriptions[M] = field(default_factory=GroupSubscriptions)
    #: Memory of the group without its members and subscriptions, bytes.
    size: int = 0

    @property
    def subscriptions(self) -> dict[str, SubscriptionData]:
        """The subscriptions in force, by topic."""
        return self.member_subscriptions.in_force

    def client_ids(self) -> list[str]:
        return [client.client_id for client in self.clients.values()]


@dataclass(slots=True)
class _Memberships(Generic[M]):
    """Of one connection: its entry in each group, and the client id by which it is found: its newest, as in Java."""

    last_heartbeat: float = 0.0
    consumers: dict[str, Client[M]] = field(default_factory=dict)
    producers: dict[str, Client[M]] = field(default_factory=dict)
    client_id: str | None = None

    @property
    def count(self) -> int:
        return len(self.consumers) + len(self.producers)


class GroupMembers(Generic[M]):
    """All groups of a broker. Methods that change a group's members return the names of those groups.

    Those that take something in raise RequestRefused when a connection is in too many groups, or too much is kept.
    """

    def __init__(self, may_take_over: Callable[[M, M], bool] | None = None, *, kept: KeptBytes | None = None) -> None:
        """`may_take_over(old, new)`: whether a member may be the producer with a client id that another one has."""
        self._may_take_over = may_take_over
        self.kept = kept or KeptBytes()
        self.consumers: dict[str, ConsumerGroup[M]] = {}
        self.producers: dict[str, dict[M, Client[M]]] = {}
        self._producer_members: dict[str, M] = {}
        #: The one whose last heartbeat was the longest ago comes first. So nobody is looked for among all groups.
        self._memberships: dict[M, _Memberships[M]] = {}

    def heartbeat(self, data: HeartbeatData, member: M, language: int, version: int, now: float) -> set[str]:
        """Takes a client's heartbeat in; returns the consumer groups whose members or subscriptions changed."""
        client = self.beat(data.client_id, member, language, version, now)
        for producer in data.producer_data_set:
            self.join_producers(producer.group_name, client)
        return {consumer.group_name for consumer in data.consumer_data_set if self.join(consumer, client)}

    def beat(self, client_id: str, member: M, language: int, version: int, now: float) -> Client[M]:
        """A client lives; `join_producers` and `join` take in what its heartbeat says of its groups.

        Without groups nothing else is kept of it.
        """
        mine = self._memberships[member] = self._memberships.pop(member, _Memberships())
        mine.last_heartbeat = now
        return Client(client_id, member, language, version, now)

    def check_room(self, client: Client[M], group: str) -> None:
        """Whether it may join another group. Raises RequestRefused."""
        mine = self._memberships_of(client)
        if mine.count >= MAX_GROUPS_OF_ONE and group not in mine.consumers and group not in mine.producers:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"a client is in at most {MAX_GROUPS_OF_ONE} groups of one broker"
            )

    def join_producers(self, group: str, client: Client[M]) -> None:
        """A client is a producer of the group."""
        mine = self._memberships_of(client)
        if group not in mine.producers:
            self.check_room(client, group)
            self.kept.change(MEMBER_BYTES + len(group), (mine.count + 1) * MEMBER_BYTES)
        self.producers.setdefault(group, {})[client.member] = client
        mine.producers[group] = client
        if mine.client_id != client.client_id and self._is_producer(client):
            self._forget_id(client.member, mine)
            mine.client_id = client.client_id
            self._producer_members[client.client_id] = client.member

    def _is_producer(self, client: Client[M]) -> bool:
        """Whether replies to its client id are for it. A connection that is gone may not have been noticed yet."""
        known = self._producer_members.get(client.client_id)
        return known is None or self._may_take_over is None or self._may_take_over(known, client.member)

    def join(self, data: ConsumerData, client: Client[M]) -> bool:
        """Whether the group's members or subscriptions changed."""
        group = self.consumers.get(data.group_name)
        if group is None:
            group = ConsumerGroup(data.group_name, data.consume_type, data.message_model, data.consume_from_where)
        known = group.clients.get(client.member)
        update = group.member_subscriptions.update(client.member, data.subscription_data_set)
        mine = self._memberships_of(client)
        size = size_of(data)
        more = size - group.size + update.growth
        if known is None:
            self.check_room(client, data.group_name)
            more += MEMBER_BYTES
        self.kept.change(
            more, max(size + group.member_subscriptions.size + update.growth, (mine.count + 1) * MEMBER_BYTES)
        )

        changed = known is None or known.client_id != client.client_id
        changed |= update.in_force.keys() != group.subscriptions.keys()
        self.consumers[data.group_name] = group
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        group.member_subscriptions.apply(client.member, update)
        group.size = size
        group.clients[client.member] = client
        mine.consumers[data.group_name] = client
        return changed

    def find(self, group_name: str, client_id: str) -> Client[M] | None:
        """The group's member with this client id."""
        group = self.consumers.get(group_name)
        clients = () if group is None else group.clients.values()
        return next((client for client in clients if client.client_id == client_id), None)

    def producer_member(self, client_id: str) -> M | None:
        """The connection of the producer with this client id."""
        return self._producer_members.get(client_id)

    def subscription(self, group_name: str, topic: str) -> SubscriptionData | None:
        """What a group that is online has subscribed to in a topic."""
        group = self.consumers.get(group_name)
        return None if group is None else group.subscriptions.get(topic)

    def has_left(self, group_name: str, topic: str) -> bool:
        """Whether the group is online and subscribes to other topics, but no longer to this one."""
        group = self.consumers.get(group_name)
        return group is not None and bool(group.subscriptions) and topic not in group.subscriptions

    def subscribers(self, topic: str) -> set[str]:
        """The groups online that subscribe to a topic."""
        return {group.name for group in self.consumers.values() if topic in group.subscriptions}

    def leave(self, member: M, consumer_group: str | None, producer_group: str | None) -> set[str]:
        """A client's orderly goodbye to one of its groups."""
        if producer_group is not None:
            self._leave_producers(producer_group, member)
        return self._leave_consumers(consumer_group, member) if consumer_group is not None else set()

    def drop(self, member: M) -> set[str]:
        """A connection is gone."""
        mine = self._memberships.pop(member, None)
        if mine is None:
            return set()
        for group in mine.producers:
            self._drop_producer(group, member)
        self._forget_id(member, mine)
        return {group for group in mine.consumers if self._drop_consumer(group, member)}

    def leave_stale(self, client: Client[M], oldest: float) -> set[str]:
        """Takes a connection out of the groups of which its heartbeats have said nothing since `oldest`."""
        mine = self._memberships_of(client)
        for group in [group for group, entry in mine.producers.items() if entry.last_heartbeat < oldest]:
            self._leave_producers(group, client.member)
        stale = [group for group, entry in mine.consumers.items() if entry.last_heartbeat < oldest]
        return {group for group in stale if self._leave_consumers(group, client.member)}

    def expire(self, oldest: float, limit: int = sys.maxsize) -> tuple[set[str], list[M]]:
        """Drops the connections without a heartbeat since `oldest`, at most `limit`.

        Returns (groups that changed, members dropped).
        """
        silent: list[M] = []
        for member, mine in self._memberships.items():
            if len(silent) >= limit or mine.last_heartbeat >= oldest:
                break
            silent.append(member)
        changed: set[str] = set()
        for member in silent:
            changed |= self.drop(member)
        return changed, silent

    def _forget_id(self, member: M, mine: _Memberships[M]) -> None:
        if mine.client_id is not None and self._producer_members.get(mine.client_id) is member:
            del self._producer_members[mine.client_id]

    def _memberships_of(self, client: Client[M]) -> _Memberships[M]:
        return self._memberships.setdefault(client.member, _Memberships(client.last_heartbeat))

    def _leave_producers(self, group: str, member: M) -> None:
        self._drop_producer(group, member)
        if (mine := self._memberships.get(member)) is not None:
            mine.producers.pop(group, None)
            self._forget_empty(member, mine)

    def _leave_consumers(self, group: str, member: M) -> set[str]:
        if (mine := self._memberships.get(member)) is not None:
            mine.consumers.pop(group, None)
            self._forget_empty(member, mine)
        return self._drop_consumer(group, member)

    def _forget_empty(self, member: M, mine: _Memberships[M]) -> None:
        """Who is in no group any more needs no heartbeats."""
        if not mine.consumers and not mine.producers:
            self.drop(member)

    def _drop_producer(self, group: str, member: M) -> None:
        clients = self.producers.get(group)
        if clients is None or clients.pop(member, None) is None:
            return
        self.kept.change(-MEMBER_BYTES - len(group), 0)
        if not clients:
            del self.producers[group]

    def _drop_consumer(self, group_name: str, member: M) -> set[str]:
        group = self.consumers.get(group_name)
        if group is None or group.clients.pop(member, None) is None:
            return set()
        before = group.member_subscriptions.size
        group.member_subscriptions.leave(member)
        self.kept.change(group.member_subscriptions.size - before - MEMBER_BYTES, 0)
        if not group.clients:
            self.kept.change(-group.size - group.member_subscriptions.size, 0)
            del self.consumers[group_name]
        return {group_name}
