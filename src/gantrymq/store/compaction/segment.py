"""Segment: a pair of files of a compaction log. One has records, the other one a unit for each record.

Java calls the second file a sparse consume queue (`SparseConsumeQueue`, `BatchConsumeQueue`): its units have the queue
offsets, because offsets are missing where messages were compacted. Both files have the same name and a fixed size.
They are read and written by system calls, so that a full disk is an error of a call, and no queue needs mappings.

Units have no checksum. Only confirmed units count: the record at the unit's position has its size and queue offset.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from gantrymq.errors import StoreError
from gantrymq.protocol.record import BLANK_SIZE, MAGIC_BLANK, offset_of, unpacker
from gantrymq.store.mapped_file import store_error, sync_file
from gantrymq.system import files

logger = logging.getLogger(__name__)

#: Physical offset in the compaction log, size, tags code, store time, queue offset, number of messages, and two unused
#: fields (`BatchConsumeQueue.CQ_STORE_UNIT_SIZE`).
_UNIT = Struct(">qiqqqhii")
SPARSE_UNIT_SIZE = _UNIT.size
#: The unit after the last one of a full file (`SparseConsumeQueue.putEndPositionInfo`).
_END_UNIT = _UNIT.pack(-1, 0, 0, 0, 0, 0, -1, 0)
_BLANK = Struct(">II")
#: Number of units that one call reads, and size of the records that one call reads, in bytes.
_UNITS_AT_ONCE = 1000
_BYTES_AT_ONCE = 1 << 20
_OPEN_FLAGS = files.O_RDWR | files.O_CLOEXEC
_unpack_place = unpacker("size", "queue_offset")
#: Size of a record up to the queue offset, in bytes.
_PLACE_SIZE = offset_of("queue_offset") + 8


class SparseUnit(NamedTuple):
    """A unit: where a record is in the compaction log, and what filters need."""

    physical_offset: int
    size: int
    tags_code: int
    store_time: int
    queue_offset: int


class CopiedRecord(NamedTuple):
    """A record to append, with the fields of its unit."""

    data: bytes | memoryview
    tags_code: int
    store_time: int
    queue_offset: int


class FileSizes(NamedTuple):
    """Sizes of the two files, in bytes."""

    log: int
    units: int


class Segment:
    """The files `base` in `log_directory` and `unit_directory`.

    Attributes:
        count: Number of records.
        position: Size of the records, in bytes.
        first: Queue offset of the first record; -1 if there is none.
        last: Queue offset of the last record; -1 if there is none.
    """

    __slots__ = ("_sizes", "base", "count", "first", "last", "log_path", "position", "unit_path")

    def __init__(self, log_directory: Path, unit_directory: Path, base: int, sizes: FileSizes) -> None:
        self.base = base
        self.log_path = log_directory / f"{base:020d}"
        self.unit_path = unit_directory / f"{base:020d}"
        self._sizes = sizes
        self.count = self.position = 0
        self.first = self.last = -1

    def __repr__(self) -> str:
        return f"<Segment {self.log_path} {self.first}..{self.last}>"

    # -- opening ------------------------------------------------------------------------------------------------

    def create(self) -> None:
        """Creates both files in their full size, as Java needs them, but sparse. Raises StoreFull or StoreError."""
        for path, size in ((self.log_path, self._sizes.log), (self.unit_path, self._sizes.units)):
            try:
                files.make_lasting_directory(path.parent)
                fd = files.open(path, _OPEN_FLAGS | files.O_CREAT, 0o644)
                try:
                    files.ftruncate(fd, 0)
                    files.ftruncate(fd, size)
                finally:
                    files.close(fd)
            except OSError as e:
                raise store_error(e, f"can't make {path}") from e

    def load(self, *, may_be_empty: bool = False) -> None:
        """Finds the last unit. Raises StoreError if a file has another size than the configured one.

        With `may_be_empty`, an empty file counts as a file without records: an error or a crash has interrupted its
        creation.
        """
        for path, size in ((self.log_path, self._sizes.log), (self.unit_path, self._sizes.units)):
            try:
                length = files.stat(path).st_size
            except OSError as e:
                raise store_error(e, f"can't open {path}") from e
            if may_be_empty and not length:
                logger.warning("%s is empty: its creation was interrupted", path)
                return
            if length != size:
                raise StoreError(
                    f"{path} has {length} bytes, and {size} are configured: set compactionMappedFileSize and "
                    "compactionCqMappedFileSize to the sizes that the store was made with"
                )
        capacity = self._sizes.units // SPARSE_UNIT_SIZE
        end = self._first(capacity, lambda unit: unit.size <= 0)
        if self._has_data(end * SPARSE_UNIT_SIZE):
            # A damaged unit has ended the search, or a full disk has cut off the last unit.
            end = capacity
        self._set_count(end)
        if self.count != end:
            logger.warning(
                "%s: a unit is damaged or incomplete; the last sound one is %d", self.unit_path, self.count - 1
            )

    def _has_data(self, start: int) -> bool:
        """Whether the units from a position in their file on have other bytes than zeros and the mark of the end."""
        try:
            fd = files.open(self.unit_path, files.O_RDONLY | files.O_CLOEXEC)
            try:
                if files.pread(fd, SPARSE_UNIT_SIZE, start) == _END_UNIT:
                    start += SPARSE_UNIT_SIZE
                while True:
                    start = files.lseek(fd, start, files.SEEK_DATA)
                    data = files.pread(fd, min(files.lseek(fd, start, files.SEEK_HOLE) - start, _BYTES_AT_ONCE), start)
                    if data.count(0) < len(data):
                        return True
                    start += len(data)
            finally:
                files.close(fd)
        except OSError as e:
            if e.errno == errno.ENXIO:
                # The rest of the file is a hole.
                return False
            raise store_error(e, f"can't read {self.unit_path}") from e

    def _set_count(self, end: int) -> None:
        """Sets the attributes to those of the units up to the last confirmed one before the number `end`."""
        first, last = self._first_confirmed(0, end), self._last_confirmed(end)
        if first is None or last is None:
            self.count = self.position = 0
            self.first = self.last = -1
        else:
            number, unit = last
            self.count = number + 1
            self.position = unit.physical_offset + unit.size - self.base
            self.first, self.last = first[1].queue_offset, unit.queue_offset

    def _last_confirmed(self, end: int) -> tuple[int, SparseUnit] | None:
        """Returns the last confirmed unit before the number `end`, with its number."""
        at_once = 1
        while end > 0:
            start = max(end - at_once, 0)
            for number, unit in reversed(list(enumerate(self.units(start, end - start), start))):
                if self.is_confirmed(unit):
                    return number, unit
            end, at_once = start, min(2 * at_once, _UNITS_AT_ONCE)
        return None

    def _first_confirmed(self, start: int, end: int) -> tuple[int, SparseUnit] | None:
        """Returns the first confirmed unit from the number `start` to the one before `end`, with its number."""
        at_once = 1
        while start < end:
            following = min(start + at_once, end)
            for number, unit in enumerate(self.units(start, following - start), start):
                if self.is_confirmed(unit):
                    return number, unit
            start, at_once = following, min(2 * at_once, _UNITS_AT_ONCE)
        return None

    # -- reading ------------------------------------------------------------------------------------------------

    def unit(self, number: int) -> SparseUnit:
        """Returns a unit by its number. Raises StoreError."""
        return next(iter(self.units(number, 1)))

    def units(self, number: int, count: int = _UNITS_AT_ONCE) -> list[SparseUnit]:
        """Returns at most `count` units, from a number on. Raises StoreError."""
        data = _read(self.unit_path, number * SPARSE_UNIT_SIZE, count * SPARSE_UNIT_SIZE)
        return [
            SparseUnit(*fields[:5])
            for fields in _UNIT.iter_unpack(data[: len(data) // SPARSE_UNIT_SIZE * SPARSE_UNIT_SIZE])
        ]

    def number_of(self, queue_offset: int) -> int:
        """Returns the number of the first confirmed unit at or after a queue offset, or `count`. Raises StoreError."""
        number = self._first(self.count, lambda unit: unit.queue_offset >= queue_offset)
        if self._is_between(number, queue_offset):
            return number
        # A unit is damaged. Each step of this search uses the next confirmed unit.
        low = 0
        number = high = self.count
        while low < high:
            middle = (low + high) // 2
            found = self._first_confirmed(middle, high)
            if found is None:
                high = middle
            elif found[1].queue_offset >= queue_offset:
                number, high = found[0], middle
            else:
                low = found[0] + 1
        return number

    def _is_between(self, number: int, queue_offset: int) -> bool:
        """Whether confirmed units show that the unit `number` is the first one at or after a queue offset."""
        before = max(number - 1, 0)
        units = self.units(before, min(number + 1, self.count) - before)
        if number < self.count and units[-1].queue_offset == queue_offset:
            units = units[-1:]
        return all(map(self.is_confirmed, units))

    def is_confirmed(self, unit: SparseUnit) -> bool:
        """Whether the record at the unit's position has its size and queue offset. Raises StoreError."""
        if not self._is_in_file(unit):
            return False
        return _is_place_of(unit, _read(self.log_path, unit.physical_offset - self.base, _PLACE_SIZE))

    def _first(self, high: int, is_found: Callable[[SparseUnit], bool]) -> int:
        """Returns the number of the first unit before `high` for which `is_found` is true, or `high`."""
        try:
            fd = files.open(self.unit_path, files.O_RDONLY | files.O_CLOEXEC)
            try:
                low = 0
                while low < high:
                    middle = (low + high) // 2
                    data = files.pread(fd, SPARSE_UNIT_SIZE, middle * SPARSE_UNIT_SIZE)
                    if is_found(SparseUnit(*_UNIT.unpack(data)[:5])):
                        high = middle
                    else:
                        low = middle + 1
                return low
            finally:
                files.close(fd)
        except OSError as e:
            raise store_error(e, f"can't read {self.unit_path}") from e

    def read(self, units: list[SparseUnit]) -> list[memoryview | None]:
        """Returns the record of each unit; None where the record is damaged. Raises StoreError."""
        records: list[memoryview | None] = []
        at = 0
        while at < len(units):
            if not self._is_in_file(units[at]):
                records.append(None)
                at += 1
                continue
            begin = units[at].physical_offset
            end, following = begin, at
            while following < len(units):
                unit = units[following]
                if unit.physical_offset != end or not self._is_in_file(unit):
                    break
                end += unit.size
                following += 1
            data = memoryview(_read(self.log_path, begin - self.base, end - begin))
            for unit in units[at:following]:
                start = unit.physical_offset - begin
                record = data[start : start + unit.size]
                is_confirmed = len(record) == unit.size and _is_place_of(unit, record)
                records.append(record if is_confirmed else None)
            at = following
        return records

    def _is_in_file(self, unit: SparseUnit) -> bool:
        position = unit.physical_offset - self.base
        return 0 <= position < position + _PLACE_SIZE <= position + unit.size <= self._sizes.log

    def records(self) -> Iterator[tuple[SparseUnit, memoryview]]:
        """Yields all undamaged records with their units. Raises StoreError."""
        number = 0
        while number < self.count:
            units = self.units(number, min(_UNITS_AT_ONCE, self.count - number))
            size = taken = 0
            while taken < len(units) and (not taken or size + units[taken].size <= _BYTES_AT_ONCE):
                size += units[taken].size
                taken += 1
            for unit, record in zip(units, self.read(units[:taken]), strict=False):
                if record is None:
                    logger.warning("%r: the record of message %d is damaged", self, unit.queue_offset)
                else:
                    yield unit, record
            number += taken

    # -- writing ------------------------------------------------------------------------------------------------

    def fitting(self, records: Iterable[CopiedRecord]) -> list[CopiedRecord]:
        """Returns the first records, as many as fit."""
        fitting: list[CopiedRecord] = []
        position, count = self.position, self.count
        for record in records:
            # The last unit and the last bytes of the files mark their end.
            has_unit = (count + 1) * SPARSE_UNIT_SIZE < self._sizes.units
            if not has_unit or position + len(record.data) + BLANK_SIZE > self._sizes.log:
                break
            fitting.append(record)
            position += len(record.data)
            count += 1
        return fitting

    def append(self, records: list[CopiedRecord]) -> None:
        """Appends records that fit. Raises StoreFull or StoreError; nothing is appended then."""
        units = bytearray()
        position = self.base + self.position
        for record in records:
            size = len(record.data)
            units += _UNIT.pack(position, size, record.tags_code, record.store_time, record.queue_offset, 1, -1, 0)
            position += size
        _write(self.log_path, self.position, b"".join(record.data for record in records))
        _write(self.unit_path, self.count * SPARSE_UNIT_SIZE, units)
        if records:
            self.first = self.first if self.count else records[0].queue_offset
            self.last = records[-1].queue_offset
            self.count += len(records)
            self.position = position - self.base

    def finish(self) -> None:
        """Marks the end of both files (`CompactionAppendMessageCallback`). Raises StoreFull or StoreError."""
        _write(self.log_path, self.position, _BLANK.pack(self._sizes.log - self.position, MAGIC_BLANK))
        _write(self.unit_path, self.count * SPARSE_UNIT_SIZE, _END_UNIT)

    def cut(self, queue_offset: int) -> None:
        """Deletes the records from a queue offset on. Raises StoreError."""
        self._set_count(self.number_of(queue_offset))
        for path, used, size in (
            (self.unit_path, self.count * SPARSE_UNIT_SIZE, self._sizes.units),
            (self.log_path, self.position, self._sizes.log),
        ):
            try:
                fd = files.open(path, _OPEN_FLAGS)
                try:
                    files.ftruncate(fd, used)
                    files.ftruncate(fd, size)
                finally:
                    files.close(fd)
            except OSError as e:
                raise store_error(e, f"can't cut {path}") from e

    def sync(self) -> None:
        """Flushes both files to disk, the records first. May run in a thread. Raises OSError or SyncFailed."""
        sync_file(self.log_path)
        sync_file(self.unit_path)

    def delete(self) -> None:
        """Deletes both files. Raises StoreError."""
        for path in (self.log_path, self.unit_path):
            try:
                files.unlink(path, missing_ok=True)
            except OSError as e:
                raise store_error(e, f"can't delete {path}") from e


def _is_place_of(unit: SparseUnit, record: bytes | memoryview) -> bool:
    return len(record) >= _PLACE_SIZE and _unpack_place(record, 0) == (unit.size, unit.queue_offset)


def _read(path: Path, at: int, size: int) -> bytes:
    try:
        fd = files.open(path, files.O_RDONLY | files.O_CLOEXEC)
        try:
            return files.pread(fd, size, at)
        finally:
            files.close(fd)
    except OSError as e:
        raise store_error(e, f"can't read {path}") from e


def _write(path: Path, at: int, data: bytes | bytearray) -> None:
    try:
        fd = files.open(path, _OPEN_FLAGS)
        try:
            view, done = memoryview(data), 0
            while done < len(view):
                done += files.pwrite(fd, view[done:], at + done)
        finally:
            files.close(fd)
    except OSError as e:
        raise store_error(e, f"can't write to {path}") from e
