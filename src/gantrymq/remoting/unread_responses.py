"""Limits the memory for unread responses of all connections of a server.

If a peer does not read, its write buffer fills, and the server then stops reading from it. By then, the buffer contains
up to 1 MiB plus one response. Without another limit, 300 peers that read no responses would use 277 MiB.

Rules:
1. If full write buffers exceed half of the limit, `is_much` is true. Bulk reads then return smaller responses.
2. If they exceed the limit, the server closes connections whose peers have read nothing for STALLED_S.
3. If they exceed twice the limit, any of these connections are closed, the longest inactive first.

Decision record: docs/decisions/fair-scheduling.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gantrymq.background.jobs import Jobs
from gantrymq.limits import UNREAD_RESPONSES_BYTES
from gantrymq.logs import peer_log
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: Time after which a peer counts as stalled, in seconds. A network can delay a peer for some seconds.
STALLED_S = 5.0
_LOOK_S = 0.5


class Writer(Protocol):
    """A connection whose write buffer is full."""

    @property
    def address(self) -> str: ...
    @property
    def unwritten_bytes(self) -> int: ...
    def abort(self) -> None: ...


@dataclass(slots=True)
class _Full:
    """Size of a full write buffer in bytes, and the last time at which its peer read something."""

    size: int
    moved: float


class UnreadResponses:
    """The full write buffers of one server. `limit` is in bytes; `clock` returns seconds."""

    def __init__(
        self,
        jobs: Jobs | None = None,
        *,
        limit: int = UNREAD_RESPONSES_BYTES,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._limit = limit
        self._clock = clock
        self._job = (jobs or Jobs()).repeating("answers that nobody takes", self.look)
        self._full: dict[Writer, _Full] = {}
        #: Size of all full write buffers, in bytes.
        self.held = 0

    def start(self) -> None:
        self._job.start()

    def stop(self) -> None:
        self._job.cancel()

    @property
    def is_much(self) -> bool:
        return self.held > self._limit // 2

    def full(self, writer: Writer) -> None:
        """Records that the write buffer of `writer` is full or has grown."""
        known = self._full.get(writer)
        if known is None:
            known = self._full[writer] = _Full(0, self._clock())
        self._measure(writer, known)
        if self.held > self._limit:
            # Deferred, because the transport is in the middle of a write.
            self._job.wake()

    def taken(self, writer: Writer) -> None:
        """Removes a write buffer that has space again, or whose connection is lost."""
        known = self._full.pop(writer, None)
        if known is not None:
            self.held -= known.size

    def look(self) -> float | None:
        """Closes connections by the rules above. While the limit is exceeded, runs every 0.5 s."""
        now = self._clock()
        for writer, known in self._full.items():
            before = known.size
            self._measure(writer, known)
            if known.size < before:
                known.moved = now
        for writer, known in sorted(self._full.items(), key=lambda item: item[1].moved):
            is_stalled = now - known.moved >= STALLED_S
            if self.held <= (self._limit if is_stalled else 2 * self._limit):
                break
            log.warning(
                "closing the connection with %s, which has read nothing of %d bytes for %.1f s: unread responses of "
                "all connections have more than %d bytes",
                writer.address,
                known.size,
                now - known.moved,
                self._limit,
            )
            self.taken(writer)
            writer.abort()
        return _LOOK_S if self.held > self._limit else None

    def _measure(self, writer: Writer, known: _Full) -> None:
        size = writer.unwritten_bytes
        self.held += size - known.size
        known.size = size
