"""CompactionStore: the compaction logs of a store, and the copying of messages into them (`CompactionStore`).

Java copies a message when it dispatches it. Here, a background job copies them, because a read of messages that are not
copied yet uses the consume queue. Only messages that are flushed and confirmed are copied, so a copied message can't
disappear from the queue in a crash or a change of master. A file of the commit log is only deleted when its messages
of compaction topics are copied and flushed.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

import msgspec

from gantrymq.errors import RecordError, StoreError
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.record import Record, decode_record
from gantrymq.store.commit_log import CommitLog
from gantrymq.store.compaction.compaction_log import CompactionLog
from gantrymq.store.compaction.compactor import Compactor, key_of
from gantrymq.store.compaction.segment import SPARSE_UNIT_SIZE, CopiedRecord, FileSizes
from gantrymq.store.config import StoreConfig
from gantrymq.store.consume_queue import FILLER_SIZE, UNIT, ConsumeQueue
from gantrymq.store.json_config import JsonConfigFile
from gantrymq.store.mapped_file import store_error
from gantrymq.store.queue_table import QueueTable, queues_in
from gantrymq.store.trash import Trash
from gantrymq.system import files
from gantrymq.system.clock import monotonic

logger = logging.getLogger(__name__)

#: Maximum number of messages, and of bytes, that one step copies. It takes about 1 ms.
_COPIED_AT_ONCE = 50
_BYTES_AT_ONCE = 1 << 20
#: Maximum number of steps of one queue before the other queues follow.
_STEPS_OF_QUEUE = 20
_LOGS, _UNITS = "compactionLog", "compactionCq"


class MissingMessages(NamedTuple):
    """Messages that a slave must read from its master, because its commit log begins after them."""

    queue: ConsumeQueue
    begin: int
    end: int


class CompactionPositions(msgspec.Struct, rename="camel"):
    """The content of the file of positions (`CompactionPositionMgr`).

    Attributes:
        queue_offset_map: "TOPIC_QUEUE" -> queue offset of the last compacted message.
    """

    queue_offset_map: dict[str, int] = {}


class CompactionStore:
    """The compaction logs of one store.

    `topics` returns the names of the compaction topics. `confirmed_end` returns the end of a queue's confirmed
    messages. All methods but `flush` must be called in the broker's thread.
    """

    def __init__(
        self,
        config: StoreConfig,
        commit_log: CommitLog,
        queues: QueueTable,
        trash: Trash,
        topics: Callable[[], Collection[str]],
        confirmed_end: Callable[[ConsumeQueue], int],
    ) -> None:
        self._config = config
        self._commit_log = commit_log
        self._queues = queues
        self._trash = trash
        self._topics = topics
        self._confirmed_end = confirmed_end
        self._sizes = file_sizes(config)
        self._root = config.store_path_root_dir / "compaction"
        self._logs: dict[ConsumeQueue, CompactionLog] = {}
        #: `CompactionPositions.queue_offset_map` of the existing queues.
        self._positions: dict[str, int] = {}
        self._position_file = JsonConfigFile(self._root / "position-checkpoint")
        #: The remaining queues of the current round of copying. The first one has had `_steps` steps.
        self._round: deque[ConsumeQueue] = deque()
        self._steps = 0
        #: Whether a queue has more messages to copy after the round.
        self._has_more = False
        #: Queues whose copies from a queue offset on may be damaged by a crash, although the commit log lacks them.
        self._unsure: dict[ConsumeQueue, int] = {}
        #: The error of each queue whose last step has failed.
        self._failing: dict[ConsumeQueue, StoreError] = {}

    # -- opening ------------------------------------------------------------------------------------------------

    def load(self, *, was_aborted: bool) -> None:
        """Opens the logs on disk. Raises StoreError."""
        if not files.is_directory(self._root):
            return
        content = self._position_file.load(_decode_positions, can_be_rebuilt=True)
        positions = {} if content is None else _decode_positions(content)
        for topic, queue_id in queues_in(self._root / _LOGS):
            queue = self._queues.get_or_create(topic, queue_id)
            log = self._open(queue)
            position = positions.get(_name(queue))
            # A position at or after the end is of lost messages. All messages are compacted again then.
            if position is not None and position < log.end:
                self._positions[_name(queue)] = position
            if was_aborted:
                unsure_from = log.unsure_from
                # These messages are copied again. The commit log lacks those before them.
                log.cut(max(unsure_from, queue.log_min_offset if queue.max_offset else log.end))
                if unsure_from < log.end:
                    self._unsure[queue] = unsure_from
            if queue.max_offset:
                log.cut(queue.max_offset)
            elif log.end:
                # The queue's files were deleted. The next message follows the compacted ones.
                queue.skip_to(log.end)
            queue.attach(log)
        if self._positions != positions:
            self._write_positions()

    def _open(self, queue: ConsumeQueue) -> CompactionLog:
        below = (queue.topic, str(queue.queue_id))
        log = CompactionLog(
            self._root.joinpath(_LOGS, *below),
            self._root.joinpath(_UNITS, *below),
            self._sizes,
            lambda end: self._was_cut(queue, end),
        )
        log.load()
        self._logs[queue] = log
        return log

    def _was_cut(self, queue: ConsumeQueue, end: int) -> None:
        name = _name(queue)
        if self._positions.get(name, -1) >= end:
            # The messages that are copied again must be compacted again.
            self._positions[name] = end - 1
            self._write_positions()

    # -- copying ------------------------------------------------------------------------------------------------

    def copy(self, seconds: float, *, is_slave: bool = False) -> bool:
        """Copies messages for about this time. Returns whether all are copied. Raises StoreFull or StoreError.

        The queues take turns, and the next call continues with the next queue. An error is raised when the messages of
        all other queues are copied. On a slave, messages that its log lacks are not skipped: see `missing`.
        """
        deadline = monotonic() + seconds
        is_complete = False
        while True:
            is_new = not self._round
            if is_new:
                self._round.extend(self._compacted())
                self._has_more = False
            if not self._copy_round(deadline, is_slave=is_slave):
                is_complete = is_complete and not self._has_more
                break
            is_complete = not self._has_more
            # Messages may have come to the first queues of a round that began in an earlier call.
            if (is_complete and is_new) or monotonic() >= deadline:
                break
        if is_complete and self._failing:
            raise next(iter(self._failing.values()))
        return is_complete

    def _copy_round(self, deadline: float, *, is_slave: bool) -> bool:
        """Continues the current round. Returns whether it has ended."""
        while self._round:
            queue = self._round[0]
            has_more = False
            if self._queues.find(queue.topic, queue.queue_id) is queue:
                try:
                    has_more = self._copy_some(queue, is_slave=is_slave)
                    self._failing.pop(queue, None)
                except StoreError as e:
                    if queue not in self._failing:
                        logger.error("messages of %r can't be copied for the compaction: %s", queue, e)
                    self._failing[queue] = e
            self._steps += 1
            if not has_more or self._steps >= _STEPS_OF_QUEUE:
                self._has_more |= has_more
                self._steps = 0
                self._round.popleft()
            if monotonic() >= deadline:
                return not self._round
        return True

    def _compacted(self) -> Iterator[ConsumeQueue]:
        for topic in self._topics():
            yield from self._queues.of_topic(topic)

    def _copy_some(self, queue: ConsumeQueue, *, is_slave: bool) -> bool:
        """Copies the next messages of a queue. Returns whether there were any. Raises StoreFull or StoreError."""
        log = self._logs.get(queue)
        if log is None:
            if not queue.max_offset:
                return False
            log = self._open(queue)
            queue.attach(log)
        if log.end < queue.log_min_offset and is_slave:
            return False
        offset = max(log.end, queue.log_min_offset)
        end = self._confirmed_end(queue)
        if offset >= end:
            return False
        units = queue.units(offset, min(end - offset, _COPIED_AT_ONCE))
        if not units:
            log.append([], min(queue.next_file_offset(offset), end))
            return True
        records: list[CopiedRecord] = []
        begin = offset
        flushed, size = self._commit_log.flushed, 0
        for physical_offset, record_size, tags_code in UNIT.iter_unpack(units):
            if record_size != FILLER_SIZE:
                if physical_offset + record_size > flushed or size > _BYTES_AT_ONCE:
                    break
                found = self._record(queue, offset, physical_offset, record_size)
                if found is not None:
                    data, record = found
                    records.append(CopiedRecord(data, tags_code, record.store_timestamp, offset))
                    size += record_size
            offset += 1
        log.append(records, offset)
        queue.compaction_changed()
        return offset > begin

    def _record(
        self, queue: ConsumeQueue, offset: int, physical_offset: int, size: int
    ) -> tuple[memoryview, Record] | None:
        """Returns a message; None if it is damaged or has no key, as in Java (`CompactionLog.asyncPutMessage`)."""
        found = self._commit_log.view_at(physical_offset)
        if found is None:
            return None
        view, base = found
        try:
            record = decode_record(view, physical_offset - base)
        except RecordError as e:
            logger.warning("message %d of %r is not compacted: %s", offset, queue, e)
            return None
        if (record.size, record.queue_offset, record.topic) != (size, offset, queue.topic_bytes):
            logger.warning("message %d of %r is not compacted: another one is at its position", offset, queue)
            return None
        if not key_of(record).strip():
            logger.warning("message %d of %r has no key and is not compacted", offset, queue)
            return None
        return view[physical_offset - base : physical_offset - base + size], record

    # -- messages of a master -----------------------------------------------------------------------------------

    def cut_unsure(self) -> None:
        """Deletes the copies that a crash may have damaged and that the commit log lacks. Raises StoreError.

        Call it on a slave that has a master: `missing` then returns them.
        """
        for queue, offset in list(self._unsure.items()):
            log = self._logs[queue]
            logger.warning("messages %d to %d of %r may be damaged by a crash", offset, log.end - 1, queue)
            log.cut(offset)
            queue.compaction_changed()
            del self._unsure[queue]

    def missing(self) -> list[MissingMessages]:
        """Returns what a slave must read from its master: messages before its own commit log (`MessageFetcher`)."""
        missing = []
        for queue in self._compacted():
            log = self._logs.get(queue)
            begin = 0 if log is None else log.end
            if begin < queue.log_min_offset:
                missing.append(MissingMessages(queue, begin, queue.log_min_offset))
        return missing

    def add(self, queue: ConsumeQueue, records: list[CopiedRecord], end: int) -> None:
        """Appends messages of the master. All messages before `end` are there then. Raises StoreFull or StoreError."""
        log = self._logs.get(queue) or self._open(queue)
        queue.attach(log)
        log.append([record for record in records if record.queue_offset < end], end)
        queue.compaction_changed()

    # -- flushing -----------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Flushes all logs to disk. May run in a thread. Raises StoreError or SyncFailed.

        If an error occurs, the other logs are flushed first.
        """
        problem: StoreError | None = None
        for log in list(self._logs.values()):
            if log.flushed_end < log.end:
                try:
                    log.flush()
                except OSError as e:
                    problem = problem or store_error(e, f"can't flush {log!r}")
                except StoreError as e:
                    problem = problem or e
        self.save()
        if problem is not None:
            raise problem

    def needed_from(self, is_full: bool) -> int:
        """Returns the physical offset from which the commit log is needed for copying, or its end.

        If the disk is full, it is not needed for queues that cannot be copied. Their copying may need the space that
        the deletion of the log frees.
        """
        needed = self._commit_log.position
        for queue in self._compacted():
            log = self._logs.get(queue)
            copied = max(0 if log is None else log.flushed_end, queue.log_min_offset)
            unit = queue.peek(copied)
            if unit is not None and unit[1] != FILLER_SIZE:
                if is_full and queue in self._failing:
                    logger.error(
                        "the disk is full: messages of %r from %d on may be deleted, although they are not copied: %s",
                        queue,
                        copied,
                        self._failing[queue],
                    )
                    continue
                needed = min(needed, unit[0])
        return needed

    # -- compacting ---------------------------------------------------------------------------------------------

    def compactors(self, now_ms: int) -> Iterator[Compactor]:
        """Yields a compaction for each log that is due (`Compactor.is_due`)."""
        config = self._config
        for queue, log in list(self._logs.items()):
            compactor = Compactor(
                log,
                self._positions.get(_name(queue), -1),
                max_bytes=config.max_offset_map_size,
                tombstones_from_ms=now_ms - config.compaction_tombstone_retention_ms,
            )
            if compactor.is_due and not log.is_deleted:
                yield compactor

    def finish(self, compactor: Compactor) -> None:
        """Replaces the segments of a log by those of its compaction. Raises OSError or StoreError."""
        compactor.finish()
        for queue, log in self._logs.items():
            if compactor.is_of(log):
                self._positions[_name(queue)] = compactor.position
                queue.compaction_changed()
        self._put_positions()

    def save(self) -> None:
        """Writes the positions of compactions. May run in a thread. Raises StoreError."""
        self._position_file.write()

    def _put_positions(self) -> None:
        self._position_file.put(encode_json(CompactionPositions(self._positions)))

    def _write_positions(self) -> None:
        """Writes the positions after one was lowered or removed.

        With its old position, new messages at the same queue offsets would count as compacted after a restart.
        """
        self._put_positions()
        try:
            self.save()
        except StoreError as e:
            logger.error("the next flush of the compaction logs writes their positions again: %s", e)

    # -- deleting -----------------------------------------------------------------------------------------------

    def delete(self, queues: Collection[ConsumeQueue]) -> None:
        """Deletes the logs of these queues."""
        compacted = [name for queue in queues if (name := _name(queue)) in self._positions]
        if compacted:
            for name in compacted:
                del self._positions[name]
            self._write_positions()
        for queue in queues:
            self._failing.pop(queue, None)
            self._unsure.pop(queue, None)
            log = self._logs.pop(queue, None)
            if log is not None:
                log.mark_deleted()
                self._trash.add_directory(log.log_directory, ())
                self._trash.add_directory(log.unit_directory, ())


def file_sizes(config: StoreConfig) -> FileSizes:
    """Returns the sizes of the files, which Java derives from the configured ones (`getCompactionLogSize`)."""
    units = config.compaction_cq_mapped_file_size // SPARSE_UNIT_SIZE * SPARSE_UNIT_SIZE
    count, rest = divmod(config.compaction_mapped_file_size, units)
    if count < 5:
        return FileSizes(units * 5, units)
    return FileSizes(units * (count if 0 < rest < units // 2 else count + 1), units)


def _decode_positions(content: bytes) -> dict[str, int]:
    """Returns the positions in the file. Raises BodyError."""
    return decode_json(content, CompactionPositions).queue_offset_map


def _name(queue: ConsumeQueue) -> str:
    return f"{queue.topic}_{queue.queue_id}"
