"""SimpleConsumer: pops messages with `receive` and acknowledges each with `ack`. It has no assigned queues.

Source: the SimpleConsumer of RocketMQ 5's clients, over the POP requests of client/impl/MQClientAPIImpl.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta

from gantrymq.background.tasks import Tasks
from gantrymq.client.client_instance import ClientInstance
from gantrymq.client.consuming.consumer_base import GroupConsumer
from gantrymq.client.consuming.introduction import introduce
from gantrymq.client.consuming.options import ConsumerOptions
from gantrymq.client.consuming.start_position import EARLIEST, StartFrom, name_for_brokers
from gantrymq.client.middleware import ReceiveContext, around_receives
from gantrymq.client.options import option, takes
from gantrymq.client.popping.poll_rotation import (
    BUSY_DELAY_S,
    INVISIBLE_S,
    MAX_MESSAGES,
    PAUSE_S,
    RECEIVE_TIMEOUT_S,
    RESPONSE_MS,
    PollRotation,
    Target,
)
from gantrymq.client.popping.pop_api import PopApi
from gantrymq.client.routes import read_queues
from gantrymq.errors import (
    BrokerError,
    ClientError,
    GantryError,
    NoRouteInfo,
)
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.heartbeat import CONSUME_POP, EXPRESSION_TAG, ConsumerData
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.pop import INIT_FROM_MAX, INIT_FROM_MIN, PopMessageRequestHeader
from gantrymq.protocol.message import MessageExt
from gantrymq.remoting.connection import Connection, RequestHandler
from gantrymq.system.clock import now_ms
from gantrymq.times import duration_ms, duration_s

log = peer_log(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleConsumerOptions(ConsumerOptions):
    """Options of `SimpleConsumer`."""

    start_from: StartFrom = option(
        EARLIEST,
        'Where a group begins that has no offset of a queue: "earliest" (the first message), or "latest" (the broker '
        "decides: the newest message, or the first one if it is still in memory).",
    )

    def _check(self) -> None:
        ConsumerOptions._check(self)
        if isinstance(self.start_from, datetime):
            raise ClientError(
                f"start_from={self.start_from!r}: a SimpleConsumer can't start at a time: use 'earliest' or 'latest'"
            )


class SimpleConsumer(GroupConsumer):
    """Receives messages of the subscribed topics. All consumers of a group share them, message by message.

    Example:
        consumer = SimpleConsumer("127.0.0.1:9876", "group")
        consumer.subscribe("topic")
        async with consumer:
            for message in await consumer.receive():
                ...
                await consumer.ack(message)

    A message that is not acknowledged within its invisible duration is redelivered to any consumer of the group. After
    the group's retries (16) it goes to the dead-letter queue.
    """

    _options: SimpleConsumerOptions

    @takes(SimpleConsumerOptions)
    def __init__(self, options: SimpleConsumerOptions) -> None:
        super().__init__(options)
        self._client: ClientInstance | None = None
        self._tasks = self._new_tasks()
        self._rotation: PollRotation | None = None

    async def _open(self, stack: AsyncExitStack) -> None:
        data = ConsumerData(
            self._wire_group,
            CONSUME_POP,
            consume_from_where=name_for_brokers(self._options.start_from),
            subscription_data_set=list(self._subscriptions.values()),
            unit_mode=self._options.unit_mode,
        )
        handlers: dict[int, RequestHandler] = {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: _ignored}
        stack.callback(self._forget)
        client = self._client = self._connect(data, handlers)
        stack.push_async_callback(lambda: client.close(self._deadline.left()))
        stack.push_async_callback(self._tasks.stop)
        self._rotation = PollRotation(client, self._check_open, self._targets)
        client.start()
        await introduce(client, self._wire_group, list(self._subscriptions.values()), shares_queues=False)

    def _forget(self) -> None:
        self._client = self._rotation = None
        self._tasks = self._new_tasks()

    def _new_tasks(self) -> Tasks:
        return Tasks(f"telling brokers about subscriptions and messages of group {self.group}")

    async def receive(
        self,
        max_messages: int = MAX_MESSAGES,
        *,
        invisible_time: float | timedelta = INVISIBLE_S,
        timeout: float | timedelta = RECEIVE_TIMEOUT_S,
    ) -> list[MessageExt]:
        """Receives messages. No other consumer gets them until their invisible duration ends.

        Requests go to topics and brokers round robin, one request at a time. Unreachable brokers are skipped.

        Args:
            max_messages: Largest number of messages, 1 to 32. Default: 32.
            invisible_time: Invisible duration of the messages, in seconds or as a timedelta. Default: 60.0.
            timeout: Longest wait for the first message, in seconds or as a timedelta. The call can take up to 1 s
                longer. Default: 15.0.

        Returns:
            Messages; an empty list if none arrives in time.

        Raises:
            ClientError: An argument is invalid, or there is no subscription.
            NoRouteInfo: No subscribed topic has a route.
            BrokerUnavailable: No broker has a master at present.
            BrokerError: A broker rejects the request.
            RemotingError: No broker is reachable in this time.
        """
        client, rotation = self._started(), self._rotation
        assert rotation is not None
        if not 1 <= max_messages <= MAX_MESSAGES:
            raise ClientError(f"max_messages {max_messages}: 1 to {MAX_MESSAGES} are possible")
        if not self._subscriptions:
            raise ClientError("subscribe to a topic before you receive")
        invisible_ms = duration_ms("invisible_time", invisible_time)
        timeout_s = duration_s("timeout", timeout)
        api = PopApi(client, self._wire_group, self._options.max_body_size)

        async def receive(context: ReceiveContext) -> list[MessageExt]:
            return await rotation.receive(
                lambda target, poll_ms: self._pop(api, target, max_messages, invisible_ms, poll_ms), timeout_s
            )

        return await (around_receives(self._options.middleware, receive) or receive)(self._receive_context(client))

    async def ack(self, message: MessageExt) -> None:
        """Acknowledges a message: it is consumed. Raises BrokerError if its invisible duration has ended."""
        await PopApi(self._started(), self._wire_group).ack(message, self._wire_topic(message.topic))

    async def change_invisible_time(self, message: MessageExt, invisible_time: float | timedelta) -> None:
        """Changes the invisible duration of a message. Unless acknowledged, the message is redelivered after this time.

        Args:
            message: Received message.
            invisible_time: Invisible duration from now on, in seconds or as a timedelta.

        Raises:
            BrokerError: The invisible duration has ended.
        """
        invisible_ms = duration_ms("invisible_time", invisible_time)
        api, topic = PopApi(self._started(), self._wire_group), self._wire_topic(message.topic)
        await api.change_invisible_time(message, topic, invisible_ms)

    async def _targets(self) -> list[Target]:
        """Returns all brokers that may have messages of a subscribed topic."""
        client = self._started()
        targets: list[Target] = []
        missing: NoRouteInfo | None = None
        for topic in list(self._subscriptions):
            try:
                # An incomplete route is enough: messages of a missing broker are received later.
                queues = read_queues(topic, await client.routes.get(topic))
                targets += sorted({(topic, queue.broker_name) for queue in queues})
            except NoRouteInfo as e:
                missing = e
        if not targets:
            raise missing or NoRouteInfo(", ".join(self._subscriptions), client.routes.name_servers)
        try:
            async with asyncio.timeout(PAUSE_S):
                await client.greet_new_brokers()
        except TimeoutError:
            pass  # The heartbeats continue: a silent broker must not delay the others.
        return targets

    async def _pop(
        self, api: PopApi, target: Target, max_messages: int, invisible_ms: int, poll_ms: int
    ) -> list[MessageExt]:
        topic, broker_name = target
        subscription = self._subscriptions.get(topic)
        if subscription is None:
            return []
        header = PopMessageRequestHeader(
            consumer_group=self._wire_group,
            topic=topic,
            queue_id=-1,
            max_msg_nums=max_messages,
            invisible_time=invisible_ms,
            poll_time=poll_ms,
            born_time=now_ms(),
            init_mode=INIT_FROM_MIN if self._options.start_from == EARLIEST else INIT_FROM_MAX,
            exp_type=subscription.expression_type,
            exp=subscription.sub_string,
            order=False,
            bname=broker_name,
        )
        try:
            popped = await api.pop(broker_name, header, RESPONSE_MS)
        except BrokerError as e:
            if e.code != ResponseCode.POLLING_FULL:
                raise
            await asyncio.sleep(BUSY_DELAY_S)
            return []
        messages = popped
        if subscription.tags_set and subscription.expression_type == EXPRESSION_TAG:
            # Different tags can have the same hash code, and the broker compares only hash codes.
            messages = [message for message in popped if message.tags in subscription.tags_set]
            for message in popped:
                if message.tags not in subscription.tags_set:
                    self._tasks.start(self._ack_unwanted(api, message, topic))
        self._strip_namespace(messages)
        return messages

    async def _ack_unwanted(self, api: PopApi, message: MessageExt, topic: str) -> None:
        try:
            await api.ack(message, topic)
        except GantryError as e:
            log.warning("can't acknowledge unsubscribed message %s, it is redelivered: %s", message.msg_id, e)

    def _subscription_changed(self, wire_topic: str) -> None:
        if self._client is not None:
            self._client.set_subscriptions(self._subscriptions.values())
            self._tasks.start(self._client.heartbeat())

    def _started(self) -> ClientInstance:
        self._check_open()
        assert self._client is not None
        return self._client


def _ignored(connection: Connection, request: RemotingCommand) -> None:
    """Ignores changes of the group: a simple consumer has no queues to rebalance."""
