"""Which parts of a commit log which task reads: the end of the log is found, and files are cut between records.

The consume queues know where records begin, so that nothing but a few records is read. A commit log without them is
read once through from the start of its last file, and its files stay whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from gantrymq.errors import RecordError, StoreError
from gantrymq.protocol.record import Record, decode_record
from gantrymq.spark.store.options import StoreOptions
from gantrymq.store.offline import LogFile, OfflineLog, OfflineQueue, OpenFiles, offline_queues


class LogRange(NamedTuple):
    """The bytes `start` to `end` of a log file; its first byte is the log's `base`. Both lie between records."""

    path: Path
    base: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.path} from {self.start} to {self.end}"


def plan(options: StoreOptions) -> list[LogRange]:
    """What is in the log now, in its order. Raises StoreError where there is no log."""
    directory = options.path / "commitlog"
    if not directory.is_dir():
        directory = options.path
    log = OfflineLog(directory)
    if not log.files:
        raise StoreError(
            f"{options.path} has no commit log: neither it nor its directory commitlog has files of 20 digits"
        )
    open_files = OpenFiles()
    with closing(open_files):
        queues = sorted(
            offline_queues(options.path / "consumequeue", open_files).values(),
            key=lambda queue: queue.end - queue.first_offset,
            reverse=True,
        )
        end = log_end(log, queues)
        ranges = [
            part
            for file in log.files
            if file.base < end
            for part in _split(file, min(end - file.base, file.length), queues[:1], options.partition_bytes, log)
        ]
    return _in_time(ranges, log, options)


def log_end(log: OfflineLog, queues: list[OfflineQueue]) -> int:
    """The physical offset behind the last record. What a crash has left half written behind it doesn't count.

    Raises StoreError for files that aren't a commit log.
    """
    # Behind the file that is written to there may be empty ones, made in advance.
    begun = (file.base for file in reversed(log.files) if record_at(log, file.base) is not None)
    known = [next(begun, log.min_offset)]
    for queue in queues:
        unit = queue.unit(queue.end - 1) if queue.end > queue.first_offset else None
        if unit is not None and not unit.is_filler and record_at(log, unit.physical_offset) is not None:
            known.append(unit.physical_offset)
    reader = log.reader(max(known))
    for _ in reader:
        pass
    if reader.end == log.min_offset and reader.problem:
        raise StoreError(f"{log.files[0].path} is no file of a commit log: {reader.problem}")
    return reader.end


def record_at(log: OfflineLog, physical_offset: int) -> Record | None:
    """None where no record begins."""
    found = log.view_at(physical_offset)
    if found is None:
        return None
    view, base = found
    try:
        record = decode_record(view, physical_offset - base)
    except RecordError:
        return None
    return record if record.physical_offset == physical_offset else None


def _split(
    file: LogFile, length: int, queues: list[OfflineQueue], partition_bytes: int, log: OfflineLog
) -> Iterator[LogRange]:
    start = 0
    for queue in queues:
        while start + 2 * partition_bytes <= length:
            unit = _first_behind(queue, file.base + start + partition_bytes)
            if unit is None or unit >= file.base + length or record_at(log, unit) is None:
                break
            yield LogRange(file.path, file.base, start, unit - file.base)
            start = unit - file.base
    yield LogRange(file.path, file.base, start, length)


def _first_behind(queue: OfflineQueue, physical_offset: int) -> int | None:
    """Where the queue's first message at or behind that place is."""

    def is_behind(offset: int) -> bool:
        unit = queue.unit(offset)
        return unit is not None and not unit.is_filler and unit.physical_offset >= physical_offset

    found = _first_where(queue.first_offset, queue.end, is_behind)
    unit = queue.unit(found)
    return None if unit is None else unit.physical_offset


def _first_where(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The first number in [low, high) for which `holds`, which then holds for all behind it; else `high`."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _in_time(ranges: list[LogRange], log: OfflineLog, options: StoreOptions) -> list[LogRange]:
    """Without those that begin after the wanted time, or end before it; a log's records ascend in time."""
    if options.starting_ms is None and options.ending_ms is None:
        return ranges
    firsts = [record_at(log, part.base + part.start) for part in ranges]
    kept = []
    for i, part in enumerate(ranges):
        first = firsts[i]
        following = firsts[i + 1] if i + 1 < len(ranges) else None
        if options.ending_ms is not None and first is not None and first.store_timestamp >= options.ending_ms:
            continue
        if (
            options.starting_ms is not None
            and following is not None
            and following.store_timestamp < options.starting_ms
        ):
            continue
        kept.append(part)
    return kept
