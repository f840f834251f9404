"""CompactionLog: the records of one queue of a compaction topic, in order of their queue offsets (`CompactionLog`).

The last segment gets new records. Compaction replaces the segments before it, so the queue offsets have gaps there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from gantrymq.errors import StoreError
from gantrymq.protocol.record import BLANK_SIZE
from gantrymq.store.compaction.segment import SPARSE_UNIT_SIZE, CopiedRecord, FileSizes, Segment, SparseUnit
from gantrymq.store.config import UNIT_SIZE, StoreConfig
from gantrymq.store.get_result import GetResult, GetStatus
from gantrymq.store.mapped_file import list_files, store_error, sync_directory
from gantrymq.system import files
from gantrymq.system.clock import monotonic

logger = logging.getLogger(__name__)

#: Directory of the new files of a compaction, in the directory of the log (`CompactionLog.COMPACTING_SUB_FOLDER`).
COMPACTING = "compacting"
#: This file in `COMPACTING` lists the files to replace. It is on disk before the first one is replaced.
_REPLACED = "replaced"
#: Maximum time to evaluate a filter for one result, in seconds.
_MATCHING_S = 0.003
_LEAST_PULL_BYTES = 100
#: Maximum number of messages of one result. It takes about 2 ms.
_MOST_MESSAGES = 1000


class CompactionLog:
    """The compacted messages of one queue. `on_cut` is called with the new `end` when records were cut off.

    Attributes:
        end: The queue offset of the next message to copy. All messages before it are in the log or were compacted.
        flushed_end: The queue offset before which all messages are on disk.
        version: Increases when records are cut off, so that a running compaction is given up.
        is_deleted: Whether the topic was deleted.
    """

    def __init__(
        self, log_directory: Path, unit_directory: Path, sizes: FileSizes, on_cut: Callable[[int], None]
    ) -> None:
        self.log_directory = log_directory
        self.unit_directory = unit_directory
        self.sizes = sizes
        self._on_cut = on_cut
        self.end = self.flushed_end = 0
        self.version = 0
        self.is_deleted = False
        self._segments: list[Segment] = []
        #: The segment before the last one. Each `flush` flushes it again, in case that it has not done so completely.
        self._unflushed: list[Segment] = []
        #: Whether an error has interrupted `replace`, so that files are those of neither the old nor the new segments.
        self._is_replacing = False

    def __repr__(self) -> str:
        return f"<CompactionLog {self.log_directory} {self.min_offset}..{self.end}>"

    @property
    def is_empty(self) -> bool:
        return not self._segments

    @property
    def is_replacing(self) -> bool:
        """Whether an error has interrupted `replace`. Reads raise StoreError until `finish_replacing` has returned."""
        return self._is_replacing

    @property
    def min_offset(self) -> int:
        """The queue offset of the first message, or `end`."""
        return next((segment.first for segment in self._segments if segment.count), self.end)

    @property
    def unsure_from(self) -> int:
        """The queue offset from which a crash may have damaged records: all segments but the last two are on disk."""
        return self._segments[-2:][0].first if self._segments else self.end

    @property
    def closed_segments(self) -> list[Segment]:
        """The segments that get no new records."""
        return self._segments[:-1]

    # -- opening ------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Finds the files, after completing a replacement that a crash has interrupted. Raises StoreError."""
        self._finish_replacement()
        self._load_segments()
        if self._segments:
            self.end = self.flushed_end = self._segments[-1].last + 1

    def _load_segments(self) -> None:
        segments: list[Segment] = []
        records, units = list_files(self.log_directory), list_files(self.unit_directory)
        for base in records.keys() ^ units.keys():
            # A crash came between the creation of both files. They have no records then.
            logger.warning("%s and %s: only one has the file %020d", self.log_directory, self.unit_directory, base)
            Segment(self.log_directory, self.unit_directory, base, self.sizes).delete()
        bases = sorted(records.keys() & units.keys())
        for base in bases:
            segment = Segment(self.log_directory, self.unit_directory, base, self.sizes)
            segment.load(may_be_empty=base == bases[-1])
            if segment.count and (not segments or segment.first > segments[-1].last):
                segments.append(segment)
            else:
                segment.delete()
        self._segments = segments

    def cut(self, queue_offset: int) -> None:
        """Deletes the records from a queue offset on. Raises StoreError; the caller may try again."""
        if queue_offset >= self.end:
            return
        # Otherwise the files of the interrupted compaction would bring the records back.
        self.finish_replacing()
        self.version += 1
        while self._segments and self._segments[-1].first >= queue_offset:
            self._segments.pop().delete()
        if self._segments and self._segments[-1].last >= queue_offset:
            self._segments[-1].cut(queue_offset)
        self._unflushed = [segment for segment in self._unflushed if segment in self._segments[:-1]]
        self.end = min(self.end, queue_offset)
        self.flushed_end = min(self.flushed_end, queue_offset)
        self._on_cut(self.end)

    # -- writing ------------------------------------------------------------------------------------------------

    def append(self, records: list[CopiedRecord], end: int) -> None:
        """Appends records. All messages before the queue offset `end` are copied then. Raises StoreFull or StoreError.

        After an error, the next call begins with the record that was not appended.
        """
        records = [record for record in records if record.queue_offset >= self.end]
        while records:
            fitting = self._segments[-1].fitting(records) if self._segments else []
            if not fitting:
                self._roll(len(records[0].data))
                continue
            self._segments[-1].append(fitting)
            self.end = fitting[-1].queue_offset + 1
            records = records[len(fitting) :]
        self.end = max(self.end, end)

    def _roll(self, size: int) -> None:
        base = 0
        if self._segments:
            last = self._segments[-1]
            last.finish()
            for segment in self._unflushed:
                segment.sync()
            self._unflushed = [last]
            base = last.base + self.sizes.log
        if size + BLANK_SIZE > self.sizes.log or self.sizes.units < 2 * SPARSE_UNIT_SIZE:
            raise StoreError(f"a record of {size} bytes fits into no file of {self.sizes.log} bytes: {self!r}")
        segment = Segment(self.log_directory, self.unit_directory, base, self.sizes)
        segment.create()
        self._segments.append(segment)

    def flush(self) -> None:
        """Flushes the last segment to disk. May run in a thread. Raises OSError or SyncFailed."""
        end, segments = self.end, [*self._unflushed, *self._segments[-1:]]
        for segment in segments:
            try:
                segment.sync()
            except FileNotFoundError:
                # A compaction has replaced it, or the topic was deleted.
                if segment in self._segments and not self.is_deleted and not self._is_replacing:
                    raise
        if segments and not self.is_deleted:
            sync_directory(self.log_directory)
            sync_directory(self.unit_directory)
        self.flushed_end = min(end, self.end)

    # -- reading ------------------------------------------------------------------------------------------------

    def read(
        self,
        result: GetResult,
        config: StoreConfig,
        max_messages: int,
        max_bytes: int,
        tags_codes: frozenset[int] | None,
        matches: Callable[[memoryview], bool] | None,
        *,
        bulk: bool,
        end: int | None,
    ) -> None:
        """Adds records from `result.next_begin_offset` on to `result`. The arguments are those of `MessageStore.get`.

        If no record is left, `next_begin_offset` becomes `end` of this log (`CompactionLog.getMessage`). Raises
        StoreError.
        """
        if self._is_replacing:
            raise StoreError(f"an error has interrupted the compaction of {self.log_directory}: it is tried again")
        if bulk:
            most, most_bytes = config.max_bulk_transfer_count, config.max_bulk_transfer_bytes
        else:
            most = config.max_transfer_count_on_message_in_memory
            most_bytes = config.max_transfer_bytes_on_message_in_memory
        most = max(min(max_messages, most, _MOST_MESSAGES), 1)
        most_bytes = min(max(max_bytes, _LEAST_PULL_BYTES), most_bytes)
        looked_at = max(config.max_filter_message_size // UNIT_SIZE, most)
        begin = result.next_begin_offset
        stops_at = self.end if end is None else min(end, self.end)
        matching_ends = monotonic() + _MATCHING_S
        segment: Segment | None = None
        number = 0
        while looked_at > 0 and not result.message_count:
            if segment is None:
                segment = self._segment_of(result.next_begin_offset)
                if segment is None:
                    result.next_begin_offset = max(begin, stops_at)
                    return
                number = segment.number_of(result.next_begin_offset)
            units = segment.units(number, min(most, looked_at, segment.count - number))
            wanted: list[SparseUnit] = []
            size = 0
            for position, unit in enumerate(units):
                if tags_codes is None or unit.tags_code in tags_codes:
                    if wanted and size + unit.size > most_bytes:
                        units = units[:position]
                        break
                    wanted.append(unit)
                    size += unit.size
            looked_at -= len(units)
            number += len(units)
            for unit, record in zip(wanted, segment.read(wanted), strict=True):
                if record is None or unit.queue_offset < result.next_begin_offset:
                    continue
                if unit.queue_offset >= stops_at:
                    result.next_begin_offset = max(result.next_begin_offset, stops_at)
                    return
                if matches is not None and result.next_begin_offset > begin and monotonic() >= matching_ends:
                    return
                if matches is None or matches(record):
                    if result.message_count and result.size + unit.size > most_bytes:
                        return
                    result.status = GetStatus.FOUND
                    result.buffers.append(record)
                    result.message_count += 1
                    result.size += unit.size
                result.next_begin_offset = unit.queue_offset + 1
            if number >= segment.count:
                result.next_begin_offset = max(result.next_begin_offset, min(segment.last + 1, stops_at))
                segment = None
            elif units[-1].queue_offset + 1 != result.next_begin_offset:
                # The last units are not wanted, or damaged. A damaged one must not hide the messages after it.
                passed = next((unit.queue_offset + 1 for unit in reversed(units) if segment.is_confirmed(unit)), begin)
                if passed > stops_at:
                    result.next_begin_offset = max(result.next_begin_offset, stops_at)
                    return
                result.next_begin_offset = max(result.next_begin_offset, passed)
        # If all these units are damaged, the next call must begin later.
        result.next_begin_offset = max(result.next_begin_offset, begin + 1)

    def store_time(self, queue_offset: int) -> int:
        """Returns the store time of the first message at or after a queue offset, in ms; -1 if there is none."""
        segment = self._segment_of(queue_offset)
        if segment is None:
            return -1
        number = segment.number_of(queue_offset)
        return segment.unit(number).store_time if number < segment.count else -1

    def _segment_of(self, queue_offset: int) -> Segment | None:
        """Returns the segment with the first message at or after a queue offset."""
        return next((segment for segment in self._segments if segment.last >= queue_offset), None)

    # -- replacing ----------------------------------------------------------------------------------------------

    def replace(self, old: list[Segment], new: Iterable[Segment]) -> None:
        """Replaces the first segments by new ones from `COMPACTING`, which are on disk. Raises OSError or StoreError.

        A crash at any point leaves either the old or the new segments, because `load` completes the replacement.
        """
        compacting = self.log_directory / COMPACTING
        files.make_lasting_directory(compacting)
        moved = [Segment(self.log_directory, self.unit_directory, segment.base, self.sizes) for segment in new]
        text = ";".join(",".join(str(segment.base) for segment in segments) for segments in (old, moved))
        files.rename(files.write_beside(compacting / _REPLACED, text.encode()), compacting / _REPLACED)
        sync_directory(compacting)
        self._is_replacing = True
        self.finish_replacing()

    def finish_replacing(self) -> None:
        """Completes a replacement that an error has interrupted. Raises StoreError."""
        if self._is_replacing:
            self._finish_replacement()
            self._load_segments()
            self._unflushed = self._segments[-2:-1]
            self._is_replacing = False
            self.delete_compacting()

    def _finish_replacement(self) -> None:
        """Moves the files of a complete compaction to their places, and deletes those of an incomplete one."""
        compacting = self.log_directory / COMPACTING
        try:
            try:
                old, new = self._read_replaced(compacting / _REPLACED)
            except FileNotFoundError:
                self.delete_compacting()
                return
            for directory in (self.unit_directory, self.log_directory):
                for base in old - new:
                    files.unlink(directory / f"{base:020d}", missing_ok=True)
                for base in new:
                    # If the file is missing, it was moved before a crash.
                    with suppress(FileNotFoundError):
                        files.rename(directory / COMPACTING / f"{base:020d}", directory / f"{base:020d}")
                sync_directory(directory)
            files.unlink(compacting / _REPLACED)
            sync_directory(compacting)
            self.delete_compacting()
        except OSError as e:
            raise store_error(e, f"can't replace the compacted files of {self.log_directory}") from e

    def _read_replaced(self, path: Path) -> tuple[set[int], set[int]]:
        """Returns the names of the files to replace and of the new ones. Raises OSError, or StoreError if damaged."""
        try:
            old, new = (
                {int(base) for base in text.split(",") if base} for text in files.read_bytes(path).decode().split(";")
            )
            for directory in (self.log_directory, self.unit_directory):
                for base in new:
                    name = f"{base:020d}"
                    if not files.exists(directory / COMPACTING / name) and not files.exists(directory / name):
                        raise ValueError(f"the file {name} of the compaction does not exist")
        except ValueError as e:
            raise StoreError(
                f"{path} is damaged, so an interrupted compaction cannot be completed: {e}. Move "
                f"{self.log_directory} and {self.unit_directory} away to copy the messages again that are still in "
                "the commit log"
            ) from e
        return old, new

    def mark_deleted(self) -> None:
        """Makes a running compaction or flush end. The caller deletes the files."""
        self.is_deleted = True

    def delete_compacting(self) -> None:
        """Deletes the files of a compaction that was given up, unless they are replacing others."""
        if self._is_replacing:
            return
        for directory in (self.log_directory, self.unit_directory):
            files.remove_tree(directory / COMPACTING)
