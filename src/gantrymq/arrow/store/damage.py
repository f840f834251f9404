"""Detects missing messages in a commit log, from its files and its consume queues.

The log ends before the first incomplete record, as in the recovery of a broker. A crash can leave such a record, which
is no loss. A corrupt byte or a missing file also ends the log. In this case, complete records follow after the end, or
consume queues point to positions after the end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from gantrymq.errors import RecordError
from gantrymq.protocol.record import MAGIC_V1, MAGIC_V2, Record, decode_record
from gantrymq.store.offline import OfflineLog, OfflineQueue

_MAGIC = re.compile(b"|".join(re.escape(magic.to_bytes(4)) for magic in (MAGIC_V1, MAGIC_V2)))
_MAGIC_AT = 4
_CHUNK = 1024 * 1024
_ZEROS = bytes(_CHUNK)


class LogEnd(NamedTuple):
    """The end of a log. `offset` is the physical offset after the last record, and `last` is this record."""

    offset: int
    last: Record | None


class Problem(NamedTuple):
    """A problem of a log. If `is_loss` is true, messages are missing that a crash alone would not remove."""

    text: str
    is_loss: bool


def problems(log: OfflineLog, queues: list[OfflineQueue], end: LogEnd) -> Iterator[Problem]:
    """Yields the problems of the log before and after its end."""
    yield from _gaps(log, end.offset)
    yield from _queues_behind(queues, end.offset)
    yield from _rest(log, end)


def record_at(log: OfflineLog, physical_offset: int, *, check_crc: bool) -> Record | None:
    """Returns the record at a physical offset; None if no record begins there.

    If `check_crc` is false, a record with a corrupt body is also returned. Its position is still checked.
    """
    found = log.view_at(physical_offset)
    if found is None:
        return None
    view, base = found
    try:
        record = decode_record(view, physical_offset - base, check_crc=check_crc)
    except RecordError:
        return None
    return record if record.physical_offset == physical_offset else None


def _gaps(log: OfflineLog, end: int) -> Iterator[Problem]:
    expected = log.min_offset
    for file in log.files:
        if file.base >= end:
            break
        if file.base != expected:
            where = f"the file before {file.path} is gone or cut short"
            yield Problem(f"the bytes from {expected} to {file.base} of the log are missing: {where}", True)
        elif record_at(log, file.base, check_crc=False) is None:
            yield Problem(f"{file.path} begins with no record, and the log goes on behind it", True)
        expected = file.base + file.length


def _queues_behind(queues: list[OfflineQueue], end: int) -> Iterator[Problem]:
    missing, example = 0, ""
    for queue in queues:
        count = queue.end - first_unit_from(queue, end)
        if count:
            missing += count
            example = f"queue {queue.queue_id} of topic {queue.topic} has {count}"
    if missing:
        yield Problem(
            f"consume queues have {missing} messages behind the end of the log at {end} ({example}): its last bytes "
            "are missing or damaged, or were lost in a power failure",
            True,
        )


def first_unit_from(queue: OfflineQueue, physical_offset: int) -> int:
    """Returns the queue offset of the first message at or after a physical offset, or the end of the queue."""
    low, high = queue.first_offset, queue.end
    while low < high:
        middle = (low + high) // 2
        unit = queue.unit(middle)
        if unit is not None and not unit.is_filler and unit.physical_offset >= physical_offset:
            high = middle
        else:
            low = middle + 1
    return low


def _rest(log: OfflineLog, end: LogEnd) -> Iterator[Problem]:
    """Yields the problem after the end of the log: an incomplete record, or complete records after a damaged one."""
    left_out = 0
    for file in log.files:
        start = max(0, end.offset - file.base)
        if start >= file.length or (found := log.view_at(file.base + start)) is None:
            continue
        view, base = found
        # The rest of the newest file is preallocated: usually up to 1 GiB of zeros, which the search would read slowly.
        length = _length_without_zeros(view, start)
        for match in _MAGIC.finditer(view, start, length):
            record = record_at(log, base + match.start() - _MAGIC_AT, check_crc=True)
            # Older records are not part of the log: a recovery has truncated it, and new records overwrite them.
            if record is None or (end.last is not None and record.store_timestamp < end.last.store_timestamp):
                continue
            if record_at(log, end.offset, check_crc=True) is None:
                yield Problem(
                    f"the log ends at {end.offset}, where {file.path if base <= end.offset else 'a file before'} is "
                    f"damaged, but has whole records from {record.physical_offset} on",
                    True,
                )
            # This is no problem if a running broker has appended a record at the end.
            return
        left_out = max(left_out, base + length - end.offset)
    if left_out > 0:
        yield Problem(
            f"{left_out} bytes behind the end of the log at {end.offset} are no whole record, as after a crash: "
            "left out",
            False,
        )


def _length_without_zeros(view: memoryview, start: int) -> int:
    """Returns the length up to the last byte that isn't 0, at least `start`."""
    end = len(view)
    while end > start:
        at = max(start, end - _CHUNK)
        chunk = bytes(view[at:end])
        if chunk != _ZEROS[: len(chunk)]:
            return at + len(chunk.rstrip(b"\x00"))
        end = at
    return start
