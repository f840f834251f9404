"""LitePushConsumer: calls a handler with each message of its lite topics.

Source: client-java LitePushConsumerImpl. `PoppedLiteTopics` pops and acknowledges the messages.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

from gantrymq.client.consuming.handler_pool import MessageHandler
from gantrymq.client.consuming.handlers import check_handler
from gantrymq.client.middleware import around_handler
from gantrymq.client.options import duration, option, takes
from gantrymq.client.popping.lite_consumer import LiteConsumer, LiteConsumerOptions
from gantrymq.client.popping.popped_lite_topics import PoppedLiteTopics
from gantrymq.client.popping.popped_queues import PopOptions
from gantrymq.errors import ClientError
from gantrymq.times import duration_ms

LiteHandlerT = TypeVar("LiteHandlerT", bound=MessageHandler)


@dataclass(frozen=True, slots=True, kw_only=True)
class LitePushConsumerOptions(LiteConsumerOptions):
    """Options of `LitePushConsumer`."""

    handler: MessageHandler | None = field(
        default=None,
        kw_only=False,
        metadata={
            "doc": "Called with each message. A coroutine function or a plain function, which is called in threads. "
            "None: a function decorated with `handler` of the consumer."
        },
    )
    concurrency: int = option(20, "Number of lite topics whose messages are handled at the same time.", minimum=1)
    suspend: float | timedelta = duration(1.0, "Pause before a failed message is redelivered, in seconds.")
    pop: PopOptions | None = option(None, "How lite topics are popped. None: `PopOptions()`.")

    def _check(self) -> None:
        LiteConsumerOptions._check(self)
        if self.handler is not None:
            check_handler(self.handler)


class LitePushConsumer(LiteConsumer):
    """Calls a handler with every message of the subscribed lite topics, in order for each lite topic.

    Example:
        consumer = LitePushConsumer("127.0.0.1:9876", "agents", "sessions")

        @consumer.handler
        async def handle(message: MessageExt) -> None:
            print(message.lite_topic, message.body)

        async with consumer:
            await consumer.subscribe_lite("session-17")
            await asyncio.Event().wait()

    A message is consumed when the handler returns. If the handler raises, the broker redelivers the message, and those
    after it in its lite topic, after `suspend`. There is no limit of redeliveries: to skip a message, return. If
    a message is not handled within its invisible duration (`pop`), it is redelivered as well. This time begins with the
    pop, so the wait for earlier messages of the same lite topic counts. With slow handlers, set a longer
    `invisible_time` or a smaller `batch_size`.
    """

    _options: LitePushConsumerOptions

    @takes(LitePushConsumerOptions)
    def __init__(self, options: LitePushConsumerOptions) -> None:
        super().__init__(options)
        self._handler = options.handler

    def handler(self, handler: LiteHandlerT) -> LiteHandlerT:
        """Decorator for the function that handles the messages, as an alternative to the argument `handler`.

        Args:
            handler: Called with each message, as the constructor's argument.

        Raises:
            ClientError: The consumer has a handler, or this one cannot be called with one argument.
        """
        if self._handler is not None:
            raise ClientError(f"the consumer of group {self.group} has a handler: {self._handler!r}")
        check_handler(handler)
        self._handler = handler
        return handler

    async def _open(self, stack: AsyncExitStack) -> None:
        options, handler = self._options, self._handler
        if handler is None:
            raise ClientError("no handler: decorate a function with `@consumer.handler`, or pass it to the consumer")
        parts = await self._connect_lite(stack)
        popped = PoppedLiteTopics(
            parts,
            self._topic,
            options.pop or PopOptions(),
            handler=around_handler(handler, options.middleware, self.group, parts.client.client_id),
            concurrency=options.concurrency,
            suspend_ms=duration_ms("suspend", options.suspend),
            prepare=self._strip_namespace,
        )
        stack.push_async_callback(popped.close, self._deadline)
        popped.start()
