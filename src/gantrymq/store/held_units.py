"""Queue units of a slave's records, and those that nobody may see yet.

In controller mode a master says up to which physical offset all brokers that count have its log (the confirm offset).
What is behind it may be cut off again when another becomes master, so who reads from a slave doesn't get to see it:
its units wait here, and Java's slave makes them that late, too (`ReputMessageService.getReputEndOffset`). They are in
memory only; until they are in their queues the checkpoint says nothing of their records, so recovery makes them.
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
    """Of one queue, those of records that came together; the next one gets the queue offset `next_offset`."""

    __slots__ = ("data", "next_offset", "queue")

    def __init__(self, queue: ConsumeQueue, next_offset: int, data: bytes = b"") -> None:
        self.queue = queue
        self.next_offset = next_offset + len(data) // UNIT_SIZE
        self.data = bytearray(data)

    def __len__(self) -> int:
        return len(self.data) // UNIT_SIZE

    def count_before(self, physical_offset: int) -> int:
        """How many belong to records that end by then."""
        count = 0
        for place, size, _ in UNIT.iter_unpack(self.data):
            if place + size > physical_offset:
                break
            count += 1
        return count


def make_room(all_units: Iterable[Units]) -> None:
    """Raises StoreBusy, StoreFull or StoreError where a queue has no room; what all of them need is being made then."""
    busy: StoreBusy | None = None
    for units in all_units:
        try:
            units.queue.make_room_for(len(units))
        except StoreBusy as e:
            busy = e
    if busy is not None:
        raise busy


def write_units(all_units: Sequence[Units]) -> None:
    """Writes them behind the ends of their queues. Raises StoreError; then there are none."""
    for number, units in enumerate(all_units):
        try:
            units.queue.write_next(units.data)
        except BaseException:
            clear_units(all_units[:number])
            raise


def clear_units(all_units: Sequence[Units]) -> None:
    """Takes back what `write_units` has written."""
    for units in all_units:
        with suppress(StoreError):
            units.queue.write_next(bytes(len(units.data)))


class HeldUnits:
    """Those behind `until`; while that is None nothing is held."""

    def __init__(self, commit_log: CommitLog, queues: QueueTable) -> None:
        self.until: int | None = None
        self._log = commit_log
        self._queues = queues
        #: (where the first record begins, where the last one ends, units), in the log's order.
        self._steps: deque[tuple[int, int, list[Units]]] = deque()
        #: Of queues whose last units are here.
        self._next_offsets: dict[ConsumeQueue, int] = {}

    def next_offset(self, queue: ConsumeQueue) -> int:
        """The queue offset of the next record."""
        return self._next_offsets.get(queue, queue.max_offset)

    def hold(self, begin: int, end: int, all_units: list[Units]) -> None:
        """Takes the units of [begin, end) of the log; to be called before that counts as written."""
        self._steps.append((begin, end, all_units))
        for units in all_units:
            self._next_offsets[units.queue] = units.next_offset
        self._log.units_until = self._steps[0][0]

    def show(self, told: dict[ConsumeQueue, None], until: int = _ALL) -> None:
        """Puts those of records that end by then into their queues, which `told` gets.

        Raises StoreBusy, StoreFull, StoreError; then it is to be called again.
        """
        try:
            while self._steps:
                _, end, all_units = self._steps[0]
                # A topic may have been deleted meanwhile.
                all_units = [units for units in all_units if self._is_there(units.queue)]
                if end <= until:
                    make_room(all_units)
                for units in all_units:
                    self._show(units, len(units) if end <= until else units.count_before(until), told)
                if end > until:
                    break
                self._steps.popleft()
        finally:
            self._log.units_until = self._steps[0][0] if self._steps else None
            if not self._steps:
                self._next_offsets.clear()

    def _is_there(self, queue: ConsumeQueue) -> bool:
        return self._queues.find(queue.topic, queue.queue_id) is queue

    def _show(self, units: Units, count: int, told: dict[ConsumeQueue, None]) -> None:
        queue, size = units.queue, count * UNIT_SIZE
        if count:
            queue.make_room_for(count)
            queue.write_next(units.data[:size])
            queue.count_written(count)
            self._queues.mark_dirty(queue)
            del units.data[:size]
            told[queue] = None

    def drop(self) -> None:
        """Their records are gone."""
        self._steps.clear()
        self._next_offsets.clear()
        self._log.units_until = None
