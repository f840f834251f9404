"""Base classes of the consumers: group, namespace, subscriptions, start and close.

Source: client/consumer/DefaultMQPushConsumer, DefaultLitePullConsumer (constructors, subscribe, unsubscribe).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TypedDict

from gantrymq.client.client_instance import ClientInstance
from gantrymq.client.consuming.assigned_queues import AssignedQueues
from gantrymq.client.consuming.assignment import (
    WAIT_S,
    Assignment,
    Health,
    QueueHealth,
    not_assigned,
    of_user,
)
from gantrymq.client.consuming.consumer_context import ConsumerContext
from gantrymq.client.consuming.offset_store import BrokerOffsetStore, LocalOffsetStore, OffsetStore
from gantrymq.client.consuming.options import ConsumerOptions, GroupMemberOptions, PullingOptions
from gantrymq.client.consuming.rebalancer import Assign, Share, ShareAll, ShareInGroup
from gantrymq.client.consuming.start_position import name_for_brokers
from gantrymq.client.failure_log import FailureLog
from gantrymq.client.lifecycle import Lifecycle
from gantrymq.client.middleware import ReceiveContext
from gantrymq.client.namespace import without_namespace, wrap_namespace
from gantrymq.errors import ClientError, IllegalMessage
from gantrymq.protocol.bodies.heartbeat import (
    BROADCASTING,
    CLUSTERING,
    EXPRESSION_SQL92,
    SUBSCRIBE_ALL,
    ConsumerData,
    SubscriptionData,
)
from gantrymq.protocol.message import MessageExt, MessageQueue
from gantrymq.protocol.topic_name import topic_problem
from gantrymq.remoting.connection import RequestHandler
from gantrymq.times import duration_s

#: Default group of Java's consumers (`MixAll.DEFAULT_CONSUMER_GROUP`).
DEFAULT_CONSUMER_GROUP = "DEFAULT_CONSUMER"


class MessageFilter(TypedDict, total=False):
    """The filter arguments of `subscribe`."""

    tags: str | None
    sql: str | None


def new_subscription(wire_topic: str, tags: str | None, sql: str | None) -> SubscriptionData:
    """Returns a subscription to the messages with these tags or with this condition. Raises ClientError."""
    for name, value in (("tags", tags), ("sql", sql)):
        if not isinstance(value, str | None):
            raise ClientError(f"{name}={value!r}: must be a string or None")
    if sql is None:
        return SubscriptionData.parse(wire_topic, SUBSCRIBE_ALL if tags is None else tags)
    if tags is not None:
        raise ClientError("tags and sql exclude each other: add the tags to the condition, sql=\"TAGS = 'a' AND ...\"")
    return SubscriptionData.parse(wire_topic, sql, EXPRESSION_SQL92)


class GroupMember(Lifecycle):
    """Base of all consumers of `group`. Use it with `async with`."""

    _options: GroupMemberOptions

    def __init__(self, options: GroupMemberOptions) -> None:
        super().__init__()
        self._options = options
        #: Errors since the last start; also available after a close.
        self._failure_log = FailureLog()
        self._wire_group = options.wire_group
        self.group = options.group
        self._namespace = options.namespace

    def _connect(
        self,
        consumer_data: ConsumerData | None,
        handlers: Mapping[int, RequestHandler],
        instance_name: str | None = None,
    ) -> ClientInstance:
        if self.group == DEFAULT_CONSUMER_GROUP:
            raise IllegalMessage(f"the group {DEFAULT_CONSUMER_GROUP} is no program's own: name another")
        client = ClientInstance(
            self._options.name_servers,
            group_data=consumer_data,
            handlers=handlers,
            ssl_context=self._options.ssl_context,
            hooks=self._options.rpc_hooks,
            instance_name=instance_name,
            unit_name=self._options.unit_name,
            on_error=self._options.on_error,
        )
        self._failure_log = client.failure_log
        return client

    # -- names --------------------------------------------------------------------------------------------------

    def _wire_topic(self, topic: str) -> str:
        return wrap_namespace(self._namespace, topic)

    def _wire_queue(self, queue: MessageQueue) -> MessageQueue:
        return queue._replace(topic=self._wire_topic(queue.topic)) if self._namespace else queue

    def _user_queue(self, queue: MessageQueue) -> MessageQueue:
        return queue._replace(topic=without_namespace(queue.topic, self._namespace)) if self._namespace else queue

    def _strip_namespace(self, messages: Sequence[MessageExt]) -> None:
        if self._namespace:
            for message in messages:
                message.topic = without_namespace(message.topic, self._namespace)


class GroupConsumer(GroupMember):
    """A consumer that subscribes to topics."""

    _options: ConsumerOptions

    def __init__(self, options: ConsumerOptions) -> None:
        super().__init__(options)
        #: The keys are topics with their namespace.
        self._subscriptions: dict[str, SubscriptionData] = {}

    def subscribe(self, topic: str, *, tags: str | None = None, sql: str | None = None) -> None:
        """Subscribes to a topic, or changes the filter of a subscription. A running consumer restarts the topic.

        All consumers of a group must have the same subscriptions.

        Args:
            topic: Name of the topic.
            tags: Tags of the messages to receive, separated by `||`. Default: all messages.
            sql: An SQL92 condition on the properties of the messages to receive. Excludes `tags`.

        Raises:
            IllegalMessage: The topic has an invalid name.
            ClientError: Both `tags` and `sql` are given, or one of them is invalid.
        """
        wire_topic = self._wire_topic(topic)
        if problem := topic_problem(wire_topic):
            raise IllegalMessage(problem)
        self._subscriptions[wire_topic] = new_subscription(wire_topic, tags, sql)
        self._subscription_changed(wire_topic)

    def unsubscribe(self, topic: str) -> None:
        """Removes the subscription to a topic, if there is one."""
        wire_topic = self._wire_topic(topic)
        if self._subscriptions.pop(wire_topic, None) is not None:
            self._subscription_changed(wire_topic)

    @abstractmethod
    def _subscription_changed(self, wire_topic: str) -> None:
        """Applies the change of a subscription to a running consumer."""

    def _receive_context(self, client: ClientInstance) -> ReceiveContext:
        return ReceiveContext(group=self.group, client_id=client.client_id, topics=self._subscribed_topics())

    def _subscribed_topics(self) -> list[str]:
        """Returns the topics without the namespace."""
        return [without_namespace(topic, self._namespace) for topic in self._subscriptions]


class PullingConsumer(GroupConsumer):
    """A consumer that pulls its share of the group's queues or, with `broadcasting`, all queues."""

    _options: PullingOptions

    def __init__(self, options: PullingOptions) -> None:
        super().__init__(options)
        self._assigned = Assignment(self._user_queue, options.on_assigned, options.on_revoked)
        self._broadcasting = options.broadcasting
        self._instance_name = options.instance_name if options.broadcasting else None

    def _consumer_data(self, consume_type: str) -> ConsumerData:
        return ConsumerData(
            self._wire_group,
            consume_type,
            BROADCASTING if self._broadcasting else CLUSTERING,
            name_for_brokers(self._options.start_from),
            list(self._subscriptions.values()),
            self._options.unit_mode,
        )

    def _context(self, client: ClientInstance) -> ConsumerContext:
        return ConsumerContext(client, self._wire_group, self._subscriptions, self._options, self._assigned)

    def _offset_store(self, client: ClientInstance) -> OffsetStore:
        """Returns the store for offsets. Raises ClientError if the file of offsets is invalid."""
        if self._broadcasting:
            return LocalOffsetStore(self._options.offset_directory, client.client_id, self._wire_group)
        return BrokerOffsetStore(client, self._wire_group)

    @property
    @abstractmethod
    def assignment(self) -> set[MessageQueue]:
        """The assigned queues."""

    async def wait_assigned(self, *, timeout: float | timedelta = WAIT_S) -> set[MessageQueue]:
        """Waits until queues are assigned and returns them.

        Args:
            timeout: Longest wait, in seconds or as a timedelta. Default: 30.0.

        Raises:
            ClientError: No queue is assigned within the timeout.
            ClientClosed: The consumer is not started, or is closed during the wait.
        """
        timeout_s = duration_s("timeout", timeout)
        try:
            return await self._assigned.wait(self._checked_assignment, timeout_s)
        except TimeoutError:
            raise not_assigned(self.group, timeout_s, self._failure_log.last) from None

    def _checked_assignment(self) -> set[MessageQueue]:
        self._check_open()
        return self.assignment

    def notify_in_threads(self) -> None:
        """Makes `on_assigned` and `on_revoked` run in threads if they are plain functions."""
        self._assigned.notify_in_threads()

    @abstractmethod
    def health(self) -> Health:
        """Returns the state of this consumer: its queues, their lag and last pulls, and the last error."""

    @abstractmethod
    def lag(self) -> dict[MessageQueue, int]:
        """Returns the number of stored messages of each queue that are not consumed, as of the last pull."""

    def _health(self, queues: AssignedQueues | None) -> Health:
        held = [] if queues is None else queues.process_queues
        found = {pq.queue: QueueHealth(pq.lag, pq.last_pull, pq.last_error) for pq in held}
        told = {self._user_queue(queue): found[queue] for queue in sorted(of_user(found))}
        return Health(self._is_open, told, self._failure_log.last, self._failure_log.last_time)

    def _lag(self, queues: AssignedQueues) -> dict[MessageQueue, int]:
        return {self._user_queue(held.queue): held.lag for held in queues.process_queues}

    def _share(self, client: ClientInstance, assign: Assign) -> Share:
        if self._broadcasting:
            return ShareAll(client, assign)
        return ShareInGroup(client, self._wire_group, self._options.allocate, assign)
