"""Sends that a producer's middleware handles before they get into a batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from gantrymq.client.broker_api import SendResult
from gantrymq.client.lifecycle import FAREWELL_S
from gantrymq.errors import ClientClosed, SendOutcomeUnknown


class EnqueuedSend:
    """One send, from the start of the middleware to its end."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        #: A future that is done when the client has the message.
        self.added: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_closed = False

    def set_added(self) -> None:
        """Notifies the caller of `enqueue`. Runs several times if the middleware repeats its `call`."""
        if not self.added.done():
            self.added.set_result(None)

    async def run(self, send: Callable[[EnqueuedSend], Coroutine[Any, Any, SendResult]]) -> SendResult:
        """Awaits `send`. If the close has cancelled `send`, raises an error, because the caller was not cancelled."""
        try:
            return await send(self)
        except asyncio.CancelledError:
            if not self._is_closed:
                raise
        if self.added.done():
            text = f"the producer was closed before the middleware of a message to {self._topic} had ended"
            raise SendOutcomeUnknown(text, self._topic)
        raise ClientClosed(f"the producer was closed before the middleware had passed on a message to {self._topic}")

    def close(self, task: asyncio.Task[SendResult]) -> None:
        self._is_closed = True
        task.cancel()


class EnqueuedSends:
    """The tasks of sends. A send has a task because `enqueue` returns before the middleware ends."""

    def __init__(self) -> None:
        self._sends: dict[asyncio.Task[SendResult], EnqueuedSend] = {}

    async def start(
        self, topic: str, send: Callable[[EnqueuedSend], Coroutine[Any, Any, SendResult]]
    ) -> asyncio.Task[SendResult]:
        """Starts a task. Waits until the client has the message, so that messages keep their order.

        Raises the error of `send` if `send` fails before that. If the caller is cancelled, the middleware is cancelled
        as well.
        """
        one = EnqueuedSend(topic)
        task = asyncio.get_running_loop().create_task(one.run(send))
        self._sends[task] = one
        task.add_done_callback(self._ended)
        either: set[asyncio.Future[Any]] = {task, one.added}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not one.added.done():
            await task
        return task

    def _ended(self, task: asyncio.Task[SendResult]) -> None:
        del self._sends[task]
        # Retrieves the error. Without this, asyncio logs it if the caller does not await the future.
        if not task.cancelled():
            task.exception()

    def added(self) -> list[asyncio.Task[SendResult]]:
        """Returns the tasks of the messages that the client has. If the middleware itself calls this, returns no tasks.

        Otherwise a flush by the middleware would wait for itself.
        """
        if asyncio.current_task() in self._sends:
            return []
        return [task for task, one in self._sends.items() if one.added.done()]

    async def close(self, timeout_s: float) -> None:
        """Waits for middleware whose message the client has, for at most `timeout_s` seconds. Cancels the rest."""
        for task, one in self._sends.items():
            if not one.added.done():
                # Its `call` would raise ClientClosed.
                one.close(task)
        if self._sends:
            await asyncio.wait(list(self._sends), timeout=timeout_s)
        for task, one in self._sends.items():
            one.close(task)
        if self._sends:
            # Limited because middleware can suppress the cancellation.
            await asyncio.wait(list(self._sends), timeout=FAREWELL_S)
