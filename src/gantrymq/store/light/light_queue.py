"""One light queue. It has the interface of a consume queue, but no files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.errors import StoreError
from gantrymq.protocol.multi_dispatch import LIGHT_QUEUE_ID, MULTI_DISPATCH
from gantrymq.store.config import UNIT_SIZE
from gantrymq.store.consume_queue import FILLER_SIZE, UNIT, ConsumeQueue, Unit
from gantrymq.store.preallocation import Preallocation
from gantrymq.store.queue_mappings import QueueMappings

if TYPE_CHECKING:
    from gantrymq.store.light.unit_database import UnitDatabase

_pack_unit = UNIT.pack
_FILLER = UNIT.pack(0, FILLER_SIZE, 0)


class LightQueue(ConsumeQueue):
    """The light queue `name`. Its units are in the database; the last ones are in memory until they are committed.

    `row_id` identifies the queue in the database. It is None until the queue has its first unit.
    """

    is_light = True

    __slots__ = ("__weakref__", "_database", "_tail", "_tail_offset", "log_begin", "row_id")

    def __init__(
        self,
        name: str,
        database: UnitDatabase,
        mappings: QueueMappings,
        preallocation: Preallocation,
    ) -> None:
        super().__init__(name, LIGHT_QUEUE_ID, database.path.parent, UNIT_SIZE, mappings, preallocation)
        self._database = database
        self.row_id: int | None = None
        #: The start of the log for which `min_offset` was computed.
        self.log_begin = 0
        #: The units that are not committed, and the queue offset of the first one.
        self._tail = bytearray()
        self._tail_offset = 0

    def __repr__(self) -> str:
        return f"<LightQueue {self.topic} {self.min_offset}..{self.max_offset}>"

    # -- reading ------------------------------------------------------------------------------------------------

    @property
    def may_have_older(self) -> bool:
        """False, because tiered storage has no light queues."""
        return False

    @property
    def first_offset(self) -> int:
        return self.min_offset

    def next_file_offset(self, offset: int) -> int:
        """Returns the queue offset of the next unit. After a gap, a read continues there."""
        found = None if self.row_id is None else self._database.next_offset(self.row_id, offset)
        return max(self._tail_offset, offset) if found is None else found

    def units(self, offset: int, count: int) -> bytes:
        """Returns up to `count` units from a queue offset on, all from the database or all from memory."""
        count = min(count, self.max_offset - offset)
        if offset < 0 or count <= 0 or self.row_id is None:
            return b""
        begin = self._tail_offset
        if offset >= begin:
            at = (offset - begin) * UNIT_SIZE
            return bytes(self._tail[at : at + count * UNIT_SIZE])
        found = self._database.units(self.row_id, offset, min(offset + count, begin))
        packed = bytearray()
        following = offset
        for queue_offset, *unit in found:
            packed += _FILLER * (queue_offset - following)  # at most `count`
            packed += _pack_unit(*unit)
            following = queue_offset + 1
        return bytes(packed[: count * UNIT_SIZE])

    def _read(self, offset: int, count: int) -> bytes:
        return self.units(offset, count)

    def preallocate(self) -> None:
        """Raises StoreError, because only messages of other topics are dispatched to a light queue."""
        raise StoreError(f"{self.topic} is a light queue: send to a topic, and name the queue in {MULTI_DISPATCH}")

    # -- writing ------------------------------------------------------------------------------------------------

    def begin_at(self, row_id: int | None, offset: int) -> None:
        """Sets the next offset. The units before it are in the database."""
        self.row_id = row_id
        self._tail.clear()
        self._tail_offset = self.max_offset = offset

    def add(self, unit: Unit) -> None:
        """Adds the next unit."""
        self._tail += _pack_unit(*unit)
        self.max_offset += 1

    def committed(self, end: int) -> bool:
        """Removes the units before the queue offset `end` from memory, because the database has them.

        Returns whether none are left.
        """
        del self._tail[: (end - self._tail_offset) * UNIT_SIZE]
        self._tail_offset = end
        return not self._tail

    def drop_tail(self) -> None:
        """Drops the units that are not committed."""
        self._tail.clear()
        self.max_offset = self._tail_offset

    @property
    def is_stale(self) -> bool:
        """Whether the offsets must be read from the database again."""
        return self.log_begin < 0

    def mark_stale(self) -> None:
        """Makes `is_stale` true, until `correct_min_offset` is called."""
        self.log_begin = -1

    def correct_min_offset(self, min_physical_offset: int, first: Unit | None = None) -> None:
        """Updates `min_offset` to the start of the log."""
        self.min_offset = self.log_min_offset = self._count_before(min_physical_offset)
        self.log_begin = min_physical_offset

    def set_recovered(self, physical_offset: int | None) -> None:
        """Sets `recovered_end` to the end that the queue has in a log that ends at this offset; None removes it."""
        self.recovered_end = None if physical_offset is None else self._count_before(physical_offset)

    def _count_before(self, physical_offset: int) -> int:
        """Returns the queue offset of the first unit at or after a physical offset; the next offset without one."""
        found = None if self.row_id is None else self._database.first_offset(self.row_id, physical_offset)
        if found is None:
            found = self._tail_offset + sum(unit[0] < physical_offset for unit in UNIT.iter_unpack(self._tail))
        return found

    def begin_after_gap(self, offset: int) -> None:
        """Makes `offset` the first and next offset of a queue without units."""
        self.begin_at(self.row_id, offset)
        self.min_offset = self.log_min_offset = offset

    def begin_after_deletion(self) -> None:
        """Makes the queue empty, with the next offset 0."""
        self.begin_at(None, 0)
        self.min_offset = self.log_min_offset = 0
        if self.recovered_end is not None:
            self.recovered_end = 0
