"""The requests of one connection that wait for their responses, and the timer that ends those that wait too long."""

from __future__ import annotations

import asyncio
import math
from typing import NamedTuple

from gantrymq.errors import ConnectionLost, RequestTimeout
from gantrymq.protocol.command import RemotingCommand

#: Requests time out up to so much late, in seconds: one timer looks at all of a connection.
TIMER_GRAIN_S = 0.01


class _Pending(NamedTuple):
    future: asyncio.Future[RemotingCommand]
    deadline: float
    timeout_ms: int
    address: str


class PendingRequests:
    """Futures by opaque number; a future's result is the response, ConnectionLost or RequestTimeout."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pending: dict[int, _Pending] = {}
        #: When `_timer` looks for requests that have waited too long, in the loop's time.
        self._timer_at = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, opaque: int, address: str, timeout_ms: int) -> asyncio.Future[RemotingCommand]:
        """Waits for the response to a request that was sent to `address`."""
        future: asyncio.Future[RemotingCommand] = self._loop.create_future()
        deadline = self._loop.time() + timeout_ms / 1000
        self._pending[opaque] = _Pending(future, deadline, timeout_ms, address)
        if deadline < self._timer_at:
            self._look_at(deadline)
        return future

    def answer(self, response: RemotingCommand) -> bool:
        """Hands the response to who waits for it; False when nobody does, any more."""
        pending = self._pending.pop(response.opaque, None)
        if pending is None or pending.future.done():
            return False
        pending.future.set_result(response)
        return True

    def discard(self, opaque: int) -> None:
        """Nobody waits for this response any more."""
        self._pending.pop(opaque, None)

    def connection_lost(self, message: str) -> None:
        """Ends all with ConnectionLost."""
        for pending in self._pending.values():
            if not pending.future.done():
                pending.future.set_exception(ConnectionLost(message, pending.address))
        self._pending.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _look_at(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._end_late)

    def _end_late(self) -> None:
        now = self._loop.time()
        self._timer_at = math.inf
        for opaque, (future, deadline, timeout_ms, address) in list(self._pending.items()):
            if future.done():
                del self._pending[opaque]
            elif deadline <= now:
                del self._pending[opaque]
                future.set_exception(RequestTimeout(f"{address} did not answer in {timeout_ms} ms", address))
            elif deadline < self._timer_at:
                self._timer_at = deadline
        if self._timer_at < math.inf:
            self._look_at(max(self._timer_at, now + TIMER_GRAIN_S))
