"""A queue of a topic: 20-byte units that point into the commit log (`store/ConsumeQueue`).

    int64 physical offset | int32 size of the record | int64 tags code

The n-th unit belongs to the message with queue offset n; it stands at n * 20 in files of a fixed size, whose names are
the place of their first byte. Behind the last unit all is zero. Where units are missing, because the queue begins in
the middle of a file, there are fillers: `0 | 2147483647 | 0`.
"""

from __future__ import annotations

import logging
from pathlib import Path
from struct import Struct

from gantrymq.errors import StoreError
from gantrymq.store.config import UNIT_SIZE
from gantrymq.store.mapped_file import MappedFile, list_files, sync_directory
from gantrymq.store.queue_files import RESERVE, QueueFiles
from gantrymq.store.queue_mappings import QueueMappings
from gantrymq.store.room_maker import RoomMaker
from gantrymq.system import files

log = logging.getLogger(__name__)

UNIT = Struct(">qiq")
FILLER_SIZE = (1 << 31) - 1
NO_UNIT = bytes(UNIT_SIZE)
_FILLER = UNIT.pack(0, FILLER_SIZE, 0)
#: One read finds the end of most queues.
_PROBE = 204 * UNIT_SIZE


class ConsumeQueue(QueueFiles):
    """One queue. `max_offset` is the queue offset that the next message gets, `min_offset` that of the oldest."""

    __slots__ = ("_flushed_offset", "dirty", "min_offset", "queue_id", "recovered_end", "topic", "topic_bytes")

    def __init__(
        self, topic: str, queue_id: int, directory: Path, file_size: int, mappings: QueueMappings, rooms: RoomMaker
    ) -> None:
        super().__init__(directory, file_size, mappings, rooms)
        self.topic = topic
        self.topic_bytes = topic.encode()
        self.queue_id = queue_id
        self.min_offset = 0
        #: `max_offset` after a crash, when the store was opened; None when it was closed before.
        self.recovered_end: int | None = None
        #: Is among those that the flusher looks at.
        self.dirty = False
        self._flushed_offset = 0

    def __repr__(self) -> str:
        return f"<ConsumeQueue {self.topic}-{self.queue_id} {self.min_offset}..{self.max_offset}>"

    # -- reading ------------------------------------------------------------------------------------------------

    def units(self, offset: int, count: int) -> bytes:
        """The units from a queue offset on, at most `count` and no more than one file has; b"" where none are."""
        count = min(count, self.max_offset - offset)
        if offset < 0 or count <= 0:
            return b""
        base, at = self._place(offset)
        file = self._files.get(base)
        if file is None:
            return b""
        return self._map(file)[at : at + count * UNIT_SIZE]

    def unit(self, offset: int) -> tuple[int, int, int] | None:
        """(physical offset, size, tags code) at a queue offset; None where there is none."""
        unit = self.units(offset, 1)
        return UNIT.unpack(unit) if unit else None

    def peek(self, offset: int) -> tuple[int, int, int] | None:
        """As `unit`, but without mapping the file: for one look at each of many queues."""
        if not 0 <= offset < self.max_offset:
            return None
        base, at = self._place(offset)
        file = self._files.get(base)
        if file is None:
            return None
        if file.mapping is not None:
            return UNIT.unpack_from(file.mapping, at)
        if self._gone:
            raise StoreError(self._gone)
        try:
            fd = files.open(file.path, files.O_RDONLY | files.O_CLOEXEC)
            try:
                data = files.pread(fd, UNIT_SIZE, at)
            finally:
                files.close(fd)
        except OSError as e:
            raise StoreError(f"can't read {file.path}: {e}") from e
        return UNIT.unpack(data) if len(data) == UNIT_SIZE else None

    @property
    def unflushed(self) -> int:
        """Bytes that may not be on the disk."""
        return (self.max_offset - self._flushed_offset) * UNIT_SIZE

    # -- writing ------------------------------------------------------------------------------------------------

    def skip_to(self, offset: int) -> None:
        """The next unit gets a later queue offset: places before it, of the first file or behind the last unit, get
        fillers. Raises as `make_room` does; it may be tried again.
        """
        is_empty = self.min_offset == self.max_offset
        if not self.max_offset:
            self.max_offset = self.min_offset = self._flushed_offset = self._place(offset)[0] // UNIT_SIZE
        count = offset - self.max_offset
        if count:
            self.write_behind(_FILLER * count)
            self.count_written(count)
        if is_empty:
            self.min_offset = offset

    def write_next(self, units: bytes | bytearray) -> None:
        """As `write_behind`; quicker where `make_room_for` has made room."""
        if self.position + len(units) <= self.limit:
            self.mapping[self.position : self.position + len(units)] = units  # type: ignore[index]
        else:
            self.write_behind(units)

    def write_behind(self, units: bytes | bytearray) -> None:
        """Writes units behind the last one, in as many files as they need; nobody sees them before `count_written`.

        Raises as `make_room` does. What is there then points to no record, and recovery drops it.
        """
        count = len(units) // UNIT_SIZE
        self._need_room(count)
        pieces = self._pieces(self.max_offset + count)
        for base, _, _ in pieces:
            # Before anything is written: a file that can't be mapped would leave units in the one before it.
            self._map(self._files[base])
        begin = 0
        for base, at, size in pieces:
            self._map(self._files[base])[at : at + size] = units[begin : begin + size]
            begin += size

    def count_written(self, count: int) -> None:
        """The units that `write_behind` has written are those of messages."""
        self.max_offset += count
        self.position += count * UNIT_SIZE
        if self.position > self.limit:
            # The next one looks for its place itself.
            self.mapping = None
            self.position = self.limit = 0

    def flush(self) -> None:
        """Brings the units to the disk. Called by the flusher's thread; raises OSError, SyncFailed."""
        offset, end = self._flushed_offset, self.max_offset
        if self._gone or offset >= end:
            return
        base = self._place(offset)[0]
        while base < end * UNIT_SIZE:
            file = self._files.get(base)
            if file is not None:
                try:
                    file.sync()
                    if offset * UNIT_SIZE <= base:
                        sync_directory(self._directory)
                        if base == min(self._files):
                            # The queue is new, and so may be its directory and its topic's.
                            sync_directory(self._directory.parent)
                            sync_directory(self._directory.parent.parent)
                except FileNotFoundError:
                    # Deleted meanwhile: the queue, or this file.
                    if not self._gone and base in self._files:
                        raise
            base += self._file_size
        self._flushed_offset = end

    def forget_files(self) -> list[MappedFile]:
        """The queue is deleted: later use raises a StoreError. Returns its files, for who unmaps and deletes them."""
        return self._forget_files(f"queue {self.queue_id} of the topic {self.topic} was deleted")

    def log_moved(self, min_physical_offset: int) -> None:
        """The log begins there now: sets `min_offset`, and deletes the files of which no unit is left, but the last.

        Raises StoreError when one can't be deleted; it may be tried again.
        """
        self.correct_min_offset(min_physical_offset)
        last = next(reversed(self._files), 0)
        for base in [base for base in self._files if base + self._file_size <= self.min_offset * UNIT_SIZE]:
            if base != last:
                self._delete(base)

    # -- opening and recovery -----------------------------------------------------------------------------------

    def load(self) -> int | None:
        """Finds the files and the last unit. Returns the queue offset from which on units may be missing, or None.

        Raises StoreError when the files can't be of this size.
        """
        lengths = list_files(self._directory)
        for base, length in lengths.items():
            file = MappedFile(self._directory, base, self._file_size, read_ahead=False)
            if base % self._file_size or length > self._file_size:
                raise StoreError(
                    f"{file.path} has {length} bytes, mappedFileSizeConsumeQueue is {self._file_size}: set it to the "
                    "size that the store was made with, or delete the queue's directory to have it rebuilt from the log"
                )
            self._files[base] = file
        for base in reversed(lengths):
            used = _used(self._files[base].path, lengths[base])
            self.max_offset = self._flushed_offset = base // UNIT_SIZE + used
            if used:
                break
        expected = min(lengths, default=0)
        for base, length in lengths.items():
            if base != expected:
                log.warning("%s lacks the file %020d", self._directory, expected)
                return expected // UNIT_SIZE
            if length < self._file_size:
                log.warning("%s has %d bytes in place of %d", self._files[base].path, length, self._file_size)
                return base // UNIT_SIZE + _used(self._files[base].path, length)
            expected = base + self._file_size
        return None

    def has(self, offset: int, units: bytes) -> bool:
        """Whether these units stand at that queue offset and behind it."""
        at = 0
        while at < len(units):
            found = self.units(offset + at // UNIT_SIZE, (len(units) - at) // UNIT_SIZE)
            if not found or units[at : at + len(found)] != found:
                return False
            at += len(found)
        return True

    def restore_behind(self, units: bytes) -> None:
        """Writes units behind the last one."""
        while units:
            # As far as a file goes.
            count = self.next_file_offset(self.max_offset) - self.max_offset
            written, units = units[: count * UNIT_SIZE], units[count * UNIT_SIZE :]
            self._write(self.max_offset, written)
            self.max_offset += len(written) // UNIT_SIZE

    def restore(self, offset: int, physical_offset: int, size: int, tags_code: int) -> None:
        """Writes a unit at any queue offset; what is skipped before it becomes fillers."""
        if offset > self.max_offset:
            filled = self.max_offset if self._files else self._place(offset)[0] // UNIT_SIZE
            while filled < offset:
                # As far as a file goes.
                count = min(offset, self.next_file_offset(filled)) - filled
                self._write(filled, _FILLER * count)
                filled += count
        self._write(offset, UNIT.pack(physical_offset, size, tags_code))
        self.max_offset = max(self.max_offset, offset + 1)

    def _write(self, offset: int, units: bytes) -> None:
        base, at = self._place(offset)
        file = self._file(base)
        mapping = self._map(file)
        if file.reserved < at + len(units):
            file.reserve(at, at + max(len(units), RESERVE))
        mapping[at : at + len(units)] = units

    def unflushed_from(self, offset: int) -> None:
        """The units from there on may not be on the disk."""
        self._flushed_offset = min(self._flushed_offset, offset)

    def clear(self) -> None:
        """Drops all units. Raises StoreError."""
        for base in reversed(list(self._files)):
            self._delete(base)
        self.max_offset = self._flushed_offset = self._needed = 0

    def cut(self, offset: int) -> None:
        """Drops the units from a queue offset on, and makes what follows zero. Raises StoreError."""
        self.unmap()
        end = max(offset, self.first_offset)
        first = min(self._files, default=0)
        for base in [base for base in reversed(self._files) if base >= end * UNIT_SIZE and base > first]:
            self._delete(base)
        if (file := self._files.get(self._place(end)[0])) is not None:
            file.clear_from(self._place(end)[1])
        self.max_offset = end
        self._flushed_offset = min(self._flushed_offset, end)
        self._needed = 0

    def drop_from(self, physical_offset: int) -> None:
        """Drops the units of records from there on, while no thread makes or flushes files. Raises StoreError."""
        offset = self.count_before(physical_offset)
        if offset < self.max_offset:
            self.cut(offset)
            self.recovered_end = offset
            self.min_offset = min(self.min_offset, offset)

    def count_before(self, physical_offset: int) -> int:
        """The queue offset of the first unit that isn't before a physical offset; fillers count as before."""
        low, high = self.first_offset, self.max_offset
        last = self.peek(high - 1)
        if last is not None and (last[1] == FILLER_SIZE or last[0] < physical_offset):
            return high
        while low < high:
            middle = (low + high) // 2
            unit = self.peek(middle)
            if unit is None or unit[1] == FILLER_SIZE or unit[0] < physical_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def correct_min_offset(self, min_physical_offset: int) -> None:
        """Sets `min_offset` to the first unit whose record the log still has (`ConsumeQueue.correctMinOffset`)."""
        first = self.peek(self.first_offset)
        if first is not None and first[0] >= min_physical_offset and first[1] != FILLER_SIZE:
            self.min_offset = self.first_offset
        else:
            self.min_offset = self.count_before(min_physical_offset)


def _used(path: Path, length: int) -> int:
    """How many units a file has before the first that is zero, in a file that is zero behind its last unit."""
    fd = files.open(path, files.O_RDONLY | files.O_CLOEXEC)
    try:
        probe = files.pread(fd, min(length, _PROBE), 0)
        low, high = 0, length // UNIT_SIZE
        for at in range(0, len(probe) - UNIT_SIZE + 1, UNIT_SIZE):
            if probe[at : at + UNIT_SIZE] == NO_UNIT:
                return low
            low += 1
        while low < high:
            middle = (low + high) // 2
            if files.pread(fd, UNIT_SIZE, middle * UNIT_SIZE) == NO_UNIT:
                high = middle
            else:
                low = middle + 1
        return low
    finally:
        files.close(fd)


def units_before(units: bytes, physical_offset: int) -> bytes:
    """Those of the first ones whose records end by then."""
    count = len(units) // UNIT_SIZE
    while count:
        place, size, _ = UNIT.unpack_from(units, (count - 1) * UNIT_SIZE)
        if place + size <= physical_offset:
            break
        count -= 1
    return units[: count * UNIT_SIZE]
