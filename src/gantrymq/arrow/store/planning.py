"""Plans a read of a commit log: finds the end of the log, and divides its files into ranges for the tasks.

A range must begin at a record. The consume queues have the positions of records, so planning reads only a few records.
Without consume queues, planning reads the log from the start of its last file, and each file is one range.

A tier consists of complete files. Their manifests and some units of their queues are enough to plan a read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from gantrymq.arrow.store.damage import LogEnd, first_unit_from, problems, record_at
from gantrymq.arrow.store.options import StoreOptions
from gantrymq.errors import StoreError
from gantrymq.protocol.record import Record
from gantrymq.store.config import UNIT_SIZE
from gantrymq.store.consume_queue import FILLER_SIZE, UNIT
from gantrymq.store.log_paths import LogFile
from gantrymq.store.log_reader import LogReader
from gantrymq.store.offline import OfflineLog, OfflineQueue, OpenFiles, offline_queues
from gantrymq.tier.catalog_loader import manifests
from gantrymq.tier.objects import Objects, open_objects
from gantrymq.tier.segment import LOG, MANIFESTS, QUEUES, Manifest, object_name

logger = logging.getLogger(__name__)


class LogRange(NamedTuple):
    """The bytes from `start` to `end` (excluded) of a log file. Both are boundaries between records.

    `base` is the physical offset of the first byte of the file. `tier` is the address of the tier with the file; "" for
    a file of a broker.
    """

    path: Path
    base: int
    start: int
    end: int
    tier: str = ""

    def __str__(self) -> str:
        return f"{self.tier and self.tier + '/'}{self.path} from {self.start} to {self.end}"


def plan(options: StoreOptions) -> list[LogRange]:
    """Returns the ranges of the log up to its present end, in order.

    Raises StoreError if there is no log, and (with failOnDataLoss) if a part of it is missing.
    """
    if options.url or (options.path / MANIFESTS).is_dir():
        return _plan_tier(options)
    log = _log(options)
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
                raise StoreError(f"{problem.text}; to read the other messages, set the option failOnDataLoss=false")
            logger.warning("%s: %s", options.path, problem.text)
        ranges = [
            part
            for file in log.files
            if file.base < end.offset
            and (file.base == log.min_offset or record_at(log, file.base, check_crc=False) is not None)
            for part in _split(file, min(end.offset - file.base, file.length), queues[:1], options.partition_bytes, log)
        ]
    return _in_time(ranges, log, options)


def _log(options: StoreOptions) -> OfflineLog:
    """Returns the commit log. Raises StoreError if there is none."""
    directory = options.path / "commitlog"
    log = OfflineLog(*(options.commit_log_paths or (directory if directory.is_dir() else options.path,)))
    if log.files:
        return log
    if options.commit_log_paths:
        raise StoreError(f"{', '.join(map(str, options.commit_log_paths))}: no file of a commit log (20 digits)")
    raise StoreError(f"{options.path} has no commit log: neither it nor its directory commitlog has files of 20 digits")


def log_end(log: OfflineLog, queues: list[OfflineQueue], *, check_crc: bool) -> LogEnd:
    """Returns the end of the log, before the first incomplete record.

    If `check_crc` is false, a record with a corrupt body doesn't always end the log. The log continues if complete
    records follow or a consume queue has the message, because a crash does not leave such records.

    Raises StoreError for files that aren't a commit log.
    """
    # Empty preallocated files may follow the current file.
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
    """Reads all records, and returns the last one; None without records."""
    last = None
    for record in reader:
        last = record
    return last


def _rotted_at(log: OfflineLog, physical_offset: int) -> Record | None:
    """Returns the record at a physical offset if its body has a wrong CRC32, otherwise None."""
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
    """Returns the physical offset of the queue's first message at or after `physical_offset`, or None."""
    unit = queue.unit(first_unit_from(queue, physical_offset))
    return None if unit is None else unit.physical_offset


def _in_time(ranges: list[LogRange], log: OfflineLog, options: StoreOptions) -> list[LogRange]:
    """Omits the ranges that are completely outside of the requested time. Records of a log ascend in time."""
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


def _plan_tier(options: StoreOptions) -> list[LogRange]:
    """Returns the ranges of a tier. Raises StoreError if segments are missing (with failOnDataLoss), or unreadable."""
    address = options.url or str(options.path)
    objects = open_objects(address)
    ranges: list[LogRange] = []
    expected: int | None = None
    try:
        for manifest in manifests(objects):
            if expected is not None and manifest.base > expected:
                text = f"the log from {expected} to {manifest.base} is missing in {objects}"
                if options.fail_on_data_loss:
                    raise StoreError(f"{text}; to read the other messages, set the option failOnDataLoss=false")
                logger.warning("%s", text)
            expected = manifest.end
            if options.ending_ms is not None and manifest.begin_timestamp >= options.ending_ms:
                continue
            if options.starting_ms is not None and manifest.end_timestamp < options.starting_ms:
                continue
            ranges += _split_segment(objects, manifest, options.partition_bytes, address)
    except OSError as e:
        raise StoreError(f"can't read {objects}: {e}") from e
    if expected is None:
        raise StoreError(f"{objects} has no segment of a tier")
    return ranges


def _split_segment(objects: Objects, manifest: Manifest, partition_bytes: int, address: str) -> Iterator[LogRange]:
    """Splits a segment at records of its largest queue. The parts have the same number of these."""
    path = Path(object_name(LOG, manifest.name))
    start = position = 0
    largest, at = None, 0
    for part in manifest.queues:
        if largest is None or part.count > largest.count:
            largest, at = part, position
        position += part.count * UNIT_SIZE
    parts = manifest.size // partition_bytes
    for number in range(1, parts if largest is not None else 0):
        assert largest is not None
        begin = at + largest.count * number // parts * UNIT_SIZE
        unit = objects.read(object_name(QUEUES, manifest.name), begin, UNIT_SIZE)
        if len(unit) < UNIT_SIZE:
            break
        physical_offset, size, _ = UNIT.unpack(unit)
        end = physical_offset - manifest.base
        if size != FILLER_SIZE and start < end < manifest.size:
            yield LogRange(path, manifest.base, start, end, address)
            start = end
    yield LogRange(path, manifest.base, start, manifest.size, address)
