"""What the consumers have in common: a group and its subscriptions, in a namespace; and how they are begun and ended.

Source: client/consumer/DefaultMQPushConsumer, DefaultLitePullConsumer (constructors, subscribe, unsubscribe).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from gantrymq.client.client_instance import ClientInstance
from gantrymq.client.consuming.assigned_queues import AssignedQueues, PullOptions
from gantrymq.client.consuming.assignment import (
    WAIT_MS,
    Assignment,
    ErrorCallback,
    Health,
    QueueHealth,
    QueuesCallback,
    not_assigned,
    of_user,
)
from gantrymq.client.consuming.consume_from_where import checked_from_where, told_to_brokers
from gantrymq.client.consuming.offset_store import BrokerOffsetStore, LocalOffsetStore, OffsetStore
from gantrymq.client.consuming.rebalance import AllocateStrategy
from gantrymq.client.consuming.rebalancer import Assign, Share, ShareAll, ShareInGroup
from gantrymq.client.lifecycle import Lifecycle
from gantrymq.client.namespace import without_namespace, wrap_namespace
from gantrymq.client.troubles import Troubles
from gantrymq.errors import ClientError, IllegalMessage
from gantrymq.protocol.bodies.heartbeat import (
    BROADCASTING,
    CLUSTERING,
    EXPRESSION_TAG,
    SUBSCRIBE_ALL,
    ConsumerData,
    SubscriptionData,
)
from gantrymq.protocol.message import MessageExt, MessageQueue
from gantrymq.protocol.topic_name import group_problem, topic_problem
from gantrymq.remoting.connection import RequestHandler, RpcHook
from gantrymq.system import tls

#: A consumer that reads everything finds its offsets again under this name (`ClientConfig.instanceName`).
DEFAULT_INSTANCE = "DEFAULT"
#: `MixAll.DEFAULT_CONSUMER_GROUP`: the group of those who name none.
DEFAULT_CONSUMER_GROUP = "DEFAULT_CONSUMER"


class GroupConsumer(Lifecycle):
    """A consumer of `group`, to be used inside `async with`."""

    def __init__(
        self,
        name_servers: Sequence[str] | str,
        group: str,
        *,
        namespace: str,
        ssl_context: tls.SSLContext | None,
        hooks: Sequence[RpcHook],
        on_error: ErrorCallback | None = None,
    ) -> None:
        super().__init__()
        self._on_error = on_error
        #: Of the life that is, or was last.
        self._troubles = Troubles()
        self._wire_group = wrap_namespace(namespace, group)
        if problem := group_problem(self._wire_group):
            raise IllegalMessage(problem)
        self.group = group
        self._name_servers = name_servers
        self._namespace = namespace
        self._ssl_context = ssl_context
        self._hooks = hooks
        #: By the topics that brokers know.
        self._subscriptions: dict[str, SubscriptionData] = {}

    def subscribe(self, topic: str, expression: str = SUBSCRIBE_ALL, expression_type: str = EXPRESSION_TAG) -> None:
        """Adds a topic, or changes its expression: `*`, tags separated by `||`, or SQL92 as its type says.

        A consumer that runs reads the topic anew. All consumers of a group must have the same subscriptions.
        """
        wire_topic = self._wire_topic(topic)
        if problem := topic_problem(wire_topic):
            raise IllegalMessage(problem)
        self._subscriptions[wire_topic] = SubscriptionData.parse(wire_topic, expression, expression_type)
        self._subscription_changed(wire_topic)

    def unsubscribe(self, topic: str) -> None:
        """Takes a topic away; one that isn't there does no harm."""
        wire_topic = self._wire_topic(topic)
        if self._subscriptions.pop(wire_topic, None) is not None:
            self._subscription_changed(wire_topic)

    @abstractmethod
    def _subscription_changed(self, wire_topic: str) -> None:
        """For a consumer that runs."""

    def _connect(
        self,
        consumer_data: ConsumerData | None,
        handlers: Mapping[int, RequestHandler],
        instance_name: str | None = None,
    ) -> ClientInstance:
        if self.group == DEFAULT_CONSUMER_GROUP:
            raise IllegalMessage(f"the group {DEFAULT_CONSUMER_GROUP} is no program's own: name another")
        client = ClientInstance(
            self._name_servers,
            consumer_data=consumer_data,
            handlers=handlers,
            ssl_context=self._ssl_context,
            hooks=self._hooks,
            instance_name=instance_name,
        )
        self._troubles = client.troubles
        self._troubles.listener = self._on_error
        return client

    # -- names --------------------------------------------------------------------------------------------------

    def _wire_topic(self, topic: str) -> str:
        return wrap_namespace(self._namespace, topic)

    def _wire_queue(self, queue: MessageQueue) -> MessageQueue:
        return queue._replace(topic=self._wire_topic(queue.topic)) if self._namespace else queue

    def _user_queue(self, queue: MessageQueue) -> MessageQueue:
        return queue._replace(topic=without_namespace(queue.topic, self._namespace)) if self._namespace else queue

    def _subscribed_topics(self) -> list[str]:
        """As users name them."""
        return [without_namespace(topic, self._namespace) for topic in self._subscriptions]

    def _strip_namespace(self, messages: Sequence[MessageExt]) -> None:
        if self._namespace:
            for message in messages:
                message.topic = without_namespace(message.topic, self._namespace)


class PullingConsumer(GroupConsumer):
    """A consumer that pulls queues: its share of the group's, or all of them (`broadcasting`)."""

    def __init__(
        self,
        name_servers: Sequence[str] | str,
        group: str,
        options: PullOptions,
        allocate: AllocateStrategy,
        *,
        broadcasting: bool,
        offset_directory: Path,
        instance_name: str,
        namespace: str,
        ssl_context: tls.SSLContext | None,
        hooks: Sequence[RpcHook],
        on_error: ErrorCallback | None,
        on_assigned: QueuesCallback | None,
        on_revoked: QueuesCallback | None,
    ) -> None:
        super().__init__(
            name_servers, group, namespace=namespace, ssl_context=ssl_context, hooks=hooks, on_error=on_error
        )
        checked_from_where(options.consume_from_where)
        if not 1 <= options.batch_size <= 1024:
            raise ClientError(f"pull_batch_size {options.batch_size}: 1 to 1024 are possible")
        self._options = options
        self._allocate = allocate
        self._assigned = Assignment(self._user_queue, on_assigned, on_revoked)
        self._broadcasting = broadcasting
        self._offset_directory = offset_directory
        self._instance_name = instance_name if broadcasting else None

    def _consumer_data(self, consume_type: str) -> ConsumerData:
        return ConsumerData(
            self._wire_group,
            consume_type,
            BROADCASTING if self._broadcasting else CLUSTERING,
            told_to_brokers(self._options.consume_from_where),
            list(self._subscriptions.values()),
        )

    def _offset_store(self, client: ClientInstance) -> OffsetStore:
        """Raises ClientError when the file of offsets can't be read."""
        if self._broadcasting:
            return LocalOffsetStore(self._offset_directory, client.client_id, self._wire_group)
        return BrokerOffsetStore(client, self._wire_group)

    @property
    @abstractmethod
    def assignment(self) -> set[MessageQueue]:
        """The queues that this consumer reads now."""

    async def wait_assigned(self, timeout_ms: int = WAIT_MS) -> set[MessageQueue]:
        """Waits until there are queues to read, and returns them. Raises ClientError when none come in that time.

        Raises ClientClosed before the start, and when the consumer is closed meanwhile.
        """
        try:
            return await self._assigned.wait(self._checked_assignment, timeout_ms)
        except TimeoutError:
            raise not_assigned(self.group, timeout_ms, self._troubles.last) from None

    def _checked_assignment(self) -> set[MessageQueue]:
        self._check_open()
        return self.assignment

    def tell_in_threads(self) -> None:
        """Has `on_assigned` and `on_revoked` called in threads, if they are plain functions."""
        self._assigned.tell_in_threads()

    @abstractmethod
    def health(self) -> Health:
        """How this consumer is: its queues, their lag and last pulls, and the last error."""

    @abstractmethod
    def lag(self) -> dict[MessageQueue, int]:
        """How many messages of each pulled queue are stored and not yet consumed, as of the last pull."""

    def _health(self, queues: AssignedQueues | None) -> Health:
        held = [] if queues is None else queues.process_queues
        found = {pq.queue: QueueHealth(pq.lag, pq.last_pull, pq.last_error) for pq in held}
        told = {self._user_queue(queue): found[queue] for queue in sorted(of_user(found))}
        return Health(self._is_open, told, self._troubles.last, self._troubles.last_time)

    def _lag(self, queues: AssignedQueues) -> dict[MessageQueue, int]:
        return {self._user_queue(held.queue): held.lag for held in queues.process_queues}

    def _share(self, client: ClientInstance, assign: Assign) -> Share:
        if self._broadcasting:
            return ShareAll(client, assign)
        return ShareInGroup(client, self._wire_group, self._allocate, assign)
