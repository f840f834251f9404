"""Reads the records of a log one after the other; where native code can, many in one call, as units of their queues."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from gantrymq.errors import RecordError
from gantrymq.kernels import native
from gantrymq.protocol.record import BLANK_SIZE, FIXED_SIZE_V4, MAGIC_BLANK, Buffer, Record, decode_record, unpacker
from gantrymq.protocol.topic_name import SCHEDULE_TOPIC
from gantrymq.store.record_crc import has_right_crc

#: Records and bytes of one call: some ms.
_AT_ONCE = 4096
_BYTES_AT_ONCE = 16 * 1024 * 1024
_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()
_unpack_head = unpacker("size", "magic")


class LogViews(Protocol):
    """What of a CommitLog a reader needs."""

    def view_at(self, physical_offset: int) -> tuple[memoryview, int] | None: ...
    def file_at(self, physical_offset: int) -> object | None: ...


class Run(NamedTuple):
    """Units of one queue; the first one belongs to the queue offset `first`."""

    topic: bytes
    queue_id: int
    first: int
    units: bytes


class Runs(NamedTuple):
    """What `records` records are in the queues, in the order of each queue's first one; some may be in none.

    Behind them, at the place `end` of the buffer, the next one begins. `last_timestamp` is the store timestamp of the
    last one, `max_timestamp` the largest.
    """

    runs: list[Run]
    records: int
    end: int
    last_timestamp: int
    max_timestamp: int


def runs_of(buffer: Buffer, at: int, end: int, base: int, *, needs_crc: bool) -> Runs | None:
    """The records between two places of a buffer as runs; `base` is its physical offset.

    They are good ones, whose queue offsets follow each other. None where the next one has to be looked at by itself:
    when there is no native code, it isn't whole, odd in some way, or of a topic whose units depend on more.
    """
    if native is None:
        return None
    runs, records, end, last, largest = native.unit_runs(buffer, at, end, base, _AT_ONCE, needs_crc, _SCHEDULE_TOPIC)
    return Runs([Run(*run) for run in runs], records, end, last, largest) if records else None


class LogReader(Iterable[Record]):
    """The records from a physical offset on, over the ends of files; `end` is where the last good one ended.

    `runs` may be called at any time: those that it returns, the iterator doesn't.
    """

    def __init__(self, commit_log: LogViews, start: int, *, needs_crc: bool = False) -> None:
        self.end = start
        #: Why no record follows; "" at the end of all that was written.
        self.problem = ""
        self._log = commit_log
        self._needs_crc = needs_crc

    def runs(self) -> Runs | None:
        """The next records, as many as can be read at once. None: let the iterator have the next one."""
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
    """Of the record the CRC covers only the body. Raises RecordError when another field can't be right."""
    if record.physical_offset != physical_offset:
        raise RecordError(f"it says that it is at {record.physical_offset}")
    check_places(record.queue_id, record.queue_offset, physical_offset)


def check_places(queue_id: int, queue_offset: int, physical_offset: int) -> None:
    """Raises RecordError when a record there can't have these."""
    # Each message before it in the queue took a record of its own.
    if not 0 <= queue_offset <= physical_offset // FIXED_SIZE_V4 or queue_id < 0:
        raise RecordError(f"queue {queue_id} and queue offset {queue_offset} can't be right")
