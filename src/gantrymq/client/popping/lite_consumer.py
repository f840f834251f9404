"""LiteConsumer: base of the consumers of lite topics, which subscribe to lite topics of one parent topic."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from inspect import iscoroutinefunction

from gantrymq.client.client_instance import ClientInstance
from gantrymq.client.consuming.consumer_base import GroupMember
from gantrymq.client.consuming.introduction import introduce
from gantrymq.client.consuming.options import GroupMemberOptions
from gantrymq.client.options import option
from gantrymq.client.popping.lite_subscription_manager import LiteSubscriptionManager
from gantrymq.client.popping.pop_api import PopApi
from gantrymq.errors import ClientError, IllegalMessage
from gantrymq.protocol.bodies.heartbeat import CONSUME_POP, ConsumerData, SubscriptionData
from gantrymq.protocol.bodies.lite import OffsetOption
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.lite_topic import lite_topic_problem
from gantrymq.protocol.topic_name import topic_problem
from gantrymq.remoting.connection import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class LiteConsumerOptions(GroupMemberOptions):
    """Options of the consumers of lite topics."""

    bind_topic: str = field(
        kw_only=False,
        metadata={"doc": "Parent topic of the lite topics, that of the group's attribute `lite.bind.topic`."},
    )
    on_unsubscribe_lite: Callable[[str], object] | None = option(
        None,
        "Called in the event loop with each lite topic that another consumer of an exclusive group has taken over. A "
        "plain function.",
    )

    def _check(self) -> None:
        GroupMemberOptions._check(self)
        if not isinstance(self.bind_topic, str):
            raise IllegalMessage(f"bind_topic={self.bind_topic!r}: must be the name of a topic")
        if problem := topic_problem(self.bind_topic):
            raise IllegalMessage(problem)
        if iscoroutinefunction(self.on_unsubscribe_lite):
            raise ClientError("on_unsubscribe_lite must be a plain function: a coroutine function would not be awaited")


@dataclass(frozen=True, slots=True)
class LiteParts:
    """The parts of a started consumer of lite topics."""

    client: ClientInstance
    api: PopApi
    subscriptions: LiteSubscriptionManager


class LiteConsumer(GroupMember):
    """Base of `LiteSimpleConsumer` and `LitePushConsumer`."""

    _options: LiteConsumerOptions

    def __init__(self, options: LiteConsumerOptions) -> None:
        super().__init__(options)
        #: Parent topic, with the namespace.
        self._topic = self._wire_topic(options.bind_topic)
        self._lite_parts: LiteParts | None = None

    async def _connect_lite(self, stack: AsyncExitStack) -> LiteParts:
        """Joins the group, and registers at the brokers of the parent topic."""
        subscription = SubscriptionData.parse(self._topic)
        data = ConsumerData(
            self._wire_group,
            CONSUME_POP,
            subscription_data_set=[subscription],
            unit_mode=self._options.unit_mode,
        )
        stack.callback(self._forget)
        client = self._connect(
            data,
            {
                RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: _ignored,
                RequestCode.NOTIFY_UNSUBSCRIBE_LITE: self._unsubscribed,
            },
        )
        stack.push_async_callback(lambda: client.close(self._deadline.left()))
        subscriptions = LiteSubscriptionManager(
            client, self._wire_group, self._topic, self._options.on_unsubscribe_lite
        )
        stack.push_async_callback(lambda: subscriptions.stop(self._deadline.left()))
        parts = LiteParts(client, PopApi(client, self._wire_group, self._options.max_body_size), subscriptions)
        self._lite_parts = parts
        client.start()
        await introduce(client, self._wire_group, [subscription], shares_queues=False)
        await subscriptions.start()
        return parts

    def _forget(self) -> None:
        self._lite_parts = None

    def _unsubscribed(self, connection: Connection, request: RemotingCommand) -> None:
        if self._lite_parts is not None:
            self._lite_parts.subscriptions.unsubscribed(connection, request)

    async def subscribe_lite(self, lite_topic: str, *, offset_option: OffsetOption | None = None) -> None:
        """Subscribes to a lite topic. It needs no messages yet.

        In a group with `lite.sub.model=Exclusive`, this consumer takes the lite topic over from the consumer that has
        it. Subscriptions end with the close of the consumer. A broker that can't be reached gets them later.

        Args:
            lite_topic: Name of the lite topic.
            offset_option: Where the group continues in the lite topic, also if it has an offset. Default: at its
                offset, or at the end if it has none.

        Raises:
            IllegalMessage: The lite topic has an invalid name.
            LiteSubscriptionQuotaExceeded: The consumer or the broker has too many subscriptions.
            BrokerError: A broker refuses the subscription.
            NoRouteInfo: The parent topic has no route.
            BrokerUnavailable: No broker has a master at present.
            RemotingError: No broker is reachable. With `offset_option`: a broker is not reachable.
            ClientClosed: The consumer is not started.
        """
        subscriptions = self._started().subscriptions
        if not isinstance(lite_topic, str):
            raise IllegalMessage(f"lite_topic={lite_topic!r}: must be a string")
        if problem := lite_topic_problem(self._topic, lite_topic):
            raise IllegalMessage(problem)
        await subscriptions.subscribe(lite_topic, offset_option)

    async def unsubscribe_lite(self, lite_topic: str) -> None:
        """Removes the subscription to a lite topic, if there is one. A broker that can't be reached does so later.

        Args:
            lite_topic: Name of the lite topic.

        Raises:
            BrokerError: A broker refuses the change.
            ClientClosed: The consumer is not started.
        """
        await self._started().subscriptions.unsubscribe(lite_topic)

    @property
    def lite_topic_set(self) -> frozenset[str]:
        """The subscribed lite topics. Empty before the start and after the close."""
        return frozenset() if self._lite_parts is None else self._lite_parts.subscriptions.lite_topics

    def _started(self) -> LiteParts:
        self._check_open()
        assert self._lite_parts is not None
        return self._lite_parts


def _ignored(connection: Connection, request: RemotingCommand) -> None:
    """Ignores changes of the group: there are no queues to rebalance."""
