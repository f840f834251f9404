"""Queue units of a slave's records, and units that are not confirmed yet.

In controller mode, a master reports the confirm offset: the physical offset up to which all in-sync replicas have the
log. Records after it can be truncated if another broker becomes master, so consumers of a slave must not see them.
Until they are confirmed, their units are pending in this module. Java's slave also creates these units late
(`ReputMessageService.getReputEndOffset`). Pending units are in memory only. The checkpoint does not include their
records, so recovery rebuilds the units.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress

from gantrymq.errors import StoreBusy, StoreError
from gantrymq.store.commit_log import CommitLog
from gantrymq.store.config import UNIT_SIZE
from gantrymq.store.consume_queue import UNIT, ConsumeQueue
from gantrymq.store.queue_table import QueueTable

_ALL = 1 << 63


class Units:
    """Units of one queue whose records arrived together. `next_offset` is the queue offset after the last unit."""

    __slots__ = ("data", "next_offset", "queue")

    def __init__(self, queue: ConsumeQueue, next_offset: int, data: bytes = b"") -> None:
        self.queue = queue
        self.next_offset = next_offset + len(data) // UNIT_SIZE
        self.data = bytearray(data)

    def __len__(self) -> int:
        return len(self.data) // UNIT_SIZE

    def count_before(self, physical_offset: int) -> int:
        """Returns the number of units whose records end at or before this physical offset."""
        count = 0
        for place, size, _ in UNIT.iter_unpack(self.data):
            if place + size > physical_offset:
                break
            count += 1
        return count


def preallocate(all_units: Iterable[Units]) -> None:
    """Ensures that each queue has space for its units. Raises StoreBusy, StoreFull or StoreError.

    If it raises StoreBusy, preallocation of all missing space has been requested.
    """
    busy: StoreBusy | None = None
    for units in all_units:
        try:
            units.queue.preallocate_for(len(units))
        except StoreBusy as e:
            busy = e
    if busy is not None:
        raise busy


def write_units(all_units: Sequence[Units]) -> None:
    """Writes units after the ends of their queues. If it raises StoreError, no unit was written."""
    for number, units in enumerate(all_units):
        try:
            units.queue.write_next(units.data)
        except BaseException:
            clear_units(all_units[:number])
            raise


def clear_units(all_units: Sequence[Units]) -> None:
    """Undoes `write_units`."""
    for units in all_units:
        with suppress(StoreError):
            units.queue.write_next(bytes(len(units.data)))


class UnconfirmedUnits:
    """The pending units of records that end after `until`. If `until` is None, no units are pending."""

    def __init__(self, commit_log: CommitLog, queues: QueueTable) -> None:
        self.until: int | None = None
        self._log = commit_log
        self._queues = queues
        #: (start of the first record, end of the last record, units), in the order of the log.
        self._steps: deque[tuple[int, int, list[Units]]] = deque()
        #: Next queue offset of each queue that has pending units.
        self._next_offsets: dict[ConsumeQueue, int] = {}

    def next_offset(self, queue: ConsumeQueue) -> int:
        """Returns the queue offset of the next record."""
        return self._next_offsets.get(queue, queue.max_offset)

    def hold(self, begin: int, end: int, all_units: list[Units]) -> None:
        """Adds the units of the log range [begin, end). Call it before the log's position advances."""
        self._steps.append((begin, end, all_units))
        for units in all_units:
            self._next_offsets[units.queue] = units.next_offset
        self._log.units_until = self._steps[0][0]

    def show(self, changed: dict[ConsumeQueue, None], until: int = _ALL) -> None:
        """Moves the units of records that end at or before `until` to their queues. Adds these queues to `changed`.

        Raises StoreBusy, StoreFull or StoreError; the caller then calls it again.
        """
        try:
            while self._steps:
                _, end, all_units = self._steps[0]
                # The topic may have been deleted in the meantime.
                all_units = [units for units in all_units if self._is_there(units.queue)]
                if end <= until:
                    preallocate(all_units)
                for units in all_units:
                    self._show(units, len(units) if end <= until else units.count_before(until), changed)
                if end > until:
                    break
                self._steps.popleft()
        finally:
            self._log.units_until = self._steps[0][0] if self._steps else None
            if not self._steps:
                self._next_offsets.clear()

    def _is_there(self, queue: ConsumeQueue) -> bool:
        return self._queues.find(queue.topic, queue.queue_id) is queue

    def _show(self, units: Units, count: int, changed: dict[ConsumeQueue, None]) -> None:
        queue, size = units.queue, count * UNIT_SIZE
        if count:
            queue.preallocate_for(count)
            queue.write_next(units.data[:size])
            queue.count_written(count)
            self._queues.mark_dirty(queue)
            del units.data[:size]
            changed[queue] = None

    def drop(self) -> None:
        """Discards all pending units, because their records were deleted."""
        self._steps.clear()
        self._next_offsets.clear()
        self._log.units_until = None
