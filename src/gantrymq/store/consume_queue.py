"""A consume queue: 20-byte units that point into the commit log (`store/ConsumeQueue`).

    int64 physical offset | int32 size of the record | int64 tags code

The unit of the message with queue offset n is at byte n * 20. The files have a fixed size and are named after the
position of their first byte. After the last unit, all bytes are zero. If a queue starts in the middle of a file, the
units before it are fillers: `0 | 2147483647 | 0`.
"""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from struct import Struct
from typing import ClassVar, NamedTuple

from gantrymq.errors import StoreError
from gantrymq.store.compaction.compaction_log import CompactionLog
from gantrymq.store.config import UNIT_SIZE
from gantrymq.store.mapped_file import MappedFile, list_files, sync_directory
from gantrymq.store.preallocation import Preallocation
from gantrymq.store.queue_files import RESERVE, QueueFiles
from gantrymq.store.queue_mappings import QueueMappings
from gantrymq.system import files

log = logging.getLogger(__name__)

UNIT = Struct(">qiq")
FILLER_SIZE = (1 << 31) - 1
NO_UNIT = bytes(UNIT_SIZE)
_FILLER = UNIT.pack(0, FILLER_SIZE, 0)
#: Size of the first read to find the last unit, in bytes. It is enough for most queues. With a whole page, one call of
#: `lseek` finds that no data follows.
_PROBE = 4096
#: A loaded queue keeps this number of units, so that recovery reads few files again.
LAST_UNITS = 16
#: `_has_data` reads at most this many bytes of a file.
_MOST_READ = 64 * 1024

#: Physical offset, size, tags code.
Unit = tuple[int, int, int]


class LoadedQueue(NamedTuple):
    """The part of a queue's files that `ConsumeQueue.load` has read.

    The fields are: the last units, `LAST_UNITS` at most; the last and the first unit, None if there is none or it was
    not read; whether data may follow the last unit; the queue offset from which units may be missing, or None.
    """

    units: bytes
    last: Unit | None
    first: Unit | None
    has_tail: bool
    lacks: int | None


class ConsumeQueue(QueueFiles):
    """The consume queue of a topic and queue id, with messages from `min_offset` to before `max_offset`.

    `log_min_offset` is the first offset whose record is still in the log. `min_offset` is greater if the topic has a
    retention of its own and messages have expired.
    """

    __slots__ = (
        "_flushed_offset",
        "_retained_from",
        "compacted",
        "dirty",
        "log_min_offset",
        "min_offset",
        "queue_id",
        "recovered_end",
        "topic",
        "topic_bytes",
    )
    #: Whether this is a light queue.
    is_light: ClassVar[bool] = False

    def __init__(
        self,
        topic: str,
        queue_id: int,
        directory: Path | str,
        file_size: int,
        mappings: QueueMappings,
        preallocation: Preallocation,
    ) -> None:
        super().__init__(str(directory), file_size, mappings, preallocation)
        self.topic = topic
        self.topic_bytes = topic.encode()
        self.queue_id = queue_id
        self.min_offset = self.log_min_offset = 0
        #: The messages of a compaction topic that were copied. `min_offset` is then that of the first one of these.
        self.compacted: CompactionLog | None = None
        #: See `expire_before`.
        self._retained_from = 0
        #: `max_offset` when the store was opened after a crash, or 0 if the queue was created in the two minutes
        #: after; None after a clean shutdown.
        self.recovered_end: int | None = None
        #: Whether the queue is in the list of queues to flush.
        self.dirty = False
        self._flushed_offset = 0

    def __repr__(self) -> str:
        return f"<ConsumeQueue {self.topic}-{self.queue_id} {self.min_offset}..{self.max_offset}>"

    # -- reading ------------------------------------------------------------------------------------------------

    def units(self, offset: int, count: int) -> bytes:
        """Returns up to `count` units from a queue offset on, of one file only; b"" if there are none."""
        count = min(count, self.max_offset - offset)
        if offset < 0 or count <= 0:
            return b""
        base, at = self._place(offset)
        file = self._files.get(base)
        if file is None:
            return b""
        return self._map(file)[at : at + count * UNIT_SIZE]

    def units_up_to(self, offset: int, count: int) -> bytes:
        """Returns up to `count` units before a queue offset, of one file only; b"" if there are none."""
        begin = max(offset - count, self._place(offset - 1)[0] // UNIT_SIZE)
        return self.units(begin, offset - begin)

    def unit(self, offset: int) -> Unit | None:
        """Returns (physical offset, size, tags code) of a unit; None if there is none."""
        unit = self.units(offset, 1)
        return UNIT.unpack(unit) if unit else None

    def peek(self, offset: int) -> Unit | None:
        """Does the same as `unit` without mapping the file. Meant for reads of one unit from each of many queues."""
        unit = self._read(offset, 1)
        return UNIT.unpack(unit) if len(unit) == UNIT_SIZE else None

    def peek_units(self, offset: int, count: int) -> bytes:
        """Does the same as `units` without mapping the file. Raises StoreError."""
        units = self._read(offset, count)
        return units[: len(units) // UNIT_SIZE * UNIT_SIZE]

    def _read(self, offset: int, count: int) -> bytes:
        """Does the same as `units` without mapping the file. In a file that is too short, the last unit is cut off."""
        count = min(count, self.max_offset - offset)
        if offset < 0 or count <= 0:
            return b""
        base, at = self._place(offset)
        file = self._files.get(base)
        if file is None:
            return b""
        if file.mapping is not None:
            return file.mapping[at : at + count * UNIT_SIZE]
        if self._gone:
            raise StoreError(self._gone)
        try:
            fd = files.open(file.path_text, files.O_RDONLY | files.O_CLOEXEC)
            try:
                return files.pread(fd, count * UNIT_SIZE, at)
            finally:
                files.close(fd)
        except OSError as e:
            raise StoreError(f"can't read {file.path}: {e}") from e

    @property
    def has_messages(self) -> bool:
        """Whether the log has messages of the queue, expired or not."""
        return self.log_min_offset < self.max_offset

    @property
    def unflushed(self) -> int:
        """Number of bytes that may not be on disk."""
        return (self.max_offset - self._flushed_offset) * UNIT_SIZE

    # -- writing ------------------------------------------------------------------------------------------------

    def skip_to(self, offset: int) -> None:
        """Writes fillers up to `offset`, the next unit's queue offset. Raises as `preallocate`; can be repeated."""
        is_empty = not self.has_messages
        if not self.max_offset:
            self.log_min_offset = self.min_offset = self._place(offset)[0] // UNIT_SIZE
            self.max_offset = self._flushed_offset = self.min_offset
        count = offset - self.max_offset
        if count:
            self.write_behind(_FILLER * count)
            self.count_written(count)
        if is_empty:
            self.min_offset = self.log_min_offset = offset

    def write_next(self, units: bytes | bytearray) -> None:
        """Writes units as `write_behind` does. It is faster after `preallocate_for`."""
        if self.position + len(units) <= self.limit:
            self.mapping[self.position : self.position + len(units)] = units  # type: ignore[index]
        else:
            self.write_behind(units)

    def write_behind(self, units: bytes | bytearray) -> None:
        """Writes units after the last one, across files if needed. `count_written` makes them visible.

        Raises as `preallocate` does. After an error, some units may be written. They point to no record, and recovery
        drops them.
        """
        count = len(units) // UNIT_SIZE
        self._need_file(count)
        pieces = self._pieces(self.max_offset + count)
        for base, _, _ in pieces:
            # Maps all files first. If a later file failed, the earlier files would contain partial data.
            self._map(self._files[base])
        begin = 0
        for base, at, size in pieces:
            self._map(self._files[base])[at : at + size] = units[begin : begin + size]
            begin += size

    def count_written(self, count: int) -> None:
        """Makes the units that `write_behind` has written visible."""
        self.max_offset += count
        self.position += count * UNIT_SIZE
        if self.position > self.limit:
            # The next write must look up its file.
            self.mapping = None
            self.position = self.limit = 0

    def flush(self) -> None:
        """Flushes the units to disk. Called by the flusher's thread. Raises OSError or SyncFailed."""
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
                        directory = Path(self._directory)
                        sync_directory(directory)
                        if base == min(self._files):
                            # The queue is new; its directory and that of its topic may be new, too.
                            sync_directory(directory.parent)
                            sync_directory(directory.parent.parent)
                except FileNotFoundError:
                    # The queue or this file was deleted in the meantime.
                    if not self._gone and base in self._files:
                        raise
            base += self._file_size
        self._flushed_offset = end

    def forget_files(self) -> list[MappedFile]:
        """Marks the queue as deleted, so that later use raises StoreError.

        Returns its files; the caller unmaps and deletes them.
        """
        return self._forget_files(f"queue {self.queue_id} of the topic {self.topic} was deleted")

    def log_moved(self, min_physical_offset: int) -> None:
        """Adapts the queue to a new start of the log: updates `min_offset` and deletes files without live units.

        The last file always stays. So do the units of expired messages whose records are in the log: recovery and
        `verify` expect a unit for each record. Raises StoreError if a file can't be deleted; the caller may try again.
        """
        self.correct_min_offset(min_physical_offset)
        last = next(reversed(self._files), 0)
        for base in [base for base in self._files if base + self._file_size <= self.log_min_offset * UNIT_SIZE]:
            if base != last:
                self._delete(base)

    # -- opening and recovery -----------------------------------------------------------------------------------

    def load(self, *, is_closed: bool) -> LoadedQueue:
        """Finds the files and the last unit. If the store was closed, no data follows the last unit.

        Raises StoreError if the files don't have the configured size.
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
        first: Unit | None = None
        units = b""
        last: Unit | None = None
        has_tail = False
        for number, base in enumerate(reversed(lengths), 1):
            fd = files.open(self._files[base].path_text, files.O_RDONLY | files.O_CLOEXEC)
            try:
                used, probe = _used(fd, lengths[base])
                if used:
                    begin, end = max(used - LAST_UNITS, 0) * UNIT_SIZE, used * UNIT_SIZE
                    units = probe[begin:end] if end <= len(probe) else files.pread(fd, end - begin, begin)
                    last = UNIT.unpack_from(units, len(units) - UNIT_SIZE)
                    if number == len(lengths):
                        first = UNIT.unpack_from(probe)
                has_tail = not is_closed and (number > 1 or _has_data(fd, used * UNIT_SIZE, probe))
            finally:
                files.close(fd)
            self.max_offset = self._flushed_offset = base // UNIT_SIZE + used
            if used:
                break
        return LoadedQueue(units, last, first, has_tail, self._lacks(lengths))

    def _lacks(self, lengths: dict[int, int]) -> int | None:
        """Returns the queue offset from which units may be missing in files with these lengths, or None."""
        expected = next(iter(lengths), 0)
        for base, length in lengths.items():
            if base != expected:
                log.warning("%s lacks the file %020d", self._directory, expected)
                return expected // UNIT_SIZE
            if length < self._file_size:
                path = self._files[base].path
                log.warning("%s has %d bytes in place of %d", path, length, self._file_size)
                fd = files.open(path, files.O_RDONLY | files.O_CLOEXEC)
                try:
                    return base // UNIT_SIZE + _used(fd, length)[0]
                finally:
                    files.close(fd)
            expected = base + self._file_size
        return None

    def has(self, offset: int, units: bytes) -> bool:
        """Returns whether the queue has exactly these units, starting at `offset`."""
        at = 0
        while at < len(units):
            # Without mapping the file: recovery compares units of all queues, most of which are not used soon.
            found = self._read(offset + at // UNIT_SIZE, (len(units) - at) // UNIT_SIZE)
            if not found or len(found) % UNIT_SIZE or units[at : at + len(found)] != found:
                return False
            at += len(found)
        return True

    def restore_behind(self, units: bytes) -> None:
        """Writes units after the last one."""
        while units:
            # Up to the end of this file.
            count = self.next_file_offset(self.max_offset) - self.max_offset
            written, units = units[: count * UNIT_SIZE], units[count * UNIT_SIZE :]
            self._write(self.max_offset, written)
            self.max_offset += len(written) // UNIT_SIZE

    def restore(self, offset: int, physical_offset: int, size: int, tags_code: int) -> None:
        """Writes a unit at any queue offset. Fills a gap before it with fillers."""
        if offset > self.max_offset:
            filled = self.max_offset if self._files else self._place(offset)[0] // UNIT_SIZE
            while filled < offset:
                # Up to the end of this file.
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
        """Marks the units from `offset` on as possibly not on disk."""
        self._flushed_offset = min(self._flushed_offset, offset)

    def clear(self) -> None:
        """Deletes all units. Raises StoreError."""
        for base in reversed(list(self._files)):
            self._delete(base)
        self.max_offset = self._flushed_offset = self._needed = 0
        self.min_offset = self.log_min_offset = self._retained_from = 0

    def cut(self, offset: int) -> None:
        """Deletes the units from a queue offset on and fills their space with zeros. Raises StoreError."""
        self.unmap()
        end = max(offset, self.first_offset)
        if self.compacted is not None:
            # First, so that the caller tries both again after an error.
            self.compacted.cut(end)
        first = min(self._files, default=0)
        for base in [base for base in reversed(self._files) if base >= end * UNIT_SIZE and base > first]:
            self._delete(base)
        if (file := self._files.get(self._place(end)[0])) is not None:
            file.clear_from(self._place(end)[1])
        self.max_offset = end
        self._flushed_offset = min(self._flushed_offset, end)
        self._needed = 0
        # The messages that get these offsets next are new.
        self.log_min_offset = min(self.log_min_offset, end)
        self._retained_from = min(self._retained_from, end)
        self.min_offset = min(self.min_offset, end)

    def drop_from(self, physical_offset: int) -> None:
        """Deletes units from this physical offset on, while no thread preallocates or flushes. Raises StoreError."""
        offset = self.count_before(physical_offset)
        if offset < self.max_offset:
            self.cut(offset)
            self.recovered_end = offset

    def count_before(self, physical_offset: int) -> int:
        """Returns the queue offset of the first unit at or after a physical offset. Fillers count as before it."""
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

    def correct_min_offset(self, min_physical_offset: int, first: Unit | None = None) -> None:
        """Updates `min_offset` and `log_min_offset` to the start of the log (`ConsumeQueue.correctMinOffset`).

        `first` is the first unit, if the caller has read it.
        """
        if first is None:
            first = self.peek(self.first_offset)
        if first is not None and first[0] >= min_physical_offset and first[1] != FILLER_SIZE:
            self.log_min_offset = self.first_offset
        else:
            self.log_min_offset = self.count_before(min_physical_offset)
        self._update_min_offset()

    def expire_before(self, offset: int) -> None:
        """Makes the messages before a queue offset expired, and all later messages not expired."""
        self._retained_from = min(offset, self.max_offset)
        self._update_min_offset()

    @property
    def may_have_older(self) -> bool:
        """Whether consumers may read messages of another place before `log_min_offset`.

        They may not if the topic is compacted or has a retention of its own.
        """
        return self.compacted is None and not self._retained_from

    def attach(self, compacted: CompactionLog) -> None:
        """Sets the log with the copied messages of a compaction topic. It must have messages of this queue only."""
        self.compacted = compacted
        self._update_min_offset()

    def compaction_changed(self) -> None:
        """Updates `min_offset` after a change of the compaction log."""
        self._update_min_offset()

    def _update_min_offset(self) -> None:
        if self.compacted is None or self.compacted.is_empty:
            self.min_offset = max(self.log_min_offset, self._retained_from)
        else:
            self.min_offset = min(self.compacted.min_offset, self.max_offset)


def _used(fd: int, length: int) -> tuple[int, bytes]:
    """Returns the number of units before the first zero unit, and the first bytes of the file.

    After the last unit, the file must be zero.
    """
    probe = files.pread(fd, min(length, _PROBE), 0)
    at = 0
    while (at := probe.find(NO_UNIT, at)) >= 0:
        # The zeros may begin in the unit before.
        at += -at % UNIT_SIZE
        if probe.startswith(NO_UNIT, at):
            return at // UNIT_SIZE, probe
    low, high = len(probe) // UNIT_SIZE, length // UNIT_SIZE
    while low < high:
        middle = (low + high) // 2
        if files.pread(fd, UNIT_SIZE, middle * UNIT_SIZE) == NO_UNIT:
            high = middle
        else:
            low = middle + 1
    return low, probe


def _has_data(fd: int, start: int, probe: bytes) -> bool:
    """Returns whether a file may have other bytes than zeros from `start` on. `probe` are its first bytes."""
    if probe.count(0, start) < len(probe) - start:
        return True
    start, left = max(start, len(probe)), _MOST_READ
    try:
        while True:
            start = files.lseek(fd, start, files.SEEK_DATA)
            end = files.lseek(fd, start, files.SEEK_HOLE)
            left -= end - start
            if left < 0 or files.pread(fd, end - start, start).count(0) < end - start:
                return True
            start = end
    except OSError as e:
        # ENXIO: only a hole follows. On any other error, the caller clears the rest of the file.
        return e.errno != errno.ENXIO


def units_before(units: bytes, physical_offset: int) -> bytes:
    """Returns the leading units whose records end at or before this physical offset."""
    count = len(units) // UNIT_SIZE
    while count:
        place, size, _ = UNIT.unpack_from(units, (count - 1) * UNIT_SIZE)
        if place + size <= physical_offset:
            break
        count -= 1
    return units[: count * UNIT_SIZE]
