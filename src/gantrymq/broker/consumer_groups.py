"""Who is connected: the members of consumer and producer groups (`ConsumerManager`, `ProducerManager`).

Plain tables, told the time in seconds; a `member` is whatever stands for a client's connection.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gantrymq.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData

M = TypeVar("M")


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
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)

    def client_ids(self) -> list[str]:
        return [client.client_id for client in self.clients.values()]


class GroupMembers(Generic[M]):
    """All groups of a broker. Methods that change a group's members return the names of those groups."""

    def __init__(self) -> None:
        self.consumers: dict[str, ConsumerGroup[M]] = {}
        self.producers: dict[str, dict[M, Client[M]]] = {}
        self._producer_members: dict[str, M] = {}

    def heartbeat(self, data: HeartbeatData, member: M, language: int, version: int, now: float) -> set[str]:
        """Takes a client's heartbeat in; returns the consumer groups whose members or subscriptions changed."""
        client = Client(data.client_id, member, language, version, now)
        for producer in data.producer_data_set:
            self.producers.setdefault(producer.group_name, {})[member] = client
            self._producer_members[data.client_id] = member
        return {consumer.group_name for consumer in data.consumer_data_set if self._join(consumer, client)}

    def _join(self, data: ConsumerData, client: Client[M]) -> bool:
        group = self.consumers.get(data.group_name)
        if group is None:
            group = ConsumerGroup(data.group_name, data.consume_type, data.message_model, data.consume_from_where)
            self.consumers[data.group_name] = group
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        known = group.clients.get(client.member)
        group.clients[client.member] = client
        changed = known is None or known.client_id != client.client_id
        topics = set()
        for subscription in data.subscription_data_set:
            topics.add(subscription.topic)
            old = group.subscriptions.get(subscription.topic)
            if old is None or subscription.sub_version > old.sub_version:
                changed = changed or old is None
                group.subscriptions[subscription.topic] = subscription
        for topic in group.subscriptions.keys() - topics:
            del group.subscriptions[topic]
            changed = True
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
            self._drop_producer(producer_group, member)
        return self._drop_consumer(consumer_group, member) if consumer_group is not None else set()

    def drop(self, member: M) -> set[str]:
        """A connection is gone."""
        for group in list(self.producers):
            self._drop_producer(group, member)
        for client_id in [client_id for client_id, known in self._producer_members.items() if known is member]:
            del self._producer_members[client_id]
        return set().union(*(self._drop_consumer(group, member) for group in list(self.consumers)))

    def expire(self, oldest: float) -> tuple[set[str], list[M]]:
        """Drops the clients whose last heartbeat was before `oldest`: (groups that changed, members dropped)."""
        tables = [group.clients for group in self.consumers.values()] + list(self.producers.values())
        silent = [client.member for clients in tables for client in clients.values() if client.last_heartbeat < oldest]
        changed: set[str] = set()
        for member in silent:
            changed |= self.drop(member)
        return changed, silent

    def _drop_producer(self, group: str, member: M) -> None:
        clients = self.producers.get(group)
        if clients is not None:
            clients.pop(member, None)
            if not clients:
                del self.producers[group]

    def _drop_consumer(self, group_name: str, member: M) -> set[str]:
        group = self.consumers.get(group_name)
        if group is None or group.clients.pop(member, None) is None:
            return set()
        if not group.clients:
            del self.consumers[group_name]
        return {group_name}
