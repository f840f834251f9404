"""OffsetMap: translates offsets of a source queue to offsets of its target queue, for the newest copies."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import NamedTuple

#: Number of requests that the map covers. An older offset is searched for in the target queue.
MAX_RUNS = 1024


class _Run(NamedTuple):
    """The copies of one request: first and last source offset, target offset of the first copy, number of copies."""

    first: int
    last: int
    target: int
    copies: int


class OffsetMap:
    """The newest copies, in order. A translation never skips a copy: it returns a lower offset if in doubt."""

    def __init__(self) -> None:
        self._runs: deque[_Run] = deque(maxlen=MAX_RUNS)

    def add(self, first: int, last: int, target: int, count: int) -> None:
        """Adds `count` copies of the source offsets `first` to `last`. `target` is the offset of the first copy."""
        self._runs.append(_Run(first, last, target, count))

    def clear(self) -> None:
        """Forgets all copies, because the position has changed."""
        self._runs.clear()

    def translate(self, source_offset: int) -> int | None:
        """Returns an offset of the target queue; None if the source offset is before the copies of this map."""
        index = bisect_right(self._runs, source_offset, key=lambda run: run.first) - 1
        if index < 0:
            return None
        run = self._runs[index]
        if source_offset > run.last:
            return run.target + run.copies
        # Without gaps between the source offsets, the translation is exact.
        return run.target + (source_offset - run.first if run.last - run.first == run.copies - 1 else 0)
