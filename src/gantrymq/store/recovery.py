"""Makes commit log and consume queues agree when a store is opened (`CommitLog.recoverNormally`, `recoverAbnormally`).

The log is the truth. From a place before which all is known to be good, its records are read one by one; the first
that is no good record is the end of the log, and what follows is cut off. Each record's unit is written where the queue
lacks it or has another; units that point beyond the end are dropped.

Where to begin: after a clean close at the last record that a queue points to. After a crash at what the checkpoint says
was on the disk, unless the queues are behind that. When a queue turns out to lack units before the first record read,
reading begins again from that queue's last good one.
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
from gantrymq.store.consume_queue import FILLER_SIZE, UNIT, ConsumeQueue, units_before
from gantrymq.store.delay_level import may_have_code, tags_code_of
from gantrymq.store.log_reader import LogReader, Run, Runs
from gantrymq.store.queue_table import QueueTable

log = logging.getLogger(__name__)

#: Disks write so many bytes as a whole, or more of them.
_SECTOR = 512
#: Bytes between two reports of progress.
_PROGRESS_BYTES = 1024 * 1024


class Recovery:
    """Brings loaded files into agreement. With `needs_crc` a record without a right `record_crc` is no good one.

    `progress` is called now and then with the physical offset that has been read.
    """

    def __init__(
        self,
        commit_log: CommitLog,
        queues: QueueTable,
        delays_ms: Sequence[int],
        needs_crc: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self._log = commit_log
        self._queues = queues
        self._delays_ms = delays_ms
        self._needs_crc = needs_crc
        self._progress = progress
        self._restored = 0
        #: Queues whose missing units begin before the first record read, and where to read to find them.
        self._behind: dict[ConsumeQueue, int] = {}
        self._store_timestamp = 0
        #: Queues were whole up to here: one that has no files was deleted.
        self._closed_at = 0
        #: The first record of which a power failure may have taken a part that no checksum covers.
        self.torn_at: int | None = None
        #: From here on the disk may lack something.
        self._unsure_from: int | None = None

    def run(self, checkpoint: Checkpoint, *, was_aborted: bool) -> None:
        """After it the log's end and every queue's max_offset are right."""
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
            offset = queue.count_before(end) if queue.max_offset else 0
            # A power failure may leave holes there, and units of what an earlier recovery has cut off.
            while was_aborted and offset > queue.first_offset and not self._points_right(queue, offset - 1):
                offset -= 1
            if offset < queue.max_offset:
                log.warning("%r: dropping %d units that point behind the log's end", queue, queue.max_offset - offset)
            if was_aborted or offset < queue.max_offset:
                queue.cut(offset)
            queue.recovered_end = queue.max_offset if was_aborted else None
            queue.correct_min_offset(self._log.min_offset)
        checkpoint.confirm_phy_offset = min(checkpoint.confirm_phy_offset, end)
        if self._restored:
            log.warning("%d units were missing in the queues and are there again", self._restored)
        log.info("the log has %d to %d, in %d queues", self._log.min_offset, end, len(self._queues))

    # -- where to begin -----------------------------------------------------------------------------------------

    def _drop_wrong_units(self, queue: ConsumeQueue) -> None:
        """Takes units off the queue's end that don't point to this queue's record in the log."""
        if queue.max_offset == queue.first_offset or self._points_right(queue, queue.max_offset - 1):
            return
        offset = queue.count_before(self._log.position)
        while offset > queue.first_offset and not self._points_right(queue, offset - 1):
            offset -= 1
        log.warning("%r: dropping the last %d units, which point to no record", queue, queue.max_offset - offset)
        queue.cut(offset)
        # The record of a damaged unit may be there.
        self._queues.damaged[queue] = min(offset, self._queues.damaged.get(queue, offset))

    def _points_right(self, queue: ConsumeQueue, offset: int) -> bool:
        unit = queue.peek(offset)
        if unit is None:
            return False
        physical_offset, size, _ = unit
        if size == FILLER_SIZE or (size and 0 <= physical_offset < self._log.min_offset):
            return True  # Can't be told any more.
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
            unit = queue.peek(queue.max_offset - 1)
            if unit is not None and unit[1] != FILLER_SIZE and unit[0] > last:
                last, end = unit[0], unit[0] + unit[1]
        if was_aborted:
            sure = max(self._confirmed(checkpoint, end), self._file_before(checkpoint.min_timestamp))
            start, self._unsure_from = min(last, sure), sure
        else:
            start = last
        for queue in self._queues:
            lacks = self._queues.damaged.get(queue)
            if lacks is None and first == 0 and queue.first_offset > 0:
                log.warning("%r lacks its first file, while the log is whole", queue)
                lacks = 0
            if lacks is not None:
                unit = queue.peek(lacks - 1)
                start = min(start, first if unit is None else max(first, unit[0]))
        if not self._record_at(start):
            # The first record of its file is the nearest place where one surely begins.
            start = max(first, start - start % self._log.file_size)
        return start

    def _confirmed(self, checkpoint: Checkpoint, units_end: int) -> int:
        """What the checkpoint says is on the disk, if the log bears it out: the file may be old, or another store's."""
        offset = checkpoint.confirm_phy_offset
        if self._log.min_offset < offset and (self._record_at(offset) or offset == units_end):
            return offset
        return self._log.min_offset

    def _file_before(self, timestamp_ms: int) -> int:
        """The last file whose first record was stored by then."""
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
        """Puts the units of all records from `start` on in place; returns the log's end."""
        reader = LogReader(self._log, start, needs_crc=self._needs_crc)
        records = iter(reader)
        told = 0
        while True:
            if self._progress is not None and reader.end >= told:
                self._progress(reader.end)
                told = reader.end + _PROGRESS_BYTES
            if (runs := reader.runs()) is not None:
                damaged_at = self._put_runs(runs, start)
            elif (record := next(records, None)) is not None:
                damaged_at = self._put_record(record, start)
            else:
                break
            if damaged_at is not None:
                return damaged_at
        if reader.problem:
            log.warning("no good record at %d, the log ends there: %s", reader.end, reader.problem)
        return reader.end

    def _put_record(self, record: Record, start: int) -> int | None:
        """Puts its unit in place. Returns where it is if it is damaged after all."""
        self._store_timestamp = max(self._store_timestamp, record.store_timestamp)
        if b"\0" in record.properties and self.torn_at is None and self._is_unsure(record) and _is_torn(record):
            self.torn_at = record.physical_offset
        if record.sys_flag & TRANSACTION_PREPARED:
            return None  # Neither PREPARED nor ROLLBACK has a unit; both have this bit.
        queue = self._queue(record.topic, record.queue_id, record.physical_offset)
        if queue is None:
            return record.physical_offset
        self._put(queue, record, start)
        return None

    def _queue(self, topic: bytes, queue_id: int, physical_offset: int) -> ConsumeQueue | None:
        """The queue of the record there; None when there can't be such a queue."""
        try:
            return self._queues.get_or_create(topic.decode(), queue_id)
        except (UnicodeDecodeError, StoreError) as e:
            log.warning("the record at %d is damaged: %s", physical_offset, e)
            return None

    def _put_runs(self, runs: Runs, start: int) -> int | None:
        """`_put_record` of many."""
        found: list[tuple[ConsumeQueue, Run]] = []
        for run in runs.runs:
            physical_offset = UNIT.unpack_from(run.units)[0]
            queue = self._queue(run.topic, run.queue_id, physical_offset)
            if queue is None:
                for queue, earlier in found:
                    self._put_run(queue, earlier._replace(units=units_before(earlier.units, physical_offset)), start)
                return int(physical_offset)
            found.append((queue, run))
        self._store_timestamp = max(self._store_timestamp, runs.max_timestamp)
        for queue, run in found:
            self._put_run(queue, run, start)
        return None

    def _put_run(self, queue: ConsumeQueue, run: Run, start: int) -> None:
        for at in range(0, len(run.units), UNIT_SIZE):
            if self._put_at_once(queue, run.first + at // UNIT_SIZE, run.units[at:]):
                break
            self._put(queue, self._log.read(UNIT.unpack_from(run.units, at)[0]), start)

    def _put_at_once(self, queue: ConsumeQueue, offset: int, units: bytes) -> bool:
        """Puts units in place if that is easy: the queue has them, or ends before or among them."""
        there = queue.max_offset - offset
        (physical_offset, _, _) = UNIT.unpack_from(units)
        if there < 0 or not self._is_wanted(queue, physical_offset):
            return False
        if there == 0:
            last = queue.unit(offset - 1)
            if last is not None and last[0] > physical_offset:
                return False
        elif not queue.has(offset, units[: there * UNIT_SIZE]):
            return False
        self._queues.mark_dirty(queue)
        queue.unflushed_from(offset)
        missing = units[there * UNIT_SIZE :]
        queue.restore_behind(missing)
        self._restored += len(missing) // UNIT_SIZE
        return True

    def _is_wanted(self, queue: ConsumeQueue, physical_offset: int) -> bool:
        """Whether the unit of a record there is put into the queue in this reading of the log."""
        return queue not in self._behind and (queue.exists or physical_offset >= self._closed_at)

    def _is_unsure(self, record: Record) -> bool:
        """A power failure may have taken a part of it, or of its unit."""
        return self._unsure_from is not None and record.physical_offset >= self._unsure_from

    def _put(self, queue: ConsumeQueue, record: Record, start: int) -> None:
        offset, physical_offset = record.queue_offset, record.physical_offset
        if not self._is_wanted(queue, physical_offset):
            return
        code = tags_code_of(record, self._delays_ms)
        self._queues.mark_dirty(queue)
        queue.unflushed_from(offset)
        if offset < queue.max_offset:
            unit = queue.unit(offset)
            if unit is not None and unit[:2] == (physical_offset, record.size):
                # A power failure may leave a part of a unit.
                if not self._is_unsure(record) or may_have_code(record, unit[2], code):
                    return
            elif unit is not None and self._points_right(queue, offset):
                # The topic was deleted and made anew: what was stored later counts.
                if unit[0] > physical_offset:
                    return
                if offset == 0:
                    log.warning("%r begins again at the physical offset %d", queue, physical_offset)
                    queue.clear()
        else:
            last = queue.unit(queue.max_offset - 1)
            if last is not None and last[0] > physical_offset:
                return  # Also of a topic deleted since.
            if offset > queue.max_offset:
                if start > self._log.min_offset and (last is None or last[0] < start):
                    self._behind[queue] = self._log.min_offset if last is None else max(last[0], self._log.min_offset)
                    return
                if queue.max_offset or self._log.min_offset == 0:
                    log.warning("%r: no record has the queue offsets %d to %d", queue, queue.max_offset, offset - 1)
        queue.restore(offset, physical_offset, record.size, code)
        self._restored += 1


def _is_torn(record: Record) -> bool:
    """Whether one of the disk's sectors has nothing but zeros where the record has properties."""
    end = record.physical_offset + record.size
    start = end - len(record.properties)
    return any(
        not any(record.properties[max(sector, start) - start : sector + _SECTOR - start])
        for sector in range(start - start % _SECTOR, end, _SECTOR)
    )
