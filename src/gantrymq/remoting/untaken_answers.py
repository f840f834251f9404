"""UntakenAnswers: what a server holds of answers that its peers don't take, in all its connections together.

A connection whose peer takes nothing isn't read any more when its write buffer is full; by then it holds a megabyte,
and one answer more. With nothing but that limit 300 peers that ask for much and read nothing hold 277 MiB. The rules:

- While full write buffers hold more than half of the limit `is_much` says so: who would answer with more than clients
  ask for as a rule (a bulk read) doesn't.
- While they hold more than the limit, connections are closed whose peers have taken nothing for STALLED_S.
- While they hold more than twice the limit any of them are closed; first those that have taken nothing for longest.

The alternative that lost: to answer nobody while there is much. Who reads would wait for those that don't.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gantrymq.background.jobs import Jobs
from gantrymq.logs import peer_log
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: Bytes; a hundred peers that are behind, with the answers that clients ask for as a rule, have less.
LIMIT = 100 * 1024 * 1024
#: A network may hold up a peer for some seconds.
STALLED_S = 5.0
_LOOK_S = 0.5


class Writer(Protocol):
    """A Connection whose write buffer is full."""

    @property
    def address(self) -> str: ...
    @property
    def unwritten_bytes(self) -> int: ...
    def abort(self) -> None: ...


@dataclass(slots=True)
class _Full:
    """A write buffer: what it holds, and when its peer took something last."""

    size: int
    moved: float


class UntakenAnswers:
    """Of one server. `limit` is in bytes; `clock` tells seconds."""

    def __init__(self, jobs: Jobs | None = None, *, limit: int = LIMIT, clock: Callable[[], float] = monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._job = (jobs or Jobs()).repeating("answers that nobody takes", self.look)
        self._full: dict[Writer, _Full] = {}
        #: Bytes, of all full write buffers.
        self.held = 0

    def start(self) -> None:
        self._job.start()

    def stop(self) -> None:
        self._job.cancel()

    @property
    def is_much(self) -> bool:
        return self.held > self._limit // 2

    def full(self, writer: Writer) -> None:
        """The write buffer of `writer` is full, or has got more since."""
        known = self._full.get(writer)
        if known is None:
            known = self._full[writer] = _Full(0, self._clock())
        self._measure(writer, known)
        if self.held > self._limit:
            # Not here: the transport is in the middle of a write.
            self._job.wake()

    def taken(self, writer: Writer) -> None:
        """There is room in it again, or the connection is gone."""
        known = self._full.pop(writer, None)
        if known is not None:
            self.held -= known.size

    def look(self) -> float | None:
        """Closes connections as the rules say; while more than the limit is held it runs each half second."""
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
                "closing the connection with %s, which has taken nothing of %d bytes for %.1f s: answers that nobody "
                "takes have more than %d bytes together",
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
