"""Expires messages of topics with a retention of their own: `retention.ms`, `retention.bytes`.

Expired messages stay in the log until `cleaner` deletes its files. Only the `min_offset` of their queue advances. It
follows from the limits, the log and the clock, so nothing is stored.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from gantrymq.errors import StoreError
from gantrymq.store.commit_log import CommitLog
from gantrymq.store.config import UNIT_SIZE
from gantrymq.store.consume_queue import FILLER_SIZE, ConsumeQueue
from gantrymq.store.queue_table import QueueTable
from gantrymq.system.clock import monotonic

#: Time per round, in seconds.
_SLICE_S = 0.02
#: Maximum number of units that one step reads. It takes about 1 ms.
_COUNTED_AT_ONCE = 10_000
#: A unit has this many int32, and the size of the record is this one.
_INTS, _SIZE_AT = UNIT_SIZE // 4, 2


class RetentionLimits(NamedTuple):
    """The retention of each queue of a topic: largest age, in ms, and total size, in bytes. None means no limit."""

    max_age_ms: int | None
    max_bytes: int | None


#: Returns the limits of a topic, or None.
TopicLimits = Callable[[str], RetentionLimits | None]


@dataclass(slots=True)
class _Counted:
    """The messages of a queue from `first` to before `end` have `size` bytes. `last` is the unit before `end`."""

    first: int
    end: int
    size: int = 0
    last: tuple[int, int, int] | None = None


class TopicRetention:
    """Advances the `min_offset` of queues in passes over all queues.

    `confirmed_end` returns the end of a queue's visible messages. Later messages do not expire.
    """

    def __init__(
        self,
        commit_log: CommitLog,
        queues: QueueTable,
        limits: TopicLimits,
        confirmed_end: Callable[[ConsumeQueue], int],
    ) -> None:
        self._log = commit_log
        self._queues = queues
        self._limits = limits
        self._confirmed_end = confirmed_end
        #: The rest of the current pass.
        self._pass: Iterator[None] | None = None
        #: The queues with a limit in bytes. Each pass reads only the units that are new.
        self._counted: dict[ConsumeQueue, _Counted] = {}

    def run(self, now_ms: int) -> bool:
        """Continues the current pass, or starts one, for about `_SLICE_S`. Returns whether the pass is incomplete.

        Raises StoreError at the end of a pass if a queue can't be read. The other queues are up to date then.
        """
        deadline = monotonic() + _SLICE_S
        current, self._pass = self._pass or self._steps(now_ms), None
        for _ in current:
            if monotonic() >= deadline:
                self._pass = current
                return True
        return False

    def run_to_end(self, now_ms: int) -> None:
        """Runs one complete pass. Raises as `run` does."""
        self._pass = None
        for _ in self._steps(now_ms):
            pass

    def _steps(self, now_ms: int) -> Iterator[None]:
        counted: dict[ConsumeQueue, _Counted] = {}
        problem: Exception | None = None
        for queue in self._queues:
            try:
                yield from self._expire(queue, now_ms, counted)
            except (OSError, StoreError) as e:
                # The queue may have been deleted between two steps.
                if queue.exists:
                    problem = problem or e
            # After each queue, because the search by age may read records that are not in the page cache.
            yield
        self._counted = counted
        if problem is not None:
            raise StoreError(f"can't find the expired messages of all queues: {problem}") from problem

    def _expire(self, queue: ConsumeQueue, now_ms: int, counted: dict[ConsumeQueue, _Counted]) -> Iterator[None]:
        limits = self._limits(queue.topic)
        if limits is None or not queue.exists:
            queue.expire_before(0)
            return
        first = 0
        if limits.max_bytes is not None:
            counted[queue] = yield from self._count(queue, limits.max_bytes)
            first = counted[queue].first
        end = self._confirmed_end(queue)
        first = min(max(first, queue.log_min_offset), end)
        if limits.max_age_ms is not None:
            first = self._first_stored_at(queue, now_ms - limits.max_age_ms, first, end)
        queue.expire_before(first)

    # -- by age -------------------------------------------------------------------------------------------------

    def _first_stored_at(self, queue: ConsumeQueue, timestamp_ms: int, low: int, high: int) -> int:
        """Returns the first offset from `low` to `high` that was stored at or after this time, or `high`.

        The search begins where the last pass ended, because records elsewhere may not be in the page cache.
        """
        near = min(max(queue.min_offset, low), high)
        if near < high and self._is_older(queue, near, timestamp_ms):
            low, step = near + 1, 1
            while low + step < high and self._is_older(queue, low + step, timestamp_ms):
                low += step + 1
                step *= 2
            high = min(low + step, high)
        else:
            high = near
            if near > low and self._is_older(queue, near - 1, timestamp_ms):
                low = near
        while low < high:
            middle = (low + high) // 2
            if self._is_older(queue, middle, timestamp_ms):
                low = middle + 1
            else:
                high = middle
        return low

    def _is_older(self, queue: ConsumeQueue, offset: int, timestamp_ms: int) -> bool:
        unit = queue.peek(offset)
        return unit is None or self._log.store_time(unit[0]) < timestamp_ms

    # -- by size ------------------------------------------------------------------------------------------------

    def _count(self, queue: ConsumeQueue, max_bytes: int) -> Generator[None, None, _Counted]:
        """Returns the newest messages of a queue with at most `max_bytes` in total, and at least one message."""
        counted = self._counted.get(queue)
        if counted is None or counted.last is None or counted.last != queue.peek(counted.end - 1):
            # The queue is new, or its end was cut off.
            counted = _Counted(queue.max_offset, queue.max_offset)
        while counted.end < queue.max_offset:
            sizes = _sizes(queue.units(counted.end, _COUNTED_AT_ONCE))
            counted.size += sum(sizes)
            # Without units, the file is missing.
            following = counted.end + len(sizes) if sizes else queue.next_file_offset(counted.end)
            counted.end = min(following, queue.max_offset)
            yield
        counted.last = queue.peek(counted.end - 1)
        while counted.size > max_bytes and counted.first < counted.end - 1:
            sizes = _sizes(queue.units(counted.first, min(counted.end - 1 - counted.first, _COUNTED_AT_ONCE)))
            if not sizes:
                # These messages were deleted with their files.
                counted.first, counted.size = counted.end, 0
                break
            for size in sizes:
                if counted.size <= max_bytes:
                    break
                counted.size -= size
                counted.first += 1
            yield
        # Older messages fit if the queue is new or the limit was raised. Otherwise this reads one unit.
        at_once = 1
        while counted.first > queue.log_min_offset and (sizes := _sizes(queue.units_up_to(counted.first, at_once))):
            total = sum(sizes)
            if counted.size + total <= max_bytes:
                counted.size += total
                counted.first -= len(sizes)
            else:
                for size in reversed(sizes):
                    if counted.size + size > max_bytes and counted.first < counted.end:
                        return counted
                    counted.size += size
                    counted.first -= 1
            at_once = _COUNTED_AT_ONCE
            yield
        return counted


def _sizes(units: bytes) -> array[int]:
    """Returns the sizes of the records, 0 for fillers. An array is several times as fast as `Struct`."""
    sizes = array("i", units)[_SIZE_AT::_INTS]
    if sys.byteorder == "little":
        sizes.byteswap()
    return array("i", [size % FILLER_SIZE for size in sizes]) if FILLER_SIZE in sizes else sizes
