"""LiteSimpleConsumer: receives messages of its lite topics with `receive`, and acknowledges each with `ack`.

Source: client-java LiteSimpleConsumerImpl, over the requests of client/impl/MQClientAPIImpl.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta

from gantrymq.client.middleware import ReceiveContext, around_receives
from gantrymq.client.options import takes
from gantrymq.client.popping.lite_consumer import LiteConsumer, LiteConsumerOptions
from gantrymq.client.popping.poll_rotation import (
    BUSY_DELAY_S,
    INVISIBLE_S,
    MAX_MESSAGES,
    RECEIVE_TIMEOUT_S,
    RESPONSE_MS,
    PollRotation,
    Target,
)
from gantrymq.errors import BrokerError, ClientError
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.headers.lite import PopLiteMessageRequestHeader
from gantrymq.protocol.message import MessageExt
from gantrymq.system.clock import now_ms
from gantrymq.times import duration_ms, duration_s


class LiteSimpleConsumer(LiteConsumer):
    """Receives messages of the subscribed lite topics of one parent topic, in order for each lite topic.

    Example:
        consumer = LiteSimpleConsumer("127.0.0.1:9876", "agents", "sessions")
        async with consumer:
            await consumer.subscribe_lite("session-17")
            for message in await consumer.receive():
                print(message.lite_topic, message.body)
                await consumer.ack(message)

    While messages of a lite topic are in flight, no consumer of the group gets others of this lite topic. A message
    that is not acknowledged within its invisible duration is redelivered.
    """

    @takes(LiteConsumerOptions)
    def __init__(self, options: LiteConsumerOptions) -> None:
        super().__init__(options)
        self._rotation: PollRotation | None = None

    async def _open(self, stack: AsyncExitStack) -> None:
        parts = await self._connect_lite(stack)
        self._rotation = PollRotation(parts.client, self._check_open, self._targets)

    async def receive(
        self,
        max_messages: int = MAX_MESSAGES,
        *,
        invisible_time: float | timedelta = INVISIBLE_S,
        timeout: float | timedelta = RECEIVE_TIMEOUT_S,
    ) -> list[MessageExt]:
        """Receives messages. No other consumer of the group gets them until their invisible duration ends.

        Requests go to the brokers round robin, one request at a time. Unreachable brokers are skipped.

        Args:
            max_messages: Largest number of messages, 1 to 32. Default: 32.
            invisible_time: Invisible duration of the messages, in seconds or as a timedelta. Default: 60.0.
            timeout: Longest wait for the first message, in seconds or as a timedelta. The call can take up to 1 s
                longer. Default: 15.0.

        Returns:
            Messages; an empty list if none arrives in time, or without subscriptions.

        Raises:
            ClientError: An argument is invalid.
            NoRouteInfo: The parent topic has no route.
            BrokerUnavailable: No broker has a master at present.
            BrokerError: A broker rejects the request.
            RemotingError: No broker is reachable in this time.
        """
        client, rotation = self._started().client, self._rotation
        assert rotation is not None
        if not 1 <= max_messages <= MAX_MESSAGES:
            raise ClientError(f"max_messages {max_messages}: 1 to {MAX_MESSAGES} are possible")
        invisible_ms = duration_ms("invisible_time", invisible_time)
        timeout_s = duration_s("timeout", timeout)

        async def receive(context: ReceiveContext) -> list[MessageExt]:
            return await rotation.receive(
                lambda target, poll_ms: self._pop(target, max_messages, invisible_ms, poll_ms), timeout_s
            )

        context = ReceiveContext(group=self.group, client_id=client.client_id, topics=[self._options.bind_topic])
        return await (around_receives(self._options.middleware, receive) or receive)(context)

    async def ack(self, message: MessageExt) -> None:
        """Acknowledges a message: it is consumed. An acknowledgement after the invisible duration has no effect.

        Args:
            message: Received message.

        Raises:
            IllegalMessage: The message was not received by such a consumer.
            BrokerError: The broker rejects the acknowledgement.
        """
        await self._started().api.ack(message, self._topic, message.lite_topic)

    async def change_invisible_time(self, message: MessageExt, invisible_time: float | timedelta) -> None:
        """Changes the invisible duration of a message. Unless acknowledged, the message is redelivered after this time.

        The broker redelivers the messages of a lite topic when all unacknowledged ones are visible again.

        Args:
            message: Received message.
            invisible_time: Invisible duration from now on, in seconds or as a timedelta.

        Raises:
            BrokerError: The broker rejects the request.
        """
        invisible_ms = duration_ms("invisible_time", invisible_time)
        api = self._started().api
        await api.change_invisible_time(message, self._topic, invisible_ms, message.lite_topic)

    async def _targets(self) -> list[Target]:
        return [(self._topic, name) for name in await self._started().subscriptions.broker_names()]

    async def _pop(self, target: Target, max_messages: int, invisible_ms: int, poll_ms: int) -> list[MessageExt]:
        _, broker_name = target
        parts = self._started()
        parts.subscriptions.check(broker_name)
        header = PopLiteMessageRequestHeader(
            client_id=parts.client.client_id,
            consumer_group=self._wire_group,
            topic=self._topic,
            max_msg_num=max_messages,
            invisible_time=invisible_ms,
            poll_time=poll_ms,
            born_time=now_ms(),
            bname=broker_name,
        )
        try:
            messages = await parts.api.pop_lite(broker_name, header, RESPONSE_MS)
        except BrokerError as e:
            if e.code != ResponseCode.POLLING_FULL:
                parts.subscriptions.pop_failed(broker_name)
                raise
            await asyncio.sleep(BUSY_DELAY_S)
            return []
        self._strip_namespace(messages)
        return messages
