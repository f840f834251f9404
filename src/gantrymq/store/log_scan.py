"""Scans the log for records that contain certain bytes. Takes 1 us for each other record, which is not decoded."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from gantrymq.errors import RecordError
from gantrymq.protocol.record import BLANK_SIZE, FIXED_SIZE_V4, MAGIC_BLANK, Record, decode_record, unpacker
from gantrymq.store.commit_log import CommitLog

log = logging.getLogger(__name__)

_unpack_head = unpacker("size", "magic")
#: After this many records or bytes the caller may do other work. A step takes about 0.3 ms.
_STEP = 200
_STEP_BYTES = 1024 * 1024


def records_with(commit_log: CommitLog, mark: bytes, start: int) -> Iterator[Record]:
    """Yields the records that contain the bytes `mark`, from the physical offset `start` on.

    A record must start at `start`, otherwise raises RecordError. Records with damaged content are skipped.
    """
    return (record for record in look_for_records(commit_log, mark, start) if record is not None)


def look_for_records(commit_log: CommitLog, mark: bytes, start: int) -> Iterator[Record | None]:
    """Yields the same records as `records_with`, and None from time to time. After a None the log may have changed."""
    return iter(LogScan(commit_log, mark, start, None))


class LogScan:
    """One scan for the records that contain the bytes `mark`; see `look_for_records`.

    Records that end after the physical offset `end` are not read.
    """

    def __init__(self, commit_log: CommitLog, mark: bytes, start: int, end: int | None) -> None:
        #: The physical offset up to which whole records were read. After a RecordError, no record starts there.
        self.position = start
        self._log = commit_log
        self._mark = mark
        self._end = end

    def __iter__(self) -> Iterator[Record | None]:
        commit_log, mark, end = self._log, self._mark, self._end
        at = self.position
        looked_at, step_end = 0, at + _STEP_BYTES
        while (end is None or at < end) and (found := commit_log.view_at(at)) is not None:
            view, base = found
            pos = at - base
            size, magic = _unpack_head(view, pos) if pos + BLANK_SIZE <= len(view) else (0, 0)
            if magic == MAGIC_BLANK:
                at = self.position = base + len(view)
                continue
            if size < FIXED_SIZE_V4 or pos + size > len(view):
                raise RecordError(f"no record begins at the physical offset {at}")
            if end is not None and at + size > end:
                return
            at = self.position = at + size
            if mark in bytes(view[pos : pos + size]):
                try:
                    record = decode_record(view, pos)
                except RecordError as e:
                    log.error("the record at the physical offset %d is damaged, and passed over: %s", base + pos, e)
                else:
                    yield record
            looked_at += 1
            if looked_at >= _STEP or at >= step_end:
                yield None
                # Expired files may have been deleted.
                at = self.position = max(at, commit_log.min_offset)
                looked_at, step_end = 0, at + _STEP_BYTES


def start_of(commit_log: CommitLog, timestamp_ms: int, begin: int = 0) -> int:
    """Returns the start of the last file that begins at or before this store time.

    If it is before `begin`, returns `begin`; if there is none, the start of the log or `begin`, whichever is later.
    """
    first, file_size = max(commit_log.min_offset, begin), commit_log.file_size
    for base in range(commit_log.position // file_size * file_size, first, -file_size):
        if 0 < commit_log.store_time(base) <= timestamp_ms:
            return base
    return first
