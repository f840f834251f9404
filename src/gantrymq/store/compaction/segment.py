"""Segment: a pair of files of a compaction log. One has records, the other one a unit for each record.

Java calls the second file a sparse consume queue (`SparseConsumeQueue`, `BatchConsumeQueue`): its units have the queue
offsets, because offsets are missing where messages were compacted. Both files have the same name and a fixed size.
They are read and written by system calls, so that a full disk is an error of a call, and no queue needs mappings.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from gantrymq.errors import StoreError
from gantrymq.protocol.record import BLANK_SIZE, MAGIC_BLANK, unpacker
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

    def load(self) -> None:
        """Finds the last unit. Raises StoreError if a file has another size than the configured one."""
        for path, size in ((self.log_path, self._sizes.log), (self.unit_path, self._sizes.units)):
            try:
                length = files.stat(path).st_size
            except OSError as e:
                raise store_error(e, f"can't open {path}") from e
            if length != size:
                raise StoreError(
                    f"{path} has {length} bytes, and {size} are configured: set compactionMappedFileSize and "
                    "compactionCqMappedFileSize to the sizes that the store was made with"
                )
        count = self._sizes.units // SPARSE_UNIT_SIZE
        low = self._first(count, lambda unit: unit.size <= 0 or unit.physical_offset < self.base)
        while low and not self._is_whole(low - 1):
            logger.warning("%s: unit %d is incomplete and dropped", self.unit_path, low - 1)
            low -= 1
        self._set_count(low)

    def _is_whole(self, number: int) -> bool:
        """Whether a unit and its record were written completely. On a full disk, a write can end anywhere."""
        unit = self.unit(number)
        if number and unit.queue_offset <= self.unit(number - 1).queue_offset:
            return False
        return self.read([unit])[0] is not None

    def _set_count(self, count: int) -> None:
        self.count = count
        self.position, self.first, self.last = 0, -1, -1
        if count:
            unit = self.unit(count - 1)
            self.position = unit.physical_offset + unit.size - self.base
            self.last = unit.queue_offset
            # Damaged units can be before it. The last one was checked.
            whole = (each for each in map(self.unit, range(count)) if self.read([each])[0] is not None)
            self.first = next(whole, unit).queue_offset

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
        """Returns the number of the first record at or after a queue offset. Raises StoreError.

        The binary search ends beside a damaged unit if it comes to one. Then all units are searched.
        """
        number = self._first(self.count, lambda unit: unit.queue_offset >= queue_offset)
        beside = self.units(max(number - 1, 0), 2 if 0 < number < self.count else 1)
        if all(self.first <= unit.queue_offset <= self.last for unit in beside):
            return number
        offsets = (unit.queue_offset for unit in self._all_units())
        return next((each for each, offset in enumerate(offsets) if queue_offset <= offset <= self.last), self.count)

    def _all_units(self) -> Iterator[SparseUnit]:
        for number in range(0, self.count, _UNITS_AT_ONCE):
            yield from self.units(number, min(_UNITS_AT_ONCE, self.count - number))

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
                is_right = len(record) == unit.size >= 28 and _unpack_place(record, 0) == (
                    unit.size,
                    unit.queue_offset,
                )
                records.append(record if is_right else None)
            at = following
        return records

    def _is_in_file(self, unit: SparseUnit) -> bool:
        position = unit.physical_offset - self.base
        return 0 <= position < position + unit.size <= self._sizes.log

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
        count = self.number_of(queue_offset)
        self._set_count(count)
        for path, used, size in (
            (self.unit_path, count * SPARSE_UNIT_SIZE, self._sizes.units),
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
