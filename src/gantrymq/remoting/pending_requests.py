"""Matches responses to the pending requests of one connection, and ends requests that time out."""

from __future__ import annotations

import asyncio
import math
from typing import NamedTuple, Protocol

from gantrymq.background.repeating import Repeating
from gantrymq.errors import ConnectionLost, RequestTimeout
from gantrymq.protocol.command import RemotingCommand

#: Longest delay of a request timeout, in seconds. One timer checks all requests of a connection.
TIMER_GRAIN_S = 0.01


#: Creates a NamedTuple in half the time of its own constructor.
_new = tuple.__new__


class Waiting(Protocol):
    """Receives a response: a future, or an object that must be notified while the response's read is handled."""

    def done(self) -> bool: ...
    def set_result(self, result: RemotingCommand, /) -> None: ...
    def set_exception(self, exception: Exception, /) -> None: ...


class _Pending(NamedTuple):
    waiting: Waiting
    deadline: float
    timeout_ms: int
    address: str


class PendingRequests:
    """The pending requests by opaque number. Each ends with a response, ConnectionLost or RequestTimeout."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pending: dict[int, _Pending] = {}
        #: Time of the next timeout check, in the loop's time.
        self._look_at = math.inf
        self._job = Repeating("end late requests", self._end_late)

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, opaque: int, address: str, timeout_ms: int) -> asyncio.Future[RemotingCommand]:
        """Returns a future for the response to a request that was sent to `address`."""
        future: asyncio.Future[RemotingCommand] = self._loop.create_future()
        self.add_waiting(opaque, address, timeout_ms, future)
        return future

    def add_waiting(self, opaque: int, address: str, timeout_ms: int, waiting: Waiting) -> None:
        """Works like `add`, but sets the result on `waiting` instead of a future."""
        deadline = self._loop.time() + timeout_ms / 1000
        self._pending[opaque] = _new(_Pending, (waiting, deadline, timeout_ms, address))
        if deadline < self._look_at:
            self._look_at = deadline
            self._job.start()
            self._job.wake(timeout_ms / 1000)

    def answer(self, response: RemotingCommand) -> bool:
        """Sets the response as the result of its request. Returns false if no such request is pending."""
        pending = self._pending.pop(response.opaque, None)
        if pending is None or pending.waiting.done():
            return False
        pending.waiting.set_result(response)
        return True

    def find(self, opaque: int) -> Waiting | None:
        """Returns the receiver of the response to a pending request, or None if no such request is pending."""
        pending = self._pending.get(opaque)
        return None if pending is None else pending.waiting

    def discard(self, opaque: int) -> None:
        """Removes a pending request. A later response is ignored."""
        self._pending.pop(opaque, None)

    def connection_lost(self, message: str) -> None:
        """Fails all pending requests with ConnectionLost."""
        for pending in self._pending.values():
            if not pending.waiting.done():
                pending.waiting.set_exception(ConnectionLost(message, pending.address))
        self._pending.clear()
        self._job.cancel()

    def _end_late(self) -> float | None:
        now = self._loop.time()
        self._look_at = math.inf
        for opaque, (waiting, deadline, timeout_ms, address) in list(self._pending.items()):
            if waiting.done():
                del self._pending[opaque]
            elif deadline <= now:
                del self._pending[opaque]
                waiting.set_exception(RequestTimeout(f"{address} did not answer in {timeout_ms} ms", address))
            elif deadline < self._look_at:
                self._look_at = deadline
        if self._look_at == math.inf:
            return None
        pause_s = max(self._look_at - now, TIMER_GRAIN_S)
        self._look_at = now + pause_s
        return pause_s
