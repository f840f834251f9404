"""The message store: puts records into the log and units into the queues, and finds them (`DefaultMessageStore`).

One thread, the broker's, calls everything here. Java writes the units in a thread of its own, some milliseconds later;
here `append` writes both, so that a message can be pulled as soon as it is acknowledged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Set
from contextlib import ExitStack, contextmanager
from struct import error as StructError
from typing import NamedTuple

from gantrymq.background.jobs import Jobs
from gantrymq.errors import RecordError, StoreError
from gantrymq.protocol.record import HOST_SIZE_V4, Record, encode_record
from gantrymq.protocol.sys_flag import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_PREPARED
from gantrymq.protocol.topic_name import is_system_topic
from gantrymq.store.checkpoint import load_checkpoint
from gantrymq.store.cleaner import Cleaner
from gantrymq.store.collect import collect
from gantrymq.store.commit_log import CommitLog
from gantrymq.store.config import UNIT_SIZE, StoreConfig
from gantrymq.store.consume_queue import FILLER_SIZE, UNIT, ConsumeQueue, units_before
from gantrymq.store.delay_level import parse_delay_levels
from gantrymq.store.directory import StoreDirectory
from gantrymq.store.flusher import FlushCallback, LogFlusher, QueueFlusher
from gantrymq.store.get_result import GetResult, GetStatus
from gantrymq.store.key_lookup import KeyLookup
from gantrymq.store.log_scan import look_for_records, records_with, start_of
from gantrymq.store.message_index import MessageIndex
from gantrymq.store.queue_table import QueueTable
from gantrymq.store.record_batch import RecordBatch, append_batch
from gantrymq.store.record_crc import fill_crc, reserve_crc
from gantrymq.store.recovery import Recovery
from gantrymq.store.refusal import Refusal
from gantrymq.store.replica import Replica
from gantrymq.store.room_maker import RoomMaker
from gantrymq.store.trash import Trash
from gantrymq.system import files
from gantrymq.system.clock import time

logger = logging.getLogger(__name__)

_NOT_HOSTS_V6 = ~(BORN_HOST_V6 | STORE_HOST_V6)

_pack_unit_into = UNIT.pack_into
#: A NamedTuple's own constructor costs twice as much.
_new = tuple.__new__


class PutResult(NamedTuple):
    """Where a message went. A PREPARED or ROLLBACK record is in no queue; its queue offset is 0."""

    queue_offset: int
    physical_offset: int
    size: int
    store_timestamp: int


class MessageStore:
    """The store in `config.store_path_root_dir`. `store_host` is the broker's address as in a record.

    `jobs` gets the reports of its threads. With `waits` False `append` doesn't wait for files that are being made.
    """

    def __init__(self, config: StoreConfig, store_host: bytes, *, jobs: Jobs | None = None, waits: bool = True) -> None:
        self.config = config
        self._store_host = store_host
        self._hosts_v4 = 0 if len(store_host) == HOST_SIZE_V4 else STORE_HOST_V6
        self._hosts_v6 = self._hosts_v4 | BORN_HOST_V6
        #: So much of the log's end is taken to be in the page cache (accessMessageInMemoryMaxRatio).
        self.in_memory_bytes = _in_memory_bytes(config)
        self._directory = StoreDirectory(config.store_path_root_dir)
        self._jobs = Jobs() if jobs is None else jobs
        self._trash = Trash(config.consume_queue_directory.with_name("consumequeue.deleted"))
        self._rooms = rooms = RoomMaker(self._jobs.report("make files of the store"), waits=waits)
        self._log = CommitLog(config.commit_log_directory, config.mapped_file_size_commit_log, rooms)
        self._queues = QueueTable(
            config.consume_queue_directory, config.mapped_file_size_consume_queue, rooms, self._trash
        )
        self._dirty = self._queues.dirty
        self._index = MessageIndex(
            self._log, config.index_directory, config.max_hash_slot_num, config.max_index_num, rooms
        )
        self._is_indexed = config.message_index_enable
        self.keys = KeyLookup(config, self._log, self._index)
        self._with_crc = config.enabled_append_prop_crc
        self._cleaner = Cleaner(config, self._log, self._queues, self._index, self._trash)
        self._flushers: tuple[LogFlusher, QueueFlusher] | None = None
        #: See `Recovery`; None as soon as this store is a master's.
        self._torn_at: int | None = None
        #: Says before which physical offset records end that `get` returns; None: all do.
        self.shown_until: Callable[[], int] | None = None
        #: Where a slave's records come from.
        self.replica = Replica(
            self._log,
            self._queues,
            self._index,
            self._trash,
            parse_delay_levels(config.message_delay_level),
            self._alone,
            needs_crc=config.force_verify_prop_crc,
        )
        #: What `close` has to undo.
        self._open = ExitStack()

    # -- life ---------------------------------------------------------------------------------------------------

    def open(self, progress: Callable[[int], None] | None = None) -> None:
        """Takes the directory, recovers what is in it, and starts the flusher's threads.

        `progress` is called with the physical offset that recovery has come to. Raises StoreLocked when another
        process has the directory, StoreError when its files can't be used. A store can be opened once only.
        """
        config, directory = self.config, self._directory
        directory.lock()
        with ExitStack() as stack:
            stack.callback(directory.unlock)
            stack.callback(self._index.close, flush=False)
            stack.callback(self._queues.close)
            stack.callback(self._log.close)
            try:
                checkpoint_path = config.store_path_root_dir / "checkpoint"
                checkpoint = load_checkpoint(checkpoint_path)
                self._log.load(checkpoint, was_aborted=directory.was_aborted)
                self._queues.load()
                self._trash.load()
                delays_ms = parse_delay_levels(config.message_delay_level)
                recovery = Recovery(self._log, self._queues, delays_ms, config.force_verify_prop_crc, progress)
                recovery.run(checkpoint, was_aborted=directory.was_aborted)
                self._torn_at = recovery.torn_at
                if config.message_index_enable:
                    self._index.open(checkpoint.index_msg_timestamp, was_aborted=directory.was_aborted)
                directory.mark_in_use()
            except OSError as e:
                raise StoreError(f"can't open the store in {directory.root}: {e}") from e
            log_flusher = LogFlusher(
                self._log, config.flush_interval_commit_log_ms / 1000, self._jobs.report("flush the commit log")
            )
            queue_flusher = QueueFlusher(
                self._log,
                self._dirty,
                self._index,
                self._trash,
                checkpoint,
                checkpoint_path,
                config.flush_interval_consume_queue_ms / 1000,
                config.flush_consume_queue_least_pages,
                config.flush_consume_queue_thorough_interval_ms / 1000,
                self._jobs.report("flush the consume queues"),
            )
            for flusher in (log_flusher, queue_flusher):
                stack.callback(flusher.stop)
                flusher.start()
            stack.callback(self._rooms.stop)
            self._rooms.start()
            self._log.make_soon()
            self._flushers = log_flusher, queue_flusher
            self._open = stack.pop_all()
        self._drop_torn()

    def config_changed(self) -> None:
        """The configuration has another content: what was taken from it when the store was opened is taken again."""
        config = self.config
        self.in_memory_bytes = _in_memory_bytes(config)
        if config.message_index_enable and not self._is_indexed:
            # What was built before it was switched off is kept as far as it is on the disk for sure.
            self._index.open(0, was_aborted=True)
            self._is_indexed = True
        if self._flushers is not None:
            log_flusher, queue_flusher = self._flushers
            log_flusher.interval_s = config.flush_interval_commit_log_ms / 1000
            queue_flusher.interval_s = config.flush_interval_consume_queue_ms / 1000
            queue_flusher.least_pages = config.flush_consume_queue_least_pages
            queue_flusher.thorough_interval_s = config.flush_consume_queue_thorough_interval_ms / 1000
            for flusher in self._flushers:
                flusher.wake()

    def close(self) -> None:
        """Brings all to the disk, answers who waits for that, and unlocks the directory.

        Buffers of a GetResult stay good. Raises StoreError when the disk fails; then the next `open` finds the store as
        after a crash. Whatever it raises, the store is closed.
        """
        if self._flushers is None:
            return
        log_flusher, queue_flusher = self._flushers
        self._flushers = None
        with self._open:
            self._rooms.stop()
            log_flusher.stop()
            queue_flusher.stop()
            try:
                self._log.flush()
                self._index.close(flush=True)
                queue_flusher.flush(thorough=True)
                self._directory.mark_closed()
            except OSError as e:
                raise StoreError(f"can't write the store in {self._directory.root} to the disk: {e}") from e

    def set_slave(self, is_slave: bool) -> None:
        """A slave's log takes what `replica` gets from its master, and no messages: `append` raises StoreError.

        Raises StoreError when what was held back (`Replica.confirm`) can't be put into the queues.
        """
        text = "this broker is a slave: messages go to its master, and come from there"
        with self.waiting():
            self.replica.show_all()
        if not is_slave and self._log.is_copy:
            # What this log had lost has come again from a master, and consumers may be beyond it rightly.
            for queue in self._queues:
                queue.recovered_end = None
        self._log.refuse_all_but_copy(Refusal(text) if is_slave else None)
        self.replica.restart()
        if is_slave:
            self._drop_torn()
        else:
            # What was acknowledged may follow.
            self._torn_at = None

    def _drop_torn(self) -> None:
        """Of a slave: drops what may be another than its master's; it comes again from there. Raises StoreError."""
        if self._torn_at is not None and self._log.is_copy and self._flushers is not None:
            logger.warning("a power failure may have damaged the record at %d: the log ends there", self._torn_at)
            self.replica.truncate(self._torn_at)
            self._torn_at = None

    @contextmanager
    def _alone(self, end: int) -> Iterator[None]:
        """Within it no thread touches the files, and the checkpoint says nothing of what is behind a physical offset.

        All is flushed before, which takes its time: for what is rare. Raises StoreError, OSError.
        """
        if self._flushers is None:
            raise StoreError("the store is closed")
        log_flusher, queue_flusher = self._flushers
        threads = self._rooms, log_flusher, queue_flusher
        for thread in threads:
            thread.stop()
        try:
            of_file = self._log.store_time(end - end % self._log.file_size)
            queue_flusher.claim_no_more(end, max(of_file, 0))
            yield
            queue_flusher.claim_no_more(end, max(of_file, 0))
        finally:
            for thread in threads:
                thread.start()
            self._log.make_soon()

    # -- queues -------------------------------------------------------------------------------------------------

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, a new one if need be. Raises StoreError when the topic can't be a directory's name."""
        return self._queues.get_or_create(topic, queue_id)

    def find_queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._queues.find(topic, queue_id)

    def topics(self) -> dict[str, list[int]]:
        """{topic: queue ids} of all queues that ever had a message."""
        return self._queues.topics()

    def delete_topic(self, topic: str) -> None:
        """Deletes the topic's queues; its records stay in the log until that file goes. A later message begins at 0.

        The queues are gone at once, their files soon.
        """
        self._queues.delete_topic(topic)
        if self._flushers is not None:
            # Then a recovery won't meet the topic's records again.
            self._flushers[1].flush_soon()

    # -- writing ------------------------------------------------------------------------------------------------

    def append(
        self,
        queue: ConsumeQueue,
        flag: int,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        reconsume_times: int,
        body: bytes,
        properties: bytes,
        tags_code: int,
        prepared_transaction_offset: int = 0,
    ) -> PutResult:
        """Stores a message at the end of `queue`. `born_host` from `encode_host`; sys_flag's _V6 bits are set here.

        Raises StoreFull, StoreBusy, StoreError (too large for a file, store closed or failing), RecordError (a field
        out of range); then nothing was stored.
        """
        # The hot path. What can fail comes before anything that a reader sees, and the log's position, which says
        # that unit and record are whole, comes last.
        log = self._log
        if queue.position >= queue.limit:
            queue.make_room()
        host_bits = self._hosts_v4 if len(born_host) == HOST_SIZE_V4 else self._hosts_v6
        # PREPARED and ROLLBACK have this bit, COMMIT hasn't.
        in_queue = not sys_flag & TRANSACTION_PREPARED
        queue_offset = queue.max_offset if in_queue else 0
        if self._with_crc:
            properties = reserve_crc(properties)
        physical_offset = log.position
        now = int(time() * 1000)
        while True:
            try:
                record = encode_record(
                    queue.queue_id,
                    flag,
                    queue_offset,
                    physical_offset,
                    sys_flag & _NOT_HOSTS_V6 | host_bits,
                    born_timestamp,
                    born_host,
                    now,
                    self._store_host,
                    reconsume_times,
                    prepared_transaction_offset,
                    body,
                    queue.topic_bytes,
                    properties,
                )
                if self._with_crc:
                    record = fill_crc(record)
                size = len(record)
                end = physical_offset + size
                if end > log.limit:
                    log.make_room(size)
                    if log.position != physical_offset:
                        physical_offset = log.position
                        continue
                unit_at = queue.position
                if in_queue:
                    _pack_unit_into(queue.mapping, unit_at, physical_offset, size, tags_code)  # type: ignore[arg-type]
            except StructError as e:
                raise RecordError(f"a message for {queue.topic} can't be stored: {e}") from e
            break
        start = physical_offset - log.base
        log.mapping[start : start + size] = record  # type: ignore[index]
        if in_queue:
            queue.position = unit_at + UNIT_SIZE
            queue.max_offset = queue_offset + 1
            if not queue.dirty:
                queue.dirty = True
                self._dirty.append(queue)
        log.position = end
        log.store_timestamp = now
        return _new(PutResult, (queue_offset, physical_offset, size, now))

    def begin_batch(
        self, queue: ConsumeQueue, sys_flag: int, born_timestamp: int, born_host: bytes, reconsume_times: int
    ) -> RecordBatch:
        """An empty batch for `append_batch`."""
        with_crc = self._with_crc
        return RecordBatch(
            queue, sys_flag, born_timestamp, born_host, self._store_host, reconsume_times, with_crc=with_crc
        )

    def append_batch(self, batch: RecordBatch) -> list[int]:
        """Stores all of a batch, one message behind the other in its queue; returns their physical offsets.

        Raises as `append` does; then nothing is stored. See `record_batch.append_batch` for what a crash leaves.
        """
        return append_batch(self._log, self._dirty, batch)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Within it `append` waits for files; for who can't come again later."""
        before, self._rooms.waits = self._rooms.waits, True
        try:
            yield
        finally:
            self._rooms.waits = before

    def when_room(self, callback: Callable[[], None]) -> None:
        """Calls back, in a thread, when what StoreBusy was raised for is made, or can't be."""
        self._rooms.when_made(callback)

    def close_line(self, *, has_room: bool = False) -> None:
        """Somebody waits for room: nobody who comes now and needs the same gets any before him, nor what is for him."""
        self._rooms.has_line = True
        if self._rooms.refused is None:
            self._rooms.refused = set()
        if has_room and not self._rooms.wanted.isdisjoint(self._rooms.for_all):
            self._log.take_in_turn()

    def open_line(self) -> None:
        """Those who wait have their turn; who gets StoreBusy again comes before all after him who need the same."""
        self._rooms.has_line = False

    def end_line(self, *, anew: bool = False) -> None:
        """Nobody waits; or all of them begin anew."""
        self._rooms.has_line = False
        self._rooms.refused = None
        if not anew:
            self._rooms.wanted.clear()

    def when_flushed(self, physical_offset: int, callback: FlushCallback) -> None:
        """Calls back when the records up to a physical offset are on the disk, or with the error that prevents it.

        It is called in the flusher's thread; all who come while the disk is busy share the next fdatasync.
        """
        if self._flushers is None:
            raise StoreError("the store is closed")
        self._flushers[0].when_flushed(callback)

    # -- reading ------------------------------------------------------------------------------------------------

    def get(
        self,
        queue: ConsumeQueue | None,
        offset: int,
        max_messages: int,
        max_bytes: int,
        accepts: Callable[[int], bool] | None = None,
        matches: Callable[[memoryview], bool] | None = None,
        *,
        bulk: bool = False,
        end: int | None = None,
    ) -> GetResult:
        """The records from a queue offset on. `accepts(tags_code)` and `matches(record)` say which; None takes all.

        At least one record comes however large it is; `max_transfer_*` of the configuration limit them further, or,
        with `bulk`, `max_bulk_transfer_*`. No result reaches over the queue offset `end` or the end of a queue file,
        and where `matches` takes long it is short. Raises StoreError when the store is closed.
        """
        if queue is None:
            return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
        if self._cleaner.stale:
            queue.correct_min_offset(self._log.min_offset)
        min_offset, max_offset = queue.min_offset, queue.max_offset
        result = GetResult(GetStatus.NO_MATCHED_MESSAGE, offset, min_offset, max_offset)
        if max_offset == 0:
            result.status, result.next_begin_offset = GetStatus.NO_MESSAGE_IN_QUEUE, 0
        elif offset < min_offset:
            result.status, result.next_begin_offset = GetStatus.OFFSET_TOO_SMALL, min_offset
        elif offset == max_offset:
            result.status = GetStatus.OFFSET_OVERFLOW_ONE
        elif offset > max_offset:
            # Who had what a power failure took goes on where the queue ended then: what came since is new to him.
            end_now = max_offset if queue.recovered_end is None else max(queue.recovered_end, min_offset)
            result.status, result.next_begin_offset = GetStatus.OFFSET_OVERFLOW_BADLY, end_now
        else:
            config = self.config
            # No more are looked at than a result can have, however many are asked for.
            most = config.max_bulk_transfer_count if bulk else config.max_transfer_count_on_message_in_memory
            wanted = min(max_messages, most)
            looked_at = max(config.max_filter_message_size // UNIT_SIZE, wanted, 1)
            units = queue.units(offset, looked_at if end is None else min(looked_at, end - offset))
            if units and self.shown_until is not None:
                found = len(units)
                units = units_before(units, self.shown_until())
                if len(units) < found:
                    result.max_offset = offset + len(units) // UNIT_SIZE
                if not units:
                    result.status = GetStatus.OFFSET_OVERFLOW_ONE
                    return result
            if units:
                in_memory_from = self._log.position - self.in_memory_bytes
                collect(
                    result,
                    units,
                    self._log,
                    in_memory_from,
                    config,
                    max_messages,
                    max_bytes,
                    accepts,
                    matches,
                    bulk=bulk,
                )
            else:
                result.status = GetStatus.OFFSET_FOUND_NULL
                result.next_begin_offset = queue.next_file_offset(offset)
        return result

    @property
    def trouble(self) -> str | None:
        """Why nothing can be stored: a full disk, or one that fails; None while it can."""
        return self._log.trouble

    def shown_end(self, queue: ConsumeQueue) -> int:
        """The queue offset behind the last message that `get` returns, `max_offset` where all are shown."""
        end = queue.max_offset
        if self.shown_until is None or end <= queue.min_offset:
            return end
        until = self.shown_until()
        end = max(queue.count_before(until), queue.min_offset)
        unit = queue.peek(end - 1)
        # A record may begin before it and end behind it.
        if unit is not None and end > queue.min_offset and unit[0] + unit[1] > until and unit[1] != FILLER_SIZE:
            end -= 1
        return end

    def read_record(self, physical_offset: int) -> Record:
        """The record that begins there. Raises RecordError when none does, StoreError outside of the log."""
        return self._log.read(physical_offset)

    def record_bytes(self, physical_offset: int) -> bytes:
        """A record as it stands in the log. Raises as `read_record` does."""
        return self._log.read_bytes(physical_offset)

    def log_slice(self, physical_offset: int, max_bytes: int) -> memoryview | None:
        """The log's bytes from there on, mapped and not copied: `max_bytes` at most, and no more than one file has.

        The blank at a file's end is in it. None at the log's end; raises StoreError outside of the log.
        """
        return self._log.slice(physical_offset, max_bytes)

    def bytes_at(self, physical_offset: int, size: int) -> bytes:
        """So many bytes of the log, where a queue says that a record is; fewer at its end, none outside of it."""
        found = self._log.view_at(physical_offset)
        if found is None:
            return b""
        view, base = found
        return bytes(view[physical_offset - base : physical_offset - base + size])

    def records_with(self, mark: bytes, start: int) -> Iterator[Record]:
        """The records with these bytes, from a physical offset on. Raises RecordError where none begins."""
        return records_with(self._log, mark, start)

    def look_for_records(self, mark: bytes, start: int) -> Iterator[Record | None]:
        """As `records_with`, and a None now and then, so that the caller may do something else meanwhile."""
        return look_for_records(self._log, mark, start)

    def start_of(self, timestamp_ms: int) -> int:
        """A physical offset before which all was stored by then."""
        return start_of(self._log, timestamp_ms)

    def store_time(self, queue: ConsumeQueue, offset: int) -> int:
        """When the message at a queue offset was stored, ms; -1 when there is none."""
        unit = queue.unit(offset)
        return -1 if unit is None else self._log.store_time(unit[0])

    def offset_by_time(self, queue: ConsumeQueue, timestamp_ms: int, upper: bool = False) -> int:
        """The first queue offset stored at or after the time; with `upper` the last at or before it.

        The end of what is shown when none is so late, its min_offset when none is so early (`getOffsetInQueueByTime`).
        """
        low, high = queue.min_offset, self.shown_end(queue)
        while low < high:
            middle = (low + high) // 2
            stored = self.store_time(queue, middle)
            if stored < timestamp_ms or (upper and stored == timestamp_ms):
                low = middle + 1
            else:
                high = middle
        return max(low - 1, queue.min_offset) if upper else low

    # -- cleaning -----------------------------------------------------------------------------------------------

    def clean(self, now_ms: int) -> bool:
        """One round: deletes the oldest log file if its time is up, and what belongs to it in queues and index.

        To be called ten seconds after it returned False, and soon after True: there is more to do, and a round takes
        some tens of milliseconds at most. While the disk is too full, `append` raises StoreFull. Raises StoreError when
        something can't be deleted, once all the rest is done; the next round tries again.
        """
        try:
            return self._cleaner.clean(now_ms)
        finally:
            if self._trash and self._flushers is not None:
                self._flushers[1].wake()

    def delete_expired_soon(self) -> None:
        """The next rounds of `clean` delete what has expired, whatever the hour (DELETE_EXPIRED_COMMITLOG)."""
        self._cleaner.retention.is_asked = True

    def delete_expired_queues(self) -> Iterator[int]:
        """Deletes the queues that have no messages any more. A later message in one begins at 0 again.

        Looks at some of them in each step, and tells how many were deleted in it. Those of system topics stay, and
        those that never had a message (`ConsumeQueueStore.cleanExpired`).
        """
        for count in self._cleaner.delete_expired_queues():
            if count and self._flushers is not None:
                self._flushers[1].wake()
            yield count

    def delete_unused_topics(self, used: Set[str]) -> int:
        """Deletes the queues of topics that are neither in use nor the system's own; how many topics."""
        unused = [topic for topic in self.topics() if topic not in used and not is_system_topic(topic)]
        for topic in unused:
            logger.info("deleting the topic %s: it isn't in use", topic)
            self.delete_topic(topic)
        return len(unused)

    # -- figures ------------------------------------------------------------------------------------------------

    @property
    def max_physical_offset(self) -> int:
        """Where the next record goes."""
        return self._log.position

    @property
    def min_physical_offset(self) -> int:
        return self._log.min_offset

    @property
    def flushed_offset(self) -> int:
        """All before it is on the disk."""
        return self._log.flushed


def _in_memory_bytes(config: StoreConfig) -> int:
    memory = files.memory()
    return memory * config.access_message_in_memory_max_ratio // 100
