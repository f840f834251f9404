"""CallQueue: starts calls in turn of their connections, so that the calls of one connection don't delay the others'.

A connection can bring a thousand calls in one read, and a small compressed request can cost 20 ms. The rules:

- A round of the event loop starts calls of at most ROUND_BYTES. A call counts as its request's bytes, inflated, and as
  CALL_BYTES at least. Calls that exceed this wait.
- Each round takes one call of each connection in turn: first small ones, up to ROUND_BYTES, then one large call at
  least. A small call waits for small calls only, and a large one for the other connections' large calls.
- When calls wait and a round took longer than LONG_ROUND_S, the queue rests for a quarter of that time, so that
  responses of brokers get through between expensive calls.

A call that finds nothing waiting starts at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from gantrymq.system.clock import monotonic

#: Requests that start in one round, bytes: 5 ms of honest ones. The scan of a hostile one takes 15 ms.
ROUND_BYTES = 64 * 1024
#: The least that a call counts for: 32 start in one round.
CALL_BYTES = 2 * 1024
#: The most that a small call counts for.
SMALL_BYTES = 4 * 1024
LONG_ROUND_S = 0.005
_REST_SHARE = 0.25


class QueuedCall(Protocol):
    """What waits."""

    @property
    def weight(self) -> int:
        """The bytes that it counts for."""

    def start(self) -> bool:
        """False when its client has given it up."""


class _Ring:
    """Calls by their connections, the next connection first."""

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls: dict[object, deque[QueuedCall]] = {}

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, connection: object, call: QueuedCall) -> None:
        calls = self._calls.get(connection)
        if calls is None:
            calls = self._calls[connection] = deque()
        calls.append(call)

    def start_next(self) -> int:
        """The bytes that the started call counts for; 0 for one whose client has given it up."""
        connection = next(iter(self._calls))
        calls = self._calls.pop(connection)
        call = calls.popleft()
        if calls:
            self._calls[connection] = calls
        weight = call.weight
        return weight if call.start() else 0


class CallQueue:
    """The calls of one server."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._small = _Ring()
        self._large = _Ring()
        #: What this round may still start, bytes.
        self._left = ROUND_BYTES
        self._is_round_due = False
        #: When the last round began, s; None after a pause.
        self._began: float | None = None

    def add(self, connection: object, call: QueuedCall) -> None:
        """Starts a call now or in a later round."""
        weight = call.weight
        is_small = weight <= SMALL_BYTES
        if weight <= self._left and not self._small and (is_small or not self._large):
            self._left -= weight
            call.start()
        else:
            (self._small if is_small else self._large).add(connection, call)
        if not self._is_round_due:
            self._is_round_due = True
            self._began = None
            self._loop.call_soon(self._new_round)

    def _new_round(self) -> None:
        small, large = self._small, self._large
        now = monotonic()
        took_s = now - self._began if self._began is not None else 0.0
        if took_s > LONG_ROUND_S and (small or large):
            self._began = None
            self._loop.call_later(took_s * _REST_SHARE, self._new_round)
            return
        self._began = now
        left = ROUND_BYTES
        while small and left > 0:
            left -= small.start_next()
        is_first = True
        while large and (left > 0 or is_first):
            weight = large.start_next()
            left -= weight
            is_first = is_first and not weight
        self._left = left
        self._is_round_due = left < ROUND_BYTES
        if self._is_round_due:
            self._loop.call_soon(self._new_round)
