"""Which parts of a commit log which task reads: the end of the log is found, and files are cut between records.

The consume queues know where records begin, so that nothing but a few records is read. A commit log without them is
read once through from the start of its last file, and its files stay whole.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from gantrymq.errors import StoreError
from gantrymq.protocol.record import Record
from gantrymq.spark.store.damage import LogEnd, first_unit_from, problems, record_at
from gantrymq.spark.store.options import StoreOptions
from gantrymq.store.log_reader import LogReader
from gantrymq.store.offline import LogFile, OfflineLog, OfflineQueue, OpenFiles, offline_queues

logger = logging.getLogger(__name__)


class LogRange(NamedTuple):
    """The bytes `start` to `end` of a log file; its first byte is the log's `base`. Both lie between records."""

    path: Path
    base: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.path} from {self.start} to {self.end}"


def plan(options: StoreOptions) -> list[LogRange]:
    """What is in the log now, in its order. Raises StoreError where there is none, or (failOnDataLoss) a part only."""
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
        end = log_end(log, queues, check_crc=options.refuses_wrong_crc)
        for problem in problems(log, queues, end):
            if problem.is_loss and options.fail_on_data_loss:
                raise StoreError(f'{problem.text}; option("failOnDataLoss", "false") reads what is there')
            logger.warning("%s: %s", options.path, problem.text)
        ranges = [
            part
            for file in log.files
            if file.base < end.offset
            and (file.base == log.min_offset or record_at(log, file.base, check_crc=False) is not None)
            for part in _split(file, min(end.offset - file.base, file.length), queues[:1], options.partition_bytes, log)
        ]
    return _in_time(ranges, log, options)


def log_end(log: OfflineLog, queues: list[OfflineQueue], *, check_crc: bool) -> LogEnd:
    """Where the log ends. What a crash has left half written behind it doesn't count.

    Without `check_crc` a body that has rotted doesn't end it, if whole records follow or a queue has the message: a
    crash leaves nothing like that. Raises StoreError for files that aren't a commit log.
    """
    # Behind the file that is written to there may be empty ones, made in advance.
    begun = (file.base for file in reversed(log.files) if record_at(log, file.base, check_crc=True) is not None)
    end = LogEnd(next(begun, log.min_offset), None)
    for queue in queues:
        unit = queue.unit(queue.end - 1) if queue.end > queue.first_offset else None
        if unit is None or unit.is_filler or unit.physical_offset < end.offset:
            continue
        if (record := record_at(log, unit.physical_offset, check_crc=check_crc)) is not None:
            end = LogEnd(unit.physical_offset + record.size, record)
    reader = log.reader(end.offset)
    last = _last(reader)
    end = LogEnd(reader.end, end.last if last is None else last)
    problem = reader.problem
    while not check_crc and (rotted := _rotted_at(log, reader.end)) is not None:
        reader = log.reader(reader.end + rotted.size)
        if (last := _last(reader)) is not None:
            end = LogEnd(reader.end, last)
    if end.offset == log.min_offset and problem:
        raise StoreError(f"{log.files[0].path} is no file of a commit log: {problem}")
    return end


def _last(reader: LogReader) -> Record | None:
    """Reads all that follow."""
    last = None
    for record in reader:
        last = record
    return last


def _rotted_at(log: OfflineLog, physical_offset: int) -> Record | None:
    """The record there whose body has another CRC32 than it says; None where there is no such one."""
    if record_at(log, physical_offset, check_crc=True) is not None:
        return None
    return record_at(log, physical_offset, check_crc=False)


def _split(
    file: LogFile, length: int, queues: list[OfflineQueue], partition_bytes: int, log: OfflineLog
) -> Iterator[LogRange]:
    start = 0
    for queue in queues:
        while start + 2 * partition_bytes <= length:
            unit = _first_behind(queue, file.base + start + partition_bytes)
            if unit is None or unit >= file.base + length or record_at(log, unit, check_crc=False) is None:
                break
            yield LogRange(file.path, file.base, start, unit - file.base)
            start = unit - file.base
    yield LogRange(file.path, file.base, start, length)


def _first_behind(queue: OfflineQueue, physical_offset: int) -> int | None:
    """Where the queue's first message at or behind that place is."""
    unit = queue.unit(first_unit_from(queue, physical_offset))
    return None if unit is None else unit.physical_offset


def _in_time(ranges: list[LogRange], log: OfflineLog, options: StoreOptions) -> list[LogRange]:
    """Without those that begin after the wanted time, or end before it; a log's records ascend in time."""
    if options.starting_ms is None and options.ending_ms is None:
        return ranges
    firsts = [record_at(log, part.base + part.start, check_crc=False) for part in ranges]
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
