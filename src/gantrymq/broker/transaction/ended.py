"""Which half messages have ended, and which op message says so: single ones, and runs of successive ones.

Of a transaction with millions of half messages an op message lists some hundred successive ones: as a run they take as
much memory as one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

#: Fewer are kept one by one.
LEAST_OF_RUN = 16


class EndedHalves:
    """By the queue offset of the half message: the queue offset of the op message."""

    def __init__(self) -> None:
        self._single: dict[int, int] = {}
        #: First one -> (the one behind the last, op message); and the first ones, sorted.
        self._runs: dict[int, tuple[int, int]] = {}
        self._starts: list[int] = []
        self._in_runs = 0

    def __len__(self) -> int:
        return len(self._single) + self._in_runs

    def __contains__(self, offset: int) -> bool:
        return offset in self._single or self._start_of(offset) is not None

    def add(self, offset: int, op_offset: int) -> bool:
        """Whether it wasn't known."""
        if offset in self:
            return False
        self._single[offset] = op_offset
        return True

    def add_all(self, offsets: list[int], op_offset: int) -> int:
        """How many of them weren't known."""
        is_run = len(offsets) >= LEAST_OF_RUN and offsets == list(range(offsets[0], offsets[0] + len(offsets)))
        if is_run and self.add_run(offsets[0], offsets[-1] + 1, op_offset):
            return len(offsets)
        return sum(self.add(offset, op_offset) for offset in offsets)

    def add_run(self, start: int, end: int, op_offset: int) -> bool:
        """Adds those from `start` up to `end`, if none of them is known."""
        at = bisect_left(self._starts, end)
        if at and self._runs[self._starts[at - 1]][0] > start:
            return False
        if not self._single.keys().isdisjoint(range(start, end)):
            return False
        self._insert(at, start, end, op_offset)
        return True

    def pop(self, offset: int) -> int | None:
        """The op message of one, which isn't kept any more."""
        op_offset = self._single.pop(offset, None)
        if op_offset is None and (start := self._start_of(offset)) is not None:
            end, op_offset = self._remove(start)
            if offset + 1 < end:
                self._insert(bisect_left(self._starts, offset), offset + 1, end, op_offset)
            if start < offset:
                self._insert(bisect_left(self._starts, start), start, offset, op_offset)
        return op_offset

    def pop_run(self, start: int) -> tuple[int, int] | None:
        """(the offset behind it, the op message) of a run that begins there, which isn't kept any more."""
        return self._remove(start) if start in self._runs else None

    def pop_between(self, start: int, end: int) -> list[tuple[int, int]]:
        """(offset, op message) of all between two offsets, which aren't kept any more."""
        offsets: Iterable[int] = range(start, end)
        if end - start > len(self):
            in_runs = [n for first, (behind, _) in self._runs.items() for n in range(first, min(behind, end))]
            offsets = [offset for offset in (*self._single, *in_runs) if start <= offset < end]
        return [(offset, op_offset) for offset in offsets if (op_offset := self.pop(offset)) is not None]

    def _start_of(self, offset: int) -> int | None:
        """Where the run begins that has it."""
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
