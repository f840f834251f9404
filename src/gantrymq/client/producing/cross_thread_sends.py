"""CrossThreadSends: passes the `send` calls of other threads to the event loop of their producer.

One wake-up of the event loop serves all calls in the deque. A call needs a task only if its first attempt fails, or if
the send is not an ordinary one (`DirectSends`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import NamedTuple

from gantrymq.background.loop_thread import LoopThread
from gantrymq.client.broker_api import SendResult
from gantrymq.client.producing.producer import Producer
from gantrymq.client.producing.send_attempt import SendAttempt
from gantrymq.client.producing.sender import Sender
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.message import Message


class _Call(NamedTuple):
    message: Message
    timeout: float | timedelta
    future: Future[SendResult]


class CrossThreadSends:
    """The `send` calls for one producer.

    Attributes:
        thread: Thread of the event loop.
    """

    def __init__(self, producer: Producer, thread: LoopThread) -> None:
        self._producer = producer
        self.thread = thread
        self._calls: deque[_Call] = deque()
        #: True from a wake-up until the event loop takes the calls.
        self._is_woken = False
        #: First attempts in flight, and the sender that continues them. A closed producer has no sender.
        self._attempts: dict[Future[SendResult], tuple[SendAttempt, Sender]] = {}

    def add(self, message: Message, timeout: float | timedelta) -> Future[SendResult]:
        """Starts a send from any other thread. Raises ThreadDied. To give it up, call `cancel`."""
        future: Future[SendResult] = Future()
        self.thread.watch(future)
        self._calls.append(_Call(message, timeout, future))
        if not self._is_woken:
            self._is_woken = True
            self.thread.call_soon(self._start_all)
        return future

    def cancel(self, future: Future[SendResult]) -> None:
        """Cancels a send from any other thread. Raises ThreadDied."""
        future.cancel()
        self.thread.call_soon(partial(self._cancel, future))

    def _start_all(self) -> None:
        # Set first: a thread that adds a call later wakes the loop again.
        self._is_woken = False
        while self._calls:
            self._start(self._calls.popleft())

    def _start(self, call: _Call) -> None:
        message, timeout, future = call
        if future.done():
            return
        try:
            attempt = self._producer.begin_send(message, timeout=timeout)
        except Exception as e:
            with suppress(InvalidStateError):
                future.set_exception(e)
            return
        if attempt is None:
            self.thread.begin(self._producer.send(message, timeout=timeout), future)
        else:
            self._attempts[future] = attempt, self._producer.sender
            attempt.future.add_done_callback(partial(self._answered, future))

    def _answered(self, future: Future[SendResult], answer: asyncio.Future[SendResult | RemotingCommand]) -> None:
        attempt, sender = self._attempts.pop(future)
        if answer.cancelled():
            sender.cancelled(attempt)
            return
        result = answer.result() if answer.exception() is None else None
        if type(result) is SendResult:
            sender.stored(attempt)
            # Another thread may have cancelled the call.
            with suppress(InvalidStateError):
                future.set_result(result)
        else:
            self.thread.begin(sender.send_after(attempt), future)

    def _cancel(self, future: Future[SendResult]) -> None:
        if future in self._attempts:
            self._attempts[future][0].future.cancel()
