"""Batches of messages for the handler of a push consumer (`consumeMessageBatchMaxSize`).

The handler pool calls `Batches` as a handler of one message. That call returns after the whole batch is handled. Each
message keeps its own retries, timeout, middleware and offset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

from gantrymq.background.repeating import Repeating
from gantrymq.background.shared_task import own_copy
from gantrymq.background.tasks import Tasks
from gantrymq.client.consuming.handler_pool import MessageHandler, is_coroutine_handler
from gantrymq.errors import ClientError
from gantrymq.protocol.message import MessageExt

#: Handler of a list of messages of any queues. It returns None if all are consumed, or a sequence of outcomes. An
#: outcome is None or True for a consumed message, False or an exception for a failed one. If the handler raises, all
#: messages have failed.
BatchHandler = Callable[[list[MessageExt]], object]


class Batches:
    """Calls `handler` with `size` messages, or with fewer if `wait_s` seconds have passed since the first one.

    At most `concurrency` calls run at the same time. A plain function runs in the event loop's default threads.
    """

    def __init__(self, handler: BatchHandler, size: int, wait_s: float, concurrency: int) -> None:
        self._handler = handler
        self._is_coroutine = is_coroutine_handler(cast(MessageHandler, handler))
        self._size = size
        self._wait_s = wait_s
        self._loop = asyncio.get_running_loop()
        self._gathered: list[tuple[MessageExt, asyncio.Future[BaseException | None]]] = []
        self._turns = asyncio.Semaphore(concurrency)
        self._tasks = Tasks("the handling of a batch")
        self._timer = Repeating("a batch that isn't full", self._begin)
        self._timer.start()

    async def __call__(self, message: MessageExt) -> None:
        """Waits until the batch with this message is handled. Raises the error of the message."""
        future: asyncio.Future[BaseException | None] = self._loop.create_future()
        self._gathered.append((message, future))
        if len(self._gathered) >= self._size:
            self._begin()
        elif len(self._gathered) == 1:
            self._timer.wake(self._wait_s)
        if (error := await future) is not None:
            raise own_copy(error)

    async def close(self) -> None:
        """Cancels the handlers that still run."""
        self._timer.cancel()
        await self._tasks.stop()

    def _begin(self) -> None:
        if self._gathered:
            gathered, self._gathered = self._gathered, []
            self._tasks.start(self._handle(gathered))

    async def _handle(self, gathered: list[tuple[MessageExt, asyncio.Future[BaseException | None]]]) -> None:
        outcomes: Sequence[BaseException | None] = [asyncio.CancelledError()] * len(gathered)
        try:
            async with self._turns:
                outcomes = await self._call([message for message, _ in gathered])
        finally:
            for (_, future), outcome in zip(gathered, outcomes, strict=True):
                if not future.done():
                    future.set_result(outcome)

    async def _call(self, messages: list[MessageExt]) -> Sequence[BaseException | None]:
        try:
            if self._is_coroutine:
                result = await cast(Awaitable[object], self._handler(messages))
            else:
                result = await asyncio.to_thread(self._call_plainly, messages)
            return _outcomes(result, len(messages))
        except (KeyboardInterrupt, SystemExit):
            raise  # These two exceptions end the whole program.
        except BaseException as e:
            if (
                isinstance(e, asyncio.CancelledError)
                and cast("asyncio.Task[None]", asyncio.current_task()).cancelling()
            ):
                raise
            return [e] * len(messages)

    def _call_plainly(self, messages: list[MessageExt]) -> object:
        try:
            return self._handler(messages)
        except BaseException as e:
            return [e] * len(messages)  # Includes SystemExit, because this is not the main thread.


def _outcomes(result: object, count: int) -> Sequence[BaseException | None]:
    if result is None:
        return [None] * count
    if not isinstance(result, Sequence) or isinstance(result, str | bytes) or len(result) != count:
        raise ClientError(f"a batch handler returns None, or a sequence of {count} outcomes, not {result!r:.200}")
    return [_outcome(one) for one in result]


def _outcome(result: object) -> BaseException | None:
    if result is None or result is True:
        return None
    if isinstance(result, BaseException):
        return result
    return ClientError(f"the handler says of this message of its batch: {result!r:.200}")
