"""A map from ended half messages to the op messages that list them, with compact runs of successive offsets.

An op message of a large transaction lists some hundred successive half messages. Stored as a run, they use as much
memory as a single half message.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

#: Minimum length of a run. Fewer successive offsets are stored one by one.
LEAST_OF_RUN = 16


class EndedHalfMessages:
    """Maps the queue offset of each ended half message to the queue offset of its op message."""

    def __init__(self) -> None:
        self._single: dict[int, int] = {}
        #: First offset of a run -> (offset after its last one, op message).
        self._runs: dict[int, tuple[int, int]] = {}
        self._starts: list[int] = []
        self._in_runs = 0

    def __len__(self) -> int:
        return len(self._single) + self._in_runs

    def __contains__(self, offset: int) -> bool:
        return offset in self._single or self._start_of(offset) is not None

    def add(self, offset: int, op_offset: int) -> bool:
        """Adds a half message. Returns False if it is present already."""
        if offset in self:
            return False
        self._single[offset] = op_offset
        return True

    def add_all(self, offsets: list[int], op_offset: int) -> int:
        """Adds half messages. Returns how many of them were new."""
        is_run = len(offsets) >= LEAST_OF_RUN and offsets == list(range(offsets[0], offsets[0] + len(offsets)))
        if is_run and self.add_run(offsets[0], offsets[-1] + 1, op_offset):
            return len(offsets)
        return sum(self.add(offset, op_offset) for offset in offsets)

    def add_run(self, start: int, end: int, op_offset: int) -> bool:
        """Adds the offsets from `start` to `end` - 1 as a run. Returns False, without change, if one is present."""
        at = bisect_left(self._starts, end)
        if at and self._runs[self._starts[at - 1]][0] > start:
            return False
        if not self._single.keys().isdisjoint(range(start, end)):
            return False
        self._insert(at, start, end, op_offset)
        return True

    def pop(self, offset: int) -> int | None:
        """Removes a half message. Returns its op message, or None if it is not present."""
        op_offset = self._single.pop(offset, None)
        if op_offset is None and (start := self._start_of(offset)) is not None:
            end, op_offset = self._remove(start)
            if offset + 1 < end:
                self._insert(bisect_left(self._starts, offset), offset + 1, end, op_offset)
            if start < offset:
                self._insert(bisect_left(self._starts, start), start, offset, op_offset)
        return op_offset

    def pop_run(self, start: int) -> tuple[int, int] | None:
        """Removes the run that begins at `start`. Returns (offset after the run, op message), or None."""
        return self._remove(start) if start in self._runs else None

    def pop_between(self, start: int, end: int) -> list[tuple[int, int]]:
        """Removes the half messages from `start` to `end` - 1. Returns (offset, op message) of each."""
        offsets: Iterable[int] = range(start, end)
        if end - start > len(self):
            in_runs = [n for first, (behind, _) in self._runs.items() for n in range(first, min(behind, end))]
            offsets = [offset for offset in (*self._single, *in_runs) if start <= offset < end]
        return [(offset, op_offset) for offset in offsets if (op_offset := self.pop(offset)) is not None]

    def _start_of(self, offset: int) -> int | None:
        """Returns the first offset of the run that contains `offset`, or None."""
        at = bisect_right(self._starts, offset)
        if at and offset < self._runs[self._starts[at - 1]][0]:
            return self._starts[at - 1]
        return None

    def _insert(self, at: int, start: int, end: int, op_offset: int) -> None:
        self._starts.insert(at, start)
        self._runs[start] = end, op_offset
        self._in_runs += end - start

    def _remove(self, start: int) -> tuple[int, int]:
        end, op_offset = self._runs.pop(start)
        del self._starts[bisect_left(self._starts, start)]
        self._in_runs -= end - start
        return end, op_offset
