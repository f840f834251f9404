"""Checks a store's files for consistency: every record, every queue unit, every index entry."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, pairwise
from pathlib import Path

from gantrymq.kernels import native
from gantrymq.kernels.interface import IndexEntries
from gantrymq.protocol.record import FIXED_SIZE_V4, Record, decode_record, unpacker
from gantrymq.protocol.sys_flag import TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from gantrymq.protocol.topic_name import SCHEDULE_TOPIC
from gantrymq.store.checkpoint import load_checkpoint
from gantrymq.store.config import UNIT_SIZE, StoreConfig
from gantrymq.store.consume_queue import UNIT
from gantrymq.store.delay_level import parse_delay_levels, tags_code_of
from gantrymq.store.index_file import ENTRY, ENTRY_SIZE, HEADER_SIZE, SLOT, file_size, read_header
from gantrymq.store.index_keys import KeyHash, is_left_out, keys_of
from gantrymq.store.log_reader import LogReader, Runs
from gantrymq.store.message_index import index_paths
from gantrymq.store.offline import OfflineLog, OfflineQueue, OpenFiles, is_in_use, offline_queues
from gantrymq.store.record_crc import has_crc, has_right_crc
from gantrymq.system import clock, files

#: Called with (phase, amount done, total). The amount is in bytes for the log, and a number of queues after that.
Progress = Callable[[str, int, int], None]

#: Further problems are counted but not described.
_MAX_PROBLEMS = 1000
_PROGRESS_BYTES = 1024 * 1024
#: A writer copies each record in one step, so a reader sees a partial record for a few microseconds only.
_RETRY_S = 0.05
#: Number of index entries per read, and of entries per native call. It is more than one record can have.
_ENTRIES_AT_ONCE = 65_536
_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()
#: A limit that no log file reaches, and a value that no record has.
_ALL = 1 << 40
_NO_TOPIC = b"", bytes(1 << 16)
_unpack_place = unpacker("size", "queue_id", "queue_offset", "physical_offset")
#: A smaller tags code is an address in consumequeue_ext (`ConsumeQueueExt.isExtAddr`).
_MIN_TAGS_CODE = -(1 << 31)


@dataclass(slots=True)
class Report:
    """The result of a check. `problems` contains at most 1,000 of `problem_count` problems.

    `without_unit` is the number of records that need no unit: their topic was deleted, or the next start of the broker
    builds the unit.
    """

    in_use: bool = False
    log_begin: int = 0
    log_end: int = 0
    records: int = 0
    without_unit: int = 0
    queues: int = 0
    units: int = 0
    index_files: int = 0
    index_entries: int = 0
    problem_count: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, problem: str) -> None:
        self.problem_count += 1
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(problem)


def verify(
    config: StoreConfig,
    progress: Progress = lambda what, done, total: None,
    *,
    deleted_topics: Mapping[str, int] | None = None,
) -> Report:
    """Checks the whole store. If a broker uses it, new data and the index are not checked.

    `deleted_topics` has the end of the log at the last deletion of each topic. Earlier records need no units.

    Raises StoreError if files can't be read.
    """
    files = OpenFiles()
    try:
        return _Verifier(config, files, progress, deleted_topics or {}).run()
    finally:
        files.close()


class _Verifier:
    """Checks one store: first the log with its units and index entries, then the queues."""

    def __init__(
        self, config: StoreConfig, files: OpenFiles, progress: Progress, deleted_topics: Mapping[str, int]
    ) -> None:
        self._report = Report(in_use=is_in_use(config.store_path_root_dir))
        self._progress = progress
        self._deleted_topics = deleted_topics
        self._log = OfflineLog(*config.commit_log_directories)
        # Before the queues: a running broker writes units first, and then the checkpoint.
        checkpoint = load_checkpoint(config.store_path_root_dir / "checkpoint")
        self._queues = offline_queues(config.consume_queue_directory, files)
        self._topics = {topic for topic, _ in self._queues}
        self._units_until = max(checkpoint.confirm_phy_offset, self._end_of_units())
        self._delays_ms = parse_delay_levels(config.message_delay_level)
        #: Ranges of queue offsets whose units were compared with records.
        self._sure: dict[OfflineQueue, range] = {}
        self._index = None if self._report.in_use else IndexChecker(config, self._log.min_offset, self._report)

    def _end_of_units(self) -> int:
        """Returns the physical offset at the end of the last record that has a unit."""
        last = (queue.unit(queue.end - 1) for queue in self._queues.values())
        return max((unit.physical_offset + unit.size for unit in last if unit and not unit.is_filler), default=0)

    def run(self) -> Report:
        report, log = self._report, self._log
        self._check_log_files()
        report.log_begin = report.log_end = log.min_offset
        start: int | None = log.min_offset
        while start is not None:
            start = self._check_log_from(start)
        self._progress("log", log.limit - log.min_offset, log.limit - log.min_offset)
        report.queues = len(self._queues)
        for number, queue in enumerate(self._queues.values()):
            self._progress("queues", number, len(self._queues))
            self._check_queue(queue)
        self._progress("queues", len(self._queues), len(self._queues))
        if self._index is not None:
            self._index.finish()
        return report

    # -- log ----------------------------------------------------------------------------------------------------

    def _check_log_files(self) -> None:
        files = self._log.files
        for file, following in pairwise(files):
            if file.length != files[0].length:
                self._report.add(f"{file.path} has {file.length} bytes, the first file {files[0].length}")
            if following.base != file.base + files[0].length:
                self._report.add(f"between {file.path} and {following.path.name} a file is missing")

    def _check_log_from(self, start: int) -> int | None:
        """Checks the records up to the first invalid one. Returns where to continue, or None at the end."""
        report, log = self._report, self._log
        reader = log.reader(start)
        for _ in range(2):
            self._read(reader)
            if not (report.in_use and reader.problem):
                break
            clock.sleep(_RETRY_S)
            reader = log.reader(reader.end)
        report.log_end = max(report.log_end, reader.end)
        later = [file for file in log.files if file.base > reader.end and self._is_written(file.base)]
        if reader.problem:
            report.add(f"log, {reader.end}: {reader.problem}")
        elif later and not report.in_use:
            report.add(f"log, {reader.end}: nothing follows here, but {later[0].path.name} has records")
        return later[0].base if later else None

    def _read(self, reader: LogReader) -> None:
        records = iter(reader)
        reported = 0
        while True:
            begin = reader.end
            if begin >= reported:
                self._progress("log", begin - self._log.min_offset, self._log.limit - self._log.min_offset)
                reported = begin + _PROGRESS_BYTES
            # Native code needs memory that does not change.
            runs = None if self._report.in_use else reader.runs()
            if runs is not None:
                if self._have_units(runs):
                    self._report.records += runs.records
                    if self._index is not None:
                        self._index.check_all(self._log, begin, reader.end)
                else:
                    for one in self._log.records(begin, reader.end):
                        self._check_record(one)
            elif (record := next(records, None)) is not None:
                self._check_record(record)
            else:
                return

    def _is_written(self, base: int) -> bool:
        found = self._log.view_at(base)
        return found is not None and any(found[0][:8])

    def _have_units(self, runs: Runs) -> bool:
        """Returns whether each of these records has its unit. If False, the records must be checked individually."""
        found = []
        for run in runs.runs:
            queue = self._queues.get((run.topic.decode(), run.queue_id))
            first = None if queue is None else queue.unit(queue.first_offset)
            if queue is None or first is None or first.physical_offset > UNIT.unpack_from(run.units)[0]:
                return False
            if not queue.has(run.first, run.units):
                return False
            found.append((queue, run.first, run.first + len(run.units) // UNIT_SIZE))
        for queue, begin, end in found:
            sure = self._sure.get(queue, range(0))
            self._sure[queue] = range(sure.start if sure.stop == begin else begin, end)
        return True

    def _check_record(self, record: Record) -> None:
        self._report.records += 1
        found = self._log.view_at(record.physical_offset)
        assert found is not None
        at = record.physical_offset - found[1]
        raw = found[0][at : at + record.size]
        if has_crc(raw) and not has_right_crc(raw):
            self._report.add(f"log, {record.physical_offset}: the property __CRC32# is wrong")
        if self._index is not None:
            self._index.check(record)
        if record.sys_flag & TRANSACTION_PREPARED:
            return
        try:
            topic = record.topic.decode()
        except UnicodeDecodeError:
            self._report.add(f"log, {record.physical_offset}: the topic {record.topic!r} is no text")
            return
        if record.physical_offset < self._deleted_topics.get(topic, 0):
            self._report.without_unit += 1
            return
        queue = self._queues.get((topic, record.queue_id))
        problem = self._unit_problem(queue, record)
        if problem:
            self._report.add(f"log, {record.physical_offset}: {topic}-{record.queue_id} {problem}")

    def _unit_problem(self, queue: OfflineQueue | None, record: Record) -> str:
        offset = record.queue_offset
        # The next start builds these units (`recovery.py`). A slave has none for records that are not confirmed.
        if record.physical_offset >= self._units_until:
            self._report.without_unit += 1
            return ""
        first = None if queue is None else queue.unit(queue.first_offset)
        if queue is None or first is None:
            if record.topic.decode() in self._topics:
                return f"has no units, this record is its queue offset {offset}"
            self._report.without_unit += 1
            return ""
        if queue.first_offset == 0 and first.physical_offset > record.physical_offset:
            # The topic was deleted and created again.
            self._report.without_unit += 1
            return ""
        unit = queue.unit(offset)
        if unit is None:
            return (
                f"has the queue offsets {queue.first_offset} to {queue.end - 1}, but not {offset}, which this record is"
            )
        if unit.physical_offset > record.physical_offset:
            self._report.without_unit += 1
            return ""
        if (unit.physical_offset, unit.size) != (record.physical_offset, record.size):
            return (
                f"says that its queue offset {offset}, which this record of {record.size} bytes is, is at "
                f"{unit.physical_offset} and has {unit.size} bytes"
            )
        # The delay levels may have changed since the record was stored.
        if record.topic != _SCHEDULE_TOPIC and unit.tags_code >= _MIN_TAGS_CODE:
            tags_code = tags_code_of(record, self._delays_ms)
            if unit.tags_code != tags_code:
                return f"gives its queue offset {offset} the tags code {unit.tags_code} in place of {tags_code}"
        return ""

    # -- queues -------------------------------------------------------------------------------------------------

    def _check_queue(self, queue: OfflineQueue) -> None:
        report, log = self._report, self._log
        expected = queue.first_offset
        last = -1
        sure = self._sure.get(queue, range(0))
        # The last verified unit is read again, because the next one must point to a later record.
        units = chain(
            queue.units(queue.first_offset, sure.start), queue.units(max(sure.stop - 1, sure.start), queue.end)
        )
        for unit in units:
            if unit.offset == sure.stop - 1:
                report.units += unit.offset - expected
                expected = unit.offset
            if unit.offset != expected:
                report.add(f"{queue!r}: the file with the queue offsets {expected} to {unit.offset - 1} is missing")
            expected = unit.offset + 1
            report.units += 1
            if unit.is_filler:
                continue
            if unit.physical_offset <= last:
                report.add(f"{queue!r}, {unit.offset}: points to {unit.physical_offset}, the one before to {last}")
            last = unit.physical_offset
            if log.min_offset <= unit.physical_offset and not self._points_to_record(queue, unit):
                report.add(f"{queue!r}, {unit.offset}: there is no record of it at {unit.physical_offset}")

    def _points_to_record(self, queue: OfflineQueue, unit: tuple[int, int, int, int]) -> bool:
        offset, physical_offset, size, _ = unit
        if physical_offset >= self._report.log_end:
            return self._report.in_use
        found = self._log.view_at(physical_offset)
        if found is None or physical_offset - found[1] + size > len(found[0]) or size < FIXED_SIZE_V4:
            return False
        place = _unpack_place(found[0], physical_offset - found[1])
        return place == (size, queue.queue_id, offset, physical_offset)


class IndexChecker:
    """Compares the keys of all records, in order, with the entries of the index."""

    def __init__(self, config: StoreConfig, min_offset: int, report: Report) -> None:
        self._config = config
        self._min_offset = min_offset
        self._report = report
        self._hash = KeyHash()
        self._paths: list[Path] = []
        self._begin, self._end = 0, -1
        expected = file_size(config.max_hash_slot_num, config.max_index_num)
        for path in index_paths(config.index_directory):
            if files.stat(path).st_size != expected:
                report.add(
                    f"{path} has {files.stat(path).st_size} bytes, maxHashSlotNum and maxIndexNum give {expected}"
                )
                continue
            header = read_header(path)
            if header.index_count > 1:
                if not self._paths:
                    self._begin = header.begin_phy_offset
                self._end = header.end_phy_offset
            self._paths.append(path)
        report.index_files = len(self._paths)
        self._groups = self._read_groups()
        self._group = next(self._groups, None)

    def check(self, record: Record) -> None:
        """Compares the keys of a record with its index entries."""
        at = record.physical_offset
        if record.sys_flag & TRANSACTION_ROLLBACK != TRANSACTION_ROLLBACK:
            hashes = {self._hash(record.topic + b"#" + key) for key in keys_of(record.properties)}
            self._check(at, hashes, lambda: record)

    def check_all(self, log: OfflineLog, begin: int, end: int) -> None:
        """Does the same as `check` for all records in a range of one file. The records must be valid."""
        found = log.view_at(begin)
        assert found is not None
        view, base = found
        if native is None:
            for record in log.records(begin, end):
                self.check(record)
            return
        start, following = -1, begin - base
        while start < following < end - base:
            start = following
            entries, _, following = native.index_entries(
                view, start, end - base, base, _ALL, _ENTRIES_AT_ONCE, _ALL, _NO_TOPIC
            )
            self._check_entries(entries, view, base)

    def _check_entries(self, entries: IndexEntries, view: memoryview, base: int) -> None:
        """Compares the expected entries of some records. Their file starts at the physical offset `base`."""
        at, hashes = -1, set[int]()
        for number in range(len(entries)):
            key_hash, physical_offset, _ = entries[number]
            if physical_offset != at:
                if hashes:
                    self._check(at, hashes, partial(decode_record, view, at - base))
                at, hashes = physical_offset, set()
            hashes.add(key_hash)
        if hashes:
            self._check(at, hashes, partial(decode_record, view, at - base))

    def _check(self, at: int, hashes: set[int], decode: Callable[[], Record]) -> None:
        if not self._begin <= at <= self._end:
            return
        self._skip_to(at)
        found: set[int] = set()
        if self._group is not None and self._group[0] == at:
            found = self._group[1]
            self._group = next(self._groups, None)
        # The index can end between two keys of the last record. A later build continues there.
        is_last = at == self._end and self._group is None
        # Java's index also contains the half messages of batches.
        if found == hashes or (is_last and found < hashes):
            return
        record = decode()
        if found or not is_left_out(record.topic, record.properties):
            foreign, lacking = len(found - hashes), len(hashes - found)
            self._report.add(f"index: of the record at {at} it has {foreign} hashes too many, and lacks {lacking}")

    def finish(self) -> None:
        """Reports index entries after the last record."""
        self._skip_to(sys.maxsize)

    def _skip_to(self, physical_offset: int) -> None:
        while self._group is not None and self._group[0] < physical_offset:
            if self._group[0] >= self._min_offset:
                self._report.add(f"index: {self._group[0]} is no record with a key")
            self._group = next(self._groups, None)

    def _read_groups(self) -> Iterator[tuple[int, set[int]]]:
        """Yields (physical offset, hashes of its keys) for successive entries of the same record."""
        last, hashes = -1, set[int]()
        for path in self._paths:
            for key_hash, physical_offset in self._read_entries(path):
                if physical_offset != last:
                    if hashes:
                        yield last, hashes
                    if physical_offset < last:
                        self._report.add(f"{path}: an entry for {physical_offset} follows one for {last}")
                    last, hashes = physical_offset, set()
                hashes.add(key_hash)
        if hashes:
            yield last, hashes

    def _read_entries(self, path: Path) -> Iterator[tuple[int, int]]:
        """Yields (hash, physical offset) of a file's entries. Also checks the chains."""
        report, slots = self._report, self._config.max_hash_slot_num
        header = read_header(path)
        count = min(header.index_count, self._config.max_index_num)
        newest = array("i", bytes(SLOT.size * slots))
        used = 0
        fd = files.open(path, files.O_RDONLY | files.O_CLOEXEC)
        try:
            entries_at = HEADER_SIZE + SLOT.size * slots
            number = 1
            while number < count:
                size = min(count - number, _ENTRIES_AT_ONCE) * ENTRY_SIZE
                data = files.pread(fd, size, entries_at + number * ENTRY_SIZE)
                for key_hash, physical_offset, _, previous in ENTRY.iter_unpack(data):
                    report.index_entries += 1
                    slot = key_hash % slots
                    if previous != newest[slot]:
                        report.add(f"{path}: entry {number} follows entry {previous}, not {newest[slot]}")
                    used += not newest[slot]
                    newest[slot] = number
                    number += 1
                    yield key_hash, physical_offset
            if sys.byteorder == "little":
                newest.byteswap()
            found = files.pread(fd, SLOT.size * slots, HEADER_SIZE)
            if found != newest.tobytes():
                report.add(f"{path}: {_differences(found, newest)} slots don't point to their newest entry")
        finally:
            files.close(fd)
        if used != header.hash_slot_count:
            report.add(f"{path}: the header says that {header.hash_slot_count} slots are used, {used} are")


def _differences(found: bytes, expected: Sequence[int]) -> int:
    slots = array("i", found)
    return sum(1 for one, other in zip(slots, expected, strict=True) if one != other)
