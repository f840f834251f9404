"""The connected members of consumer and producer groups (`ConsumerManager`, `ProducerManager`).

A `member` is an object that represents a client's connection. The caller passes the current time, in seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from msgspec.structs import replace

from gantrymq.broker.tables.group_subscriptions import GroupSubscriptions
from gantrymq.broker.tables.heartbeat_quota import MEMBER_BYTES, HeartbeatQuota, size_of
from gantrymq.errors import RequestRefused
from gantrymq.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from gantrymq.protocol.codes import ResponseCode

M = TypeVar("M")

#: Maximum number of consumer and producer groups of one connection. A heartbeat with this number of groups has 3 MiB.
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
    #: Members that joined by a heartbeat without subscriptions, and have not sent their own subscriptions yet.
    without_subscriptions: set[M] = field(default_factory=set)
    #: Memory of the group without its members and subscriptions, in bytes.
    size: int = 0

    @property
    def subscriptions(self) -> dict[str, SubscriptionData]:
        """The active subscriptions, by topic."""
        return self.member_subscriptions.in_force

    def client_ids(self) -> list[str]:
        """Returns the client ids of all members."""
        return [client.client_id for client in self.clients.values()]


@dataclass(slots=True)
class _Memberships(Generic[M]):
    """The groups of one connection, and its newest client id as a producer. As in Java, lookups find only this id."""

    last_heartbeat: float = 0.0
    consumers: dict[str, Client[M]] = field(default_factory=dict)
    producers: dict[str, Client[M]] = field(default_factory=dict)
    client_id: str | None = None

    @property
    def count(self) -> int:
        return len(self.consumers) + len(self.producers)


class GroupMembers(Generic[M]):
    """Stores all groups of a broker. Methods that change members return the names of the changed consumer groups.

    Methods that add members raise RequestRefused if the connection is in too many groups or the memory quota is
    exceeded.
    """

    def __init__(
        self, may_take_over: Callable[[M, M], bool] | None = None, *, kept: HeartbeatQuota | None = None
    ) -> None:
        """Creates an empty table, with the memory quota `kept`.

        `may_take_over(old, new)` returns True if the producer `new` may use the client id of `old`.
        """
        self._may_take_over = may_take_over
        self.kept = kept or HeartbeatQuota()
        self.consumers: dict[str, ConsumerGroup[M]] = {}
        self.producers: dict[str, dict[M, Client[M]]] = {}
        self._producer_members: dict[str, M] = {}
        #: The groups of each member, in the order of its last heartbeat, oldest first.
        self._memberships: dict[M, _Memberships[M]] = {}

    def heartbeat(self, data: HeartbeatData, member: M, language: int, version: int, now: float) -> set[str]:
        """Records a heartbeat. Returns the consumer groups whose members or subscribed topics have changed."""
        client = self.beat(data.client_id, member, language, version, now)
        for producer in data.producer_data_set:
            self.join_producers(producer.group_name, client)
        return {consumer.group_name for consumer in data.consumer_data_set if self.join(consumer, client)}

    def beat(self, client_id: str, member: M, language: int, version: int, now: float) -> Client[M]:
        """Records the time of a heartbeat and returns its client. `join_producers` and `join` then add its groups."""
        mine = self._memberships[member] = self._memberships.pop(member, _Memberships())
        mine.last_heartbeat = now
        return Client(client_id, member, language, version, now)

    def check_capacity(self, client: Client[M], group: str) -> None:
        """Raises RequestRefused if a client is in too many groups to join another one."""
        mine = self._memberships_of(client)
        if mine.count >= MAX_GROUPS_OF_ONE and group not in mine.consumers and group not in mine.producers:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"a client is in at most {MAX_GROUPS_OF_ONE} groups of one broker"
            )

    def join_producers(self, group: str, client: Client[M]) -> None:
        """Adds a client to a producer group."""
        mine = self._memberships_of(client)
        if group not in mine.producers:
            self.check_capacity(client, group)
            self.kept.change(MEMBER_BYTES + len(group), (mine.count + 1) * MEMBER_BYTES)
        self.producers.setdefault(group, {})[client.member] = client
        mine.producers[group] = client
        if mine.client_id != client.client_id and self._is_producer(client):
            self._forget_id(client.member, mine)
            mine.client_id = client.client_id
            self._producer_members[client.client_id] = client.member

    def _is_producer(self, client: Client[M]) -> bool:
        """Returns True if the connection may use its client id, so that replies to the id are sent to it.

        A broken connection can still have the id, if the broker has not detected its end yet.
        """
        known = self._producer_members.get(client.client_id)
        return known is None or self._may_take_over is None or self._may_take_over(known, client.member)

    def join(self, data: ConsumerData, client: Client[M]) -> bool:
        """Adds a client to a consumer group. Returns True if the group's members or subscribed topics have changed."""
        group = self.consumers.get(data.group_name)
        if group is None:
            group = ConsumerGroup(data.group_name, data.consume_type, data.message_model, data.consume_from_where)
        known = group.clients.get(client.member)
        update = group.member_subscriptions.update(client.member, data.subscription_data_set)
        mine = self._memberships_of(client)
        size = size_of(data)
        more = size - group.size + update.growth
        if known is None:
            self.check_capacity(client, data.group_name)
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
        group.without_subscriptions.discard(client.member)
        group.size = size
        group.clients[client.member] = client
        mine.consumers[data.group_name] = client
        return changed

    def rejoin(self, data: ConsumerData, client: Client[M]) -> tuple[bool, bool]:
        """Records a heartbeat without subscriptions. Returns (`join`'s result, whether the subscriptions are missing).

        A member keeps its subscriptions. A new member has the group's subscriptions until it sends its own ones. Until
        then, every call reports them as missing, because a response may be lost.
        """
        group = self.consumers.get(data.group_name)
        known = None if group is None else group.clients.get(client.member)
        if group is None or known is None:
            subscriptions = [] if group is None else list(group.subscriptions.values())
            changed = self.join(replace(data, subscription_data_set=subscriptions), client)
            self.consumers[data.group_name].without_subscriptions.add(client.member)
            return changed, True
        group.clients[client.member] = client
        self._memberships_of(client).consumers[data.group_name] = client
        return known.client_id != client.client_id, client.member in group.without_subscriptions

    def find(self, group_name: str, client_id: str) -> Client[M] | None:
        """Returns the group's member with this client id, or None."""
        group = self.consumers.get(group_name)
        clients = () if group is None else group.clients.values()
        return next((client for client in clients if client.client_id == client_id), None)

    def producer_member(self, client_id: str) -> M | None:
        """Returns the connection of the producer with this client id, or None."""
        return self._producer_members.get(client_id)

    def subscription(self, group_name: str, topic: str) -> SubscriptionData | None:
        """Returns the active subscription of an online group for a topic, or None."""
        group = self.consumers.get(group_name)
        return None if group is None else group.subscriptions.get(topic)

    def has_left(self, group_name: str, topic: str) -> bool:
        """Returns True if the group is online and subscribes to other topics, but not to this one."""
        group = self.consumers.get(group_name)
        return group is not None and bool(group.subscriptions) and topic not in group.subscriptions

    def subscribers(self, topic: str) -> set[str]:
        """Returns the names of the online groups that subscribe to a topic."""
        return {group.name for group in self.consumers.values() if topic in group.subscriptions}

    def leave(self, member: M, consumer_group: str | None, producer_group: str | None) -> set[str]:
        """Removes a client from a consumer group, a producer group or both, by its own request."""
        if producer_group is not None:
            self._leave_producers(producer_group, member)
        return self._leave_consumers(consumer_group, member) if consumer_group is not None else set()

    def drop(self, member: M) -> set[str]:
        """Removes a closed connection from all its groups."""
        mine = self._memberships.pop(member, None)
        if mine is None:
            return set()
        for group in mine.producers:
            self._drop_producer(group, member)
        self._forget_id(member, mine)
        return {group for group in mine.consumers if self._drop_consumer(group, member)}

    def leave_stale(self, client: Client[M], oldest: float) -> set[str]:
        """Removes a connection from the groups that its heartbeats after `oldest` do not contain."""
        mine = self._memberships_of(client)
        for group in [group for group, entry in mine.producers.items() if entry.last_heartbeat < oldest]:
            self._leave_producers(group, client.member)
        stale = [group for group, entry in mine.consumers.items() if entry.last_heartbeat < oldest]
        return {group for group in stale if self._leave_consumers(group, client.member)}

    def expire(self, oldest: float, limit: int = sys.maxsize) -> tuple[set[str], list[M]]:
        """Drops up to `limit` connections, silent since `oldest`. Returns (changed groups, dropped members)."""
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
        """Removes a connection that is in no group, because it needs no heartbeats."""
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
        group.without_subscriptions.discard(member)
        self.kept.change(group.member_subscriptions.size - before - MEMBER_BYTES, 0)
        if not group.clients:
            self.kept.change(-group.size - group.member_subscriptions.size, 0)
            del self.consumers[group_name]
        return {group_name}
