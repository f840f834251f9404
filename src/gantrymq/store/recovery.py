"""Makes commit log and consume queues consistent when a store is opened.

Sources: `CommitLog.recoverNormally`, `CommitLog.recoverAbnormally`.

The commit log is authoritative. Recovery starts at a position before which all data is known to be valid, and reads the
records one by one. The log ends at the first invalid record; all data after it is cut off. If the unit of a record is
missing or different in its queue, recovery writes it. Units that point beyond the end of the log are dropped.

The start position depends on the shutdown:
- After a clean shutdown, recovery starts at the last record that a queue points to.
- After a crash, it starts at the position that was on disk according to the checkpoint. If the queues end before this
  position, it starts there.
- If a queue lacks units before the start position, recovery starts again at the queue's last valid unit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from gantrymq.errors import RecordError, StoreError
from gantrymq.protocol.record import Record
from gantrymq.protocol.sys_flag import TRANSACTION_PREPARED
from gantrymq.store.checkpoint import Checkpoint
from gantrymq.store.commit_log import CommitLog
from gantrymq.store.config import UNIT_SIZE
from gantrymq.store.consume_queue import FILLER_SIZE, UNIT, ConsumeQueue, LoadedQueue, Unit, units_before
from gantrymq.store.delay_level import may_have_code, tags_code_of
from gantrymq.store.log_reader import LogReader, Run, Runs
from gantrymq.store.queue_table import QueueTable

log = logging.getLogger(__name__)

#: Disks write at least this many bytes atomically.
_SECTOR = 512
#: Number of bytes between two progress reports.
_PROGRESS_BYTES = 1024 * 1024
#: Maximum number of units of a joined run. The time to compare units one by one grows with its square.
_MOST_JOINED = 4096
#: Maximum number of units in all joined runs.
_MOST_WAITING = 500_000


class _JoinedRun:
    """Successive runs of a queue. The first unit has the queue offset `first`, the unit behind the last one `end`."""

    __slots__ = ("end", "first", "parts", "queue")

    def __init__(self, queue: ConsumeQueue) -> None:
        self.queue = queue
        self.first = self.end = 0
        self.parts: list[bytes] = []

    def add(self, run: Run) -> None:
        """Adds a run that begins at `end`, or the first one."""
        if not self.parts:
            self.first = run.first
        self.parts.append(run.units)
        self.end = run.first + len(run.units) // UNIT_SIZE


class Recovery:
    """Recovers loaded files. With `needs_crc`, a record without a valid `record_crc` counts as invalid.

    `loaded` is the result of `QueueTable.load`. With many queues, the system calls to read each file again would take
    most of the time. Recovery therefore reads only the files of queues that it has changed.

    `progress` is called from time to time with the physical offset that has been read.
    """

    def __init__(
        self,
        commit_log: CommitLog,
        queues: QueueTable,
        loaded: dict[ConsumeQueue, LoadedQueue],
        delays_ms: Sequence[int],
        needs_crc: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self._log = commit_log
        self._queues = queues
        #: The queues that have not changed since they were loaded.
        self._loaded = loaded
        #: Queues with missing data, with the queue offset at which it is missing.
        self._damaged = {queue: found.lacks for queue, found in loaded.items() if found.lacks is not None}
        self._delays_ms = delays_ms
        self._needs_crc = needs_crc
        self._progress = progress
        self._restored = 0
        #: Queues whose missing units start before the first record that was read, with the offset at which reading must
        #: start.
        self._behind: dict[ConsumeQueue, int] = {}
        #: Successive runs of a queue are joined, because messages can be in many queues in turn. They wait here, by
        #: topic and queue id, until they have `_MOST_WAITING` units or a record follows that is no part of a run.
        self._joined: dict[tuple[bytes, int], _JoinedRun] = {}
        #: Number of units in `_joined`.
        self._waiting = 0
        self._store_timestamp = 0
        #: Queues were complete up to this physical offset. A queue without files was deleted.
        self._closed_at = 0
        #: The first record that a power failure may have damaged in a part that no checksum covers.
        self.torn_at: int | None = None
        #: Data from this physical offset on may be missing on disk.
        self._unsure_from: int | None = None

    def run(self, checkpoint: Checkpoint, *, was_aborted: bool) -> None:
        """Runs recovery. Afterwards the end of the log and each queue's `max_offset` are valid."""
        for queue in self._queues:
            self._drop_wrong_units(queue)
        start = self._start(checkpoint, was_aborted=was_aborted)
        if not was_aborted and self._queues.was_there:
            self._closed_at = checkpoint.confirm_phy_offset
        if was_aborted:
            log.warning("the last user of the store didn't close it: reading the log from %d on", start)
        end = self._read_from(start)
        while self._behind:
            start = min(start, *self._behind.values())
            log.warning("%d queues lack units: reading the log from %d on", len(self._behind), start)
            self._behind.clear()
            end = self._read_from(start)
        self._log.start_at(end, start)
        self._log.store_timestamp = self._log.flushed_timestamp = self._store_timestamp
        for queue in self._queues:
            found = self._loaded.get(queue)
            if found is None or found.has_tail or found.lacks is not None or not _is_before(found.last, end):
                found = None
                self._end_queue(queue, end, was_aborted=was_aborted)
            queue.correct_min_offset(self._log.min_offset, None if found is None else found.first)
        if was_aborted:
            self._queues.mark_recovered()
        checkpoint.confirm_phy_offset = min(checkpoint.confirm_phy_offset, end)
        if self._restored:
            log.warning("%d units were missing in the queues and are there again", self._restored)
        log.info("the log has %d to %d, in %d queues", self._log.min_offset, end, len(self._queues))

    def _end_queue(self, queue: ConsumeQueue, end: int, *, was_aborted: bool) -> None:
        """Drops the units of a queue that point behind the log's end."""
        offset = queue.count_before(end) if queue.max_offset else 0
        # A power failure can leave gaps there, and units of records that an earlier recovery cut off.
        while was_aborted and offset > queue.first_offset and not self._points_right(queue, offset - 1):
            offset -= 1
        if offset < queue.max_offset:
            log.warning("%r: dropping %d units that point behind the log's end", queue, queue.max_offset - offset)
        if was_aborted or offset < queue.max_offset:
            queue.cut(offset)

    # -- start position -----------------------------------------------------------------------------------------

    def _last_unit(self, queue: ConsumeQueue) -> Unit | None:
        found = self._loaded.get(queue)
        return queue.peek(queue.max_offset - 1) if found is None else found.last

    def _drop_wrong_units(self, queue: ConsumeQueue) -> None:
        """Drops units at the end of a queue that don't point to a record of this queue."""
        last = self._last_unit(queue)
        if queue.max_offset == queue.first_offset or self._is_right(queue, queue.max_offset - 1, last):
            return
        self._loaded.pop(queue, None)
        offset = queue.count_before(self._log.position)
        while offset > queue.first_offset and not self._points_right(queue, offset - 1):
            offset -= 1
        log.warning("%r: dropping the last %d units, which point to no record", queue, queue.max_offset - offset)
        queue.cut(offset)
        # The record of a damaged unit may still be in the log.
        self._damaged[queue] = min(offset, self._damaged.get(queue, offset))

    def _points_right(self, queue: ConsumeQueue, offset: int) -> bool:
        return self._is_right(queue, offset, queue.peek(offset))

    def _is_right(self, queue: ConsumeQueue, offset: int, unit: Unit | None) -> bool:
        """Returns whether the unit with this queue offset points to a record of the queue."""
        if unit is None:
            return False
        physical_offset, size, _ = unit
        if size == FILLER_SIZE or (size and 0 <= physical_offset < self._log.min_offset):
            return True  # The record has been deleted, so it can't be checked.
        try:
            record = self._log.read(physical_offset, check_crc=False)
        except (RecordError, StoreError):
            return False
        return (
            record.size == size
            and record.queue_offset == offset
            and record.queue_id == queue.queue_id
            and record.topic == queue.topic_bytes
        )

    def _start(self, checkpoint: Checkpoint, *, was_aborted: bool) -> int:
        first = self._log.min_offset
        last, end = first, first
        for queue in self._queues:
            unit = self._last_unit(queue)
            if unit is not None and unit[1] != FILLER_SIZE and unit[0] > last:
                last, end = unit[0], unit[0] + unit[1]
        if was_aborted:
            sure = max(self._confirmed(checkpoint, end), self._file_before(checkpoint.min_timestamp))
            start, self._unsure_from = min(last, sure), sure
        else:
            start = last
        for queue in self._queues:
            lacks = self._damaged.get(queue)
            if lacks is None and first == 0 and queue.first_offset > 0:
                log.warning("%r lacks its first file, while the log is whole", queue)
                lacks = 0
            if lacks is not None:
                unit = queue.peek(lacks - 1)
                start = min(start, first if unit is None else max(first, unit[0]))
        if not self._record_at(start):
            # The first record of its file is the nearest position where a record certainly starts.
            start = max(first, start - start % self._log.file_size)
        return start

    def _confirmed(self, checkpoint: Checkpoint, units_end: int) -> int:
        """Returns the physical offset that is on disk according to the checkpoint, if the log confirms it.

        The checkpoint can be outdated or belong to another store. In that case, returns the start of the log.
        """
        offset = checkpoint.confirm_phy_offset
        if self._log.min_offset < offset and (self._record_at(offset) or offset == units_end):
            return offset
        return self._log.min_offset

    def _file_before(self, timestamp_ms: int) -> int:
        """Returns the start of the last file whose first record was stored at or before this time."""
        first, size = self._log.min_offset, self._log.file_size
        for base in range(self._log.position - size, first, -size):
            if 0 < self._log.store_time(base) <= timestamp_ms:
                return base
        return first

    def _record_at(self, physical_offset: int) -> bool:
        try:
            self._log.read(physical_offset)
        except (RecordError, StoreError):
            return False
        return True

    # -- reading the log ----------------------------------------------------------------------------------------

    def _read_from(self, start: int) -> int:
        """Writes the missing units of all records from `start` on. Returns the end of the log."""
        reader = LogReader(self._log, start, needs_crc=self._needs_crc)
        records = iter(reader)
        reported = 0
        while True:
            if self._progress is not None and reader.end >= reported:
                self._progress(reader.end)
                reported = reader.end + _PROGRESS_BYTES
            if (runs := reader.runs()) is not None:
                damaged_at = self._put_runs(runs, start)
            else:
                self._put_joined(start)
                if (record := next(records, None)) is None:
                    break
                damaged_at = self._put_record(record, start)
            if damaged_at is not None:
                return damaged_at
        if reader.problem:
            log.warning("no good record at %d, the log ends there: %s", reader.end, reader.problem)
        return reader.end

    def _put_record(self, record: Record, start: int) -> int | None:
        """Writes the unit of a record if it is missing. Returns the record's offset if the record is damaged."""
        self._store_timestamp = max(self._store_timestamp, record.store_timestamp)
        if b"\0" in record.properties and self.torn_at is None and self._is_unsure(record) and _is_torn(record):
            self.torn_at = record.physical_offset
        if record.sys_flag & TRANSACTION_PREPARED:
            return None  # PREPARED and ROLLBACK contain this bit. Neither has a unit.
        queue = self._queue(record.topic, record.queue_id, record.physical_offset)
        if queue is None:
            return record.physical_offset
        self._put(queue, record, start)
        return None

    def _queue(self, topic: bytes, queue_id: int, physical_offset: int) -> ConsumeQueue | None:
        """Returns the queue of the record at this offset; None if topic or queue id are invalid."""
        try:
            return self._queues.get_or_create(topic.decode(), queue_id)
        except (UnicodeDecodeError, StoreError) as e:
            log.warning("the record at %d is damaged: %s", physical_offset, e)
            return None

    def _put_runs(self, runs: Runs, start: int) -> int | None:
        """Does the same as `_put_record` for many records. Their units are written by `_put_joined`."""
        valid, damaged_at = runs.runs, None
        for number, run in enumerate(valid):
            if (run.topic, run.queue_id) in self._joined:
                continue
            physical_offset = UNIT.unpack_from(run.units)[0]
            queue = self._queue(run.topic, run.queue_id, physical_offset)
            if queue is None:
                damaged_at = int(physical_offset)
                valid = [run._replace(units=units_before(run.units, damaged_at)) for run in valid[:number]]
                break
            self._joined[run.topic, run.queue_id] = _JoinedRun(queue)
        for run in valid:
            joined = self._joined[run.topic, run.queue_id]
            count = len(run.units) // UNIT_SIZE
            if joined.parts and (run.first != joined.end or joined.end + count - joined.first > _MOST_JOINED):
                self._put_run(joined, start)
            joined.add(run)
            self._waiting += count
        if damaged_at is None:
            self._store_timestamp = max(self._store_timestamp, runs.max_timestamp)
            if self._waiting < _MOST_WAITING:
                return None
        self._put_joined(start)
        return damaged_at

    def _put_joined(self, start: int) -> None:
        """Writes the units of `_joined`."""
        for joined in self._joined.values():
            if joined.parts:
                self._put_run(joined, start)
        self._joined.clear()

    def _put_run(self, run: _JoinedRun, start: int) -> None:
        queue, units = run.queue, b"".join(run.parts)
        run.parts.clear()
        self._waiting -= len(units) // UNIT_SIZE
        for at in range(0, len(units), UNIT_SIZE):
            if self._put_at_once(queue, run.first + at // UNIT_SIZE, units[at:]):
                break
            self._put(queue, self._log.read(UNIT.unpack_from(units, at)[0]), start)

    def _put_at_once(self, queue: ConsumeQueue, offset: int, units: bytes) -> bool:
        """Writes units in simple cases: the queue has them already, or it ends before or among them.

        Returns False otherwise; nothing is written then.
        """
        there = queue.max_offset - offset
        (physical_offset, _, _) = UNIT.unpack_from(units)
        if there < 0 or not self._is_wanted(queue, physical_offset):
            return False
        if there == 0:
            last = queue.unit(offset - 1)
            if last is not None and last[0] > physical_offset:
                return False
        elif not self._has(queue, offset, units[: there * UNIT_SIZE]):
            return False
        self._queues.mark_dirty(queue)
        queue.unflushed_from(offset)
        missing = units[there * UNIT_SIZE :]
        if missing:
            self._loaded.pop(queue, None)
        queue.restore_behind(missing)
        self._restored += len(missing) // UNIT_SIZE
        return True

    def _has(self, queue: ConsumeQueue, offset: int, units: bytes) -> bool:
        loaded = self._loaded_units(queue, offset)
        return loaded.startswith(units) if loaded else queue.has(offset, units)

    def _loaded_units(self, queue: ConsumeQueue, offset: int) -> bytes:
        """Returns the units from a queue offset on as `load` has read them; b"" if it has not read the first one."""
        found = self._loaded.get(queue)
        if found is None:
            return b""
        at = len(found.units) - (queue.max_offset - offset) * UNIT_SIZE
        return found.units[at:] if at >= 0 else b""

    def _is_wanted(self, queue: ConsumeQueue, physical_offset: int) -> bool:
        """Returns whether the current pass over the log has to write the unit of the record at this offset."""
        return queue not in self._behind and (queue.exists or physical_offset >= self._closed_at)

    def _is_unsure(self, record: Record) -> bool:
        """Returns whether a power failure may have destroyed a part of the record or of its unit."""
        return self._unsure_from is not None and record.physical_offset >= self._unsure_from

    def _put(self, queue: ConsumeQueue, record: Record, start: int) -> None:
        offset, physical_offset = record.queue_offset, record.physical_offset
        if not self._is_wanted(queue, physical_offset):
            return
        code = tags_code_of(record, self._delays_ms)
        self._queues.mark_dirty(queue)
        queue.unflushed_from(offset)
        if offset < queue.max_offset:
            loaded = self._loaded_units(queue, offset)
            unit = UNIT.unpack_from(loaded) if loaded else queue.unit(offset)
            if unit is not None and unit[:2] == (physical_offset, record.size):
                # A power failure can leave a partly written unit.
                if not self._is_unsure(record) or may_have_code(record, unit[2], code):
                    return
            elif unit is not None and self._points_right(queue, offset):
                # The topic was deleted and created again. The later record counts.
                if unit[0] > physical_offset:
                    return
                if offset == 0:
                    log.warning("%r begins again at the physical offset %d", queue, physical_offset)
                    self._loaded.pop(queue, None)
                    queue.clear()
        else:
            last = queue.unit(queue.max_offset - 1)
            if last is not None and last[0] > physical_offset:
                return  # This record may also belong to a topic that was deleted.
            if offset > queue.max_offset:
                if start > self._log.min_offset and (last is None or last[0] < start):
                    self._behind[queue] = self._log.min_offset if last is None else max(last[0], self._log.min_offset)
                    return
                if queue.max_offset or self._log.min_offset == 0:
                    log.warning("%r: no record has the queue offsets %d to %d", queue, queue.max_offset, offset - 1)
        self._loaded.pop(queue, None)
        queue.restore(offset, physical_offset, record.size, code)
        self._restored += 1


def _is_before(last: Unit | None, end: int) -> bool:
    """Returns whether all units of a queue with this last unit count as before a physical offset."""
    return last is None or last[1] == FILLER_SIZE or last[0] < end


def _is_torn(record: Record) -> bool:
    """Returns whether the part of a disk sector that contains properties is all zeros."""
    end = record.physical_offset + record.size
    start = end - len(record.properties)
    return any(
        not any(record.properties[max(sector, start) - start : sector + _SECTOR - start])
        for sector in range(start - start % _SECTOR, end, _SECTOR)
    )
