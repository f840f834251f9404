"""A fair queue of calls. It starts calls, and continues long calls, in rounds over all connections.

A connection can send a thousand calls in one read, and a small compressed request can cost 20 ms. A call that arrives
while the queue is empty starts immediately. Otherwise these rules apply:

- Each iteration of the event loop is one round. A round starts calls of at most ROUND_BYTES; further calls wait. The
  size of a call is the size of its decompressed request, and at least CALL_BYTES.
- A round takes one call of each connection in turn: first small calls, up to ROUND_BYTES, then at least one large call.
  A small call waits only for small calls. A large call waits only for large calls of other connections.
- If a handler runs for longer than SLICE_S, it waits for its next slice as a large call (`Slices`).
- If calls wait and an iteration takes longer than LONG_ROUND_S, not counting the reads of connections, the queue pauses
  for a quarter of that time. Responses of brokers are processed in this pause. The next round has half the size, at
  least LEAST_ROUND_BYTES. After a shorter iteration, the size doubles again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Protocol

from gantrymq.fair_queue import FairQueue
from gantrymq.proxy.http2.read_slices import ReadSlices
from gantrymq.system.clock import monotonic

#: Total size of the requests that start in one round, bytes. Usual requests of this size take 5 ms on a fast machine.
ROUND_BYTES = 64 * 1024
LEAST_ROUND_BYTES = 8 * 1024
#: Smallest size of a call, bytes. At most 32 calls therefore start in one round.
CALL_BYTES = 2 * 1024
#: Largest size of a small call, bytes.
SMALL_BYTES = 4 * 1024
LONG_ROUND_S = 0.005
_REST_SHARE = 0.25


class QueuedCall(Protocol):
    """A call that waits."""

    @property
    def weight(self) -> int:
        """The size of the call, bytes."""

    def start(self) -> bool:
        """Starts or continues the call. Returns False if the client has cancelled it."""


#: Calls by connection.
_Calls = FairQueue[Hashable, QueuedCall]


class CallQueue:
    """The waiting calls of one server."""

    def __init__(self, loop: asyncio.AbstractEventLoop, slices: ReadSlices) -> None:
        self._loop = loop
        self._slices = slices
        self._small = _Calls()
        self._large = _Calls()
        self._round_bytes = ROUND_BYTES
        #: Remaining bytes of this round.
        self._left = ROUND_BYTES
        self._is_round_due = False
        #: Start of the last round, s, on a clock that does not advance while connections read. None after a pause.
        self._began: float | None = None

    def add(self, connection: Hashable, call: QueuedCall) -> None:
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
        """Starts the calls of one round, or pauses after an expensive round."""
        small, large = self._small, self._large
        now = monotonic() - self._slices.total_s
        if self._began is not None:
            took_s = now - self._began
            if took_s <= LONG_ROUND_S:
                self._round_bytes = min(self._round_bytes * 2, ROUND_BYTES)
            elif small or large:
                self._round_bytes = max(self._round_bytes // 2, LEAST_ROUND_BYTES)
                self._began = None
                self._loop.call_later(took_s * _REST_SHARE, self._new_round)
                return
        self._began = now
        left = self._round_bytes
        while small and left > 0:
            left -= _start_next(small)
        is_first = True
        while large and (left > 0 or is_first):
            weight = _start_next(large)
            left -= weight
            is_first = is_first and not weight
        self._left = left
        self._is_round_due = left < self._round_bytes
        if self._is_round_due:
            self._loop.call_soon(self._new_round)


def _start_next(calls: _Calls) -> int:
    """Starts the next call. Returns the size of the call in bytes, or 0 for a cancelled call."""
    _, call = calls.take()
    weight = call.weight
    return weight if call.start() else 0
