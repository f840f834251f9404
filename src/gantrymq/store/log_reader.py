"""Reads the records of a log in order. Native code reads many records in one call, as units of their queues."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from gantrymq.errors import RecordError
from gantrymq.kernels import native
from gantrymq.protocol.record import BLANK_SIZE, FIXED_SIZE_V4, MAGIC_BLANK, Buffer, Record, decode_record, unpacker
from gantrymq.protocol.topic_name import SCHEDULE_TOPIC
from gantrymq.store.record_crc import has_right_crc

#: Maximum number of records and bytes per native call. A call takes some milliseconds.
_AT_ONCE = 4096
_BYTES_AT_ONCE = 16 * 1024 * 1024
_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()
_unpack_head = unpacker("size", "magic")


class LogViews(Protocol):
    """The part of a CommitLog that a reader needs."""

    def view_at(self, physical_offset: int) -> tuple[memoryview, int] | None: ...
    def file_at(self, physical_offset: int) -> object | None: ...


class Run(NamedTuple):
    """Successive units of one queue. The first one has the queue offset `first`."""

    topic: bytes
    queue_id: int
    first: int
    units: bytes


class Runs(NamedTuple):
    """The queue units of `records` records, in the order of each queue's first unit. Some records have no unit.

    The next record starts at the position `end` of the buffer. `last_timestamp` is the store timestamp of the last
    record, `max_timestamp` the largest one.
    """

    runs: list[Run]
    records: int
    end: int
    last_timestamp: int
    max_timestamp: int


def runs_of(buffer: Buffer, at: int, end: int, base: int, *, needs_crc: bool) -> Runs | None:
    """Reads the records between two positions of a buffer as runs. `base` is the physical offset of the buffer.

    All records in the result are valid, and their queue offsets are successive. The result is None if the next record
    must be read individually. Reasons are: native code is missing, the record is incomplete or unusual, or the units of
    its topic need more information.
    """
    if native is None:
        return None
    runs, records, end, last, largest = native.unit_runs(buffer, at, end, base, _AT_ONCE, needs_crc, _SCHEDULE_TOPIC)
    return Runs([Run(*run) for run in runs], records, end, last, largest) if records else None


class LogReader(Iterable[Record]):
    """Iterates over the records from a physical offset on, across files. `end` is the end of the last valid record.

    `runs` may be called at any time. The iterator skips the records that `runs` returned.
    """

    def __init__(self, commit_log: LogViews, start: int, *, needs_crc: bool = False) -> None:
        self.end = start
        #: The reason why no further record follows; "" at the end of the written data.
        self.problem = ""
        self._log = commit_log
        self._needs_crc = needs_crc

    def runs(self) -> Runs | None:
        """Returns the next records, as many as one call reads; None if only the iterator can read the next one."""
        found = self._log.view_at(self.end)
        if found is None:
            return None
        view, base = found
        at = self.end - base
        runs = runs_of(view, at, min(len(view), at + _BYTES_AT_ONCE), base, needs_crc=self._needs_crc)
        if runs is not None:
            self.end = base + runs.end
        return runs

    def __iter__(self) -> Iterator[Record]:
        while (found := self._log.view_at(self.end)) is not None:
            view, base = found
            at = self.end - base
            size, magic = _unpack_head(view, at) if at + BLANK_SIZE <= len(view) else (0, 0)
            if magic == MAGIC_BLANK:
                if size != len(view) - at:
                    self.problem = f"the blank has {size} bytes in place of {len(view) - at}"
                    return
                if self._log.file_at(base + len(view)) is None:
                    return
                self.end = base + len(view)
                continue
            if size == 0 and magic == 0:
                return
            try:
                record = decode_record(view, at)
                _check(record, self.end)
            except RecordError as e:
                self.problem = str(e)
                return
            if self._needs_crc and not has_right_crc(view[at : at + record.size]):
                self.problem = "its property __CRC32# is missing or wrong"
                return
            self.end += record.size
            yield record


def _check(record: Record, physical_offset: int) -> None:
    """Checks the fields outside of the body, which the record's CRC does not cover. Raises RecordError."""
    if record.physical_offset != physical_offset:
        raise RecordError(f"it says that it is at {record.physical_offset}")
    check_places(record.queue_id, record.queue_offset, physical_offset)


def check_places(queue_id: int, queue_offset: int, physical_offset: int) -> None:
    """Raises RecordError if a record at this physical offset can't have this queue id and queue offset."""
    # Each earlier message of the queue has its own record in the log.
    if not 0 <= queue_offset <= physical_offset // FIXED_SIZE_V4 or queue_id < 0:
        raise RecordError(f"queue {queue_id} and queue offset {queue_offset} can't be right")
