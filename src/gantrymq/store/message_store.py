"""The message store: opens, closes and cleans its parts, and reads records (`DefaultMessageStore`).

All methods must be called in one thread, the broker's. `message_writer` writes the messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Set
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gantrymq.background.collector import without_collections
from gantrymq.background.jobs import Jobs
from gantrymq.errors import StoreError
from gantrymq.protocol.multi_dispatch import LIGHT_QUEUE_ID, is_light_queue
from gantrymq.protocol.record import Record
from gantrymq.protocol.topic_name import is_system_topic
from gantrymq.store.checkpoint import Checkpoint, load_checkpoint
from gantrymq.store.cleaner import Cleaner, LowerTier
from gantrymq.store.collect import collect
from gantrymq.store.commit_log import CommitLog
from gantrymq.store.compaction.compaction_store import CompactionStore
from gantrymq.store.config import UNIT_SIZE, StoreConfig
from gantrymq.store.consume_queue import FILLER_SIZE, ConsumeQueue, LoadedQueue, units_before
from gantrymq.store.delay_level import parse_delay_levels
from gantrymq.store.directory import StoreDirectory
from gantrymq.store.flusher import FlushCallback
from gantrymq.store.get_result import GetResult, GetStatus
from gantrymq.store.key_lookup import KeyLookup
from gantrymq.store.log_paths import LogPaths
from gantrymq.store.log_scan import look_for_records, records_with, start_of
from gantrymq.store.message_index import MessageIndex
from gantrymq.store.message_writer import MessageWriter, PutResult
from gantrymq.store.preallocation import Preallocation
from gantrymq.store.queue_table import QueueTable
from gantrymq.store.recovery import Recovery
from gantrymq.store.refusal import Refusal
from gantrymq.store.replica import Replica
from gantrymq.store.store_threads import StoreThreads
from gantrymq.store.topic_retention import TopicLimits, TopicRetention
from gantrymq.store.trash import Trash
from gantrymq.system import files

if TYPE_CHECKING:
    from gantrymq.store.light.light_queues import LightQueues

__all__ = ["MessageStore", "PutResult"]

logger = logging.getLogger(__name__)


#: Maximum number of units that one step of `units_between` reads.
_COPIED_UNITS = 10_000


class ClosedFile(NamedTuple):
    """A log file that does not change, from `begin` to before `end`.

    `begin_timestamp` is the store timestamp of its first record in ms, `end_timestamp` that of the first record after
    it.
    """

    path: Path
    begin: int
    end: int
    begin_timestamp: int
    end_timestamp: int


class MessageStore:
    """The store in `config.store_path_root_dir`. `store_host` is the broker's address in the format of a record.

    `jobs` gets the reports of the store's threads. If `waits` is False, `append` raises StoreBusy instead of waiting
    for files that are being preallocated. `topic_limits` returns the retention of a topic, which `clean` enforces.
    `compaction_topics` returns the topics whose messages are compacted. Log files are deleted when they are in
    `lower_tier`.
    """

    def __init__(
        self,
        config: StoreConfig,
        store_host: bytes,
        *,
        jobs: Jobs | None = None,
        waits: bool = True,
        topic_limits: TopicLimits = lambda topic: None,
        compaction_topics: Callable[[], Collection[str]] = lambda: (),
        lower_tier: LowerTier | None = None,
    ) -> None:
        self.config = config
        #: Size of the log's end that is assumed to be in the page cache, in bytes (`accessMessageInMemoryMaxRatio`).
        self.in_memory_bytes = _in_memory_bytes(config)
        self._directory = StoreDirectory(config.store_path_root_dir)
        self._jobs = Jobs() if jobs is None else jobs
        self._trash = Trash(config.consume_queue_directory.with_name("consumequeue.deleted"))
        self._preallocation = preallocation = Preallocation(self._jobs.report("make files of the store"), waits=waits)
        self._log = CommitLog(LogPaths(config), config.mapped_file_size_commit_log, preallocation)
        self._queues = QueueTable(
            config.consume_queue_directory,
            config.mapped_file_size_consume_queue,
            preallocation,
            self._trash,
            # A new queue of this name must not get the compacted messages of the deleted one.
            lambda queues: self.compaction.delete(queues),
        )
        self._index = MessageIndex(
            self._log, config.index_directory, config.max_hash_slot_num, config.max_index_num, preallocation
        )
        self._is_indexed = config.message_index_enable
        self.keys = KeyLookup(config, self._log, self._index)
        #: The last messages of the keys of compaction topics.
        self.compaction = CompactionStore(
            config, self._log, self._queues, self._trash, compaction_topics, self.confirmed_end
        )
        self._cleaner = Cleaner(
            config, self._log, self._queues, self._index, self._trash, self.compaction.needed_from, lower_tier
        )
        self._topic_retention = TopicRetention(self._log, self._queues, topic_limits, self.confirmed_end)
        #: The light queues; None without `enable_lmq`.
        self.light: LightQueues | None = None
        writer = MessageWriter(self._log, self._queues.dirty, store_host, with_crc=config.enabled_append_prop_crc)
        #: Methods of MessageWriter. They are bound here, because a forwarding method would cost each message a call.
        self.append = writer.append
        if config.enable_lmq:
            # Few stores have light queues, and SQLite takes 2 MiB.
            from gantrymq.store.light.light_message_writer import LightMessageWriter
            from gantrymq.store.light.light_queues import LightQueues
            from gantrymq.store.light.unit_database import UnitDatabase

            units = UnitDatabase(config.light_queue_directory)
            self.light = LightQueues(self._log, units, preallocation)
            self.append = LightMessageWriter(writer.append, self.light).append
        self.begin_batch = writer.begin_batch
        self.append_batch = writer.append_batch
        self.append_sends = writer.append_sends
        #: None unless the store is open.
        self._threads: StoreThreads | None = None
        #: See `Recovery.torn_at`. None as soon as the broker is a master.
        self._torn_at: int | None = None
        #: Returns the physical offset before which the records that `get` returns end; None: no limit.
        self.confirm_offset: Callable[[], int] | None = None
        #: Writes the records that a slave receives.
        self.replica = Replica(
            self._log,
            self._queues,
            self._index,
            self._trash,
            parse_delay_levels(config.message_delay_level),
            self._alone,
            needs_crc=config.force_verify_prop_crc,
            **({} if self.light is None else {"dispatch": self.light.dispatch}),
        )
        if self.light is not None:
            self.replica.cut_listeners.append(self.light.log_was_cut)
        #: Undoes the steps of `open` in `close`.
        self._open = ExitStack()

    # -- lifecycle ----------------------------------------------------------------------------------------------

    def open(self, progress: Callable[[int], None] | None = None) -> None:
        """Locks the directory, recovers its content and starts the store's threads. A store can be opened only once.

        `progress` is called with the physical offset that recovery has reached. Raises StoreLocked if another process
        uses the directory, StoreError if its files can't be used.
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
                # Otherwise collections visit the objects of thousands of queues again and again.
                with without_collections():
                    self._torn_at = self._recover(checkpoint, progress)
                self.compaction.load(was_aborted=directory.was_aborted)
                if config.message_index_enable:
                    self._index.open(checkpoint.index_msg_timestamp, was_aborted=directory.was_aborted)
                if self.light is not None:
                    stack.callback(self.light.close)
                    self.light.open(progress, was_aborted=directory.was_aborted)
                directory.mark_in_use()
            except OSError as e:
                raise StoreError(f"can't open the store in {directory.root}: {e}") from e
            threads = StoreThreads(
                config,
                self._log,
                self._queues.dirty,
                self._index,
                self._trash,
                checkpoint,
                self._preallocation,
                self._jobs,
            )
            stack.callback(threads.stop)
            threads.start()
            if self.light is not None:
                report = self._jobs.report("flush the units of light queues")
                interval_s = config.flush_interval_consume_queue_ms / 1000
                flusher = self.light.flusher(interval_s, report)
                flusher.start()
                stack.callback(flusher.stop)
            self._threads = threads
            self._open = stack.pop_all()
        self._drop_torn()

    def _recover(self, checkpoint: Checkpoint, progress: Callable[[int], None] | None) -> int | None:
        """Loads the queues and makes them consistent with the log. Returns `Recovery.torn_at`."""
        config, was_aborted = self.config, self._directory.was_aborted
        loaded = self._queues.load(is_closed=not was_aborted)
        self._check_log_is_there(loaded.values(), was_aborted=was_aborted)
        self._trash.load()
        delays_ms = parse_delay_levels(config.message_delay_level)
        recovery = Recovery(self._log, self._queues, loaded, delays_ms, config.force_verify_prop_crc, progress)
        recovery.run(checkpoint, was_aborted=was_aborted)
        return recovery.torn_at

    def _check_log_is_there(self, loaded: Collection[LoadedQueue], *, was_aborted: bool) -> None:
        """Raises StoreError if queues have messages but the log or its end is missing. Recovery would drop them."""
        if self._log.may_lack_end and not was_aborted:
            self._log.check_end(max((queue.last[0] for queue in loaded if queue.last is not None), default=-1))
        if self._log.was_missing and any(queue.max_offset for queue in self._queues):
            config = self.config
            raise StoreError(
                f"{self._log.paths} has no file of the log, but the queues in "
                f"{config.consume_queue_directory} have messages: mount or restore it, or correct storePathCommitLog. "
                f"To begin anew without these messages, move the queues and {config.index_directory} away"
            )

    def config_changed(self) -> None:
        """Applies a changed configuration to values that were computed from it."""
        config = self.config
        self.in_memory_bytes = _in_memory_bytes(config)
        if config.message_index_enable and not self._is_indexed:
            # The index was off before. Its old files are kept as far as they are certainly on disk.
            self._index.open(0, was_aborted=True)
            self._is_indexed = True
        if self._threads is not None:
            self._threads.config_changed()

    def close(self) -> None:
        """Flushes everything to disk, calls pending flush callbacks and unlocks the directory.

        Buffers of a GetResult stay valid. Raises StoreError if the disk fails; the next `open` then recovers as after a
        crash. The store is closed even if an exception is raised.
        """
        threads, self._threads = self._threads, None
        if threads is None:
            return
        with self._open:
            threads.stop()
            try:
                self._log.flush()
                self._index.close(flush=True)
                threads.queue_flusher.flush(thorough=True)
                self._directory.mark_closed()
            except OSError as e:
                raise StoreError(f"can't write the store in {self._directory.root} to the disk: {e}") from e

    def set_slave(self, is_slave: bool) -> None:
        """Sets the role. On a slave, only `replica` may write, and `append` raises StoreError.

        Raises StoreError if pending units (`Replica.confirm`) can't be written to their queues.
        """
        text = "this broker is a slave: messages go to its master, and come from there"
        with self.waiting():
            self.replica.show_all()
        if self.light is not None:
            self.light.set_slave(is_slave)
        if not is_slave and self._log.is_copy and self.replica.has_received:
            # The slave has received the lost records again from its master. Consumer offsets beyond the recovered
            # end are valid.
            self._queues.forget_recovery()
            if self.light is not None:
                self.light.forget_recovery()
        self._log.refuse_all_but_copy(Refusal(text) if is_slave else None)
        self.replica.restart()
        if is_slave:
            self._drop_torn()
        else:
            # Acknowledged messages may follow the torn record.
            self._torn_at = None

    def _drop_torn(self) -> None:
        """On a slave, removes data that may differ from the master's. It is replicated again. Raises StoreError."""
        if self._torn_at is not None and self._log.is_copy and self._threads is not None:
            logger.warning("a power failure may have damaged the record at %d: the log ends there", self._torn_at)
            self.replica.truncate(self._torn_at)
            self._torn_at = None

    def _alone(self, end: int) -> AbstractContextManager[None]:
        """Stops the threads during a change of the files; see `StoreThreads.alone`. Raises StoreError or OSError."""
        return self._open_threads().alone(end)

    def _open_threads(self) -> StoreThreads:
        if self._threads is None:
            raise StoreError("the store is closed")
        return self._threads

    # -- queues -------------------------------------------------------------------------------------------------

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Returns the queue; creates it if needed. Raises StoreError if the topic can't be a directory name."""
        if self.light is not None and is_light_queue(topic):
            if queue_id != LIGHT_QUEUE_ID:
                raise StoreError(f"the light queue {topic} has no queue {queue_id}")
            return self.light.queue(topic)
        return self._queues.get_or_create(topic, queue_id)

    def find_queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Returns the queue; None if it doesn't exist. A light queue without messages is empty."""
        if self.light is not None and is_light_queue(topic):
            return self.light.queue(topic) if queue_id == LIGHT_QUEUE_ID else None
        return self._queues.find(topic, queue_id)

    def topics(self) -> dict[str, list[int]]:
        """Returns {topic: queue ids} of all queues that ever had a message."""
        return self._queues.topics()

    def queues_of(self, topic: str) -> list[ConsumeQueue]:
        """Returns the queues of a topic, including queues that never had a message."""
        return self._queues.of_topic(topic)

    def message_totals(self) -> Iterator[tuple[str, int]]:
        """Yields each topic that ever had a message, and the number of messages ever stored in it."""
        return self._queues.message_totals()

    def delete_topic(self, topic: str) -> None:
        """Deletes the topic's queues. Its records stay in the log until their files expire.

        The queues disappear at once; their files are deleted in the background. A later message gets the queue offset
        0.
        """
        self._queues.delete_topic(topic)
        if self._threads is not None:
            # Recovery then does not read the topic's records again.
            self._threads.queue_flusher.flush_soon()

    def delete_queues_before(self, topic: str, physical_offset: int) -> list[ConsumeQueue]:
        """Deletes and returns the queues of a topic that have only messages before this offset. Raises StoreError."""
        old = [
            queue
            for queue in self._queues.of_topic(topic)
            if queue.count_before(physical_offset) == queue.max_offset > 0
        ]
        self._queues.delete(old)
        if old and self._threads is not None:
            self._threads.queue_flusher.flush_soon()
        return old

    # -- writing ------------------------------------------------------------------------------------------------

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Makes `append` wait for preallocation within the context. For callers that can't retry later."""
        before, self._preallocation.waits = self._preallocation.waits, True
        try:
            yield
        finally:
            self._preallocation.waits = before

    @contextmanager
    def ahead_of_wait_queue(self) -> Iterator[None]:
        """Lets `append` skip the wait queue for preallocated space within the context. For background tasks.

        A background task has no entry in the wait queue, and with many senders the queue may never be empty.
        """
        before, self._preallocation.skips_wait_queue = self._preallocation.skips_wait_queue, True
        try:
            yield
        finally:
            self._preallocation.skips_wait_queue = before

    def when_preallocated(self, callback: Callable[[], None]) -> None:
        """Calls `callback` in a thread when the space that caused StoreBusy is available or can't be provided."""
        self._preallocation.when_made(callback)

    def close_wait_queue(self, *, has_file: bool = False) -> None:
        """Gives the callers in the wait queue precedence: later callers with the same need get StoreBusy.

        With `has_file`, space is available again, and later callers can't take it from the waiting ones.
        """
        self._preallocation.has_wait_queue = True
        if self._preallocation.refused is None:
            self._preallocation.refused = set()
        if has_file and not self._preallocation.wanted.isdisjoint(self._preallocation.for_all):
            self._log.take_in_turn()

    def open_wait_queue(self) -> None:
        """Lets the waiting callers retry. After StoreBusy, a caller stays before later callers with the same need."""
        self._preallocation.has_wait_queue = False

    def end_wait_queue(self, *, anew: bool = False) -> None:
        """Ends the precedence of waiting callers, because the wait queue is empty.

        With `anew`, the callers retry, so the files that they need stay recorded.
        """
        self._preallocation.has_wait_queue = False
        self._preallocation.refused = None
        if not anew:
            self._preallocation.wanted.clear()

    def when_flushed(self, physical_offset: int, callback: FlushCallback) -> None:
        """Calls `callback` when the records up to a physical offset are on disk, or with the error that prevents this.

        The callback runs in the flusher's thread. All callbacks that are added during a flush share the next fdatasync.
        """
        self._open_threads().log_flusher.when_flushed(callback)

    # -- reading ------------------------------------------------------------------------------------------------

    def set_confirm_offset(self, confirm_offset: Callable[[], int] | None) -> None:
        """Limits `get` to records that end before the physical offset that `confirm_offset` returns; None: no limit."""
        self.confirm_offset = confirm_offset

    def get(
        self,
        queue: ConsumeQueue | None,
        offset: int,
        max_messages: int,
        max_bytes: int,
        tags_codes: frozenset[int] | None = None,
        matches: Callable[[memoryview], bool] | None = None,
        *,
        bulk: bool = False,
        end: int | None = None,
    ) -> GetResult:
        """Returns records of a queue from a queue offset on.

        At least one record is returned, however large it is. No result contains units of two queue files. If `matches`
        is slow, a result can be short. Raises StoreError if the store is closed.

        Args:
            queue: The queue; None if it doesn't exist.
            offset: The first queue offset to read.
            max_messages: Maximum number of records. The `max_transfer_*` settings limit it further.
            max_bytes: Maximum size of the records. The `max_transfer_*` settings limit it further.
            tags_codes: Only records with one of these tags codes are returned; None accepts all.
            matches: Only records for which it returns true are returned; None accepts all.
            bulk: Whether the `max_bulk_transfer_*` settings apply instead.
            end: The queue offset at which the result ends at the latest; None for no limit.
        """
        if queue is None:
            return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
        if self._cleaner.stale:
            queue.correct_min_offset(self._log.min_offset)
        min_offset, max_offset = queue.min_offset, queue.max_offset
        result = GetResult(GetStatus.NO_MATCHED_MESSAGE, offset, min_offset, max_offset)
        compacted = queue.compacted
        if compacted is not None and 0 <= offset < compacted.end:
            compacted.read(result, self.config, max_messages, max_bytes, tags_codes, matches, bulk=bulk, end=end)
            if result.message_count or result.next_begin_offset < compacted.end or compacted.end == max_offset:
                return result
            # The following messages were not copied yet. On a slave, its log may begin after them.
            offset = result.next_begin_offset = max(compacted.end, queue.log_min_offset)
            if end is not None and offset >= end:
                return result
        if max_offset == 0:
            result.status, result.next_begin_offset = GetStatus.NO_MESSAGE_IN_QUEUE, 0
        elif offset < min_offset:
            result.status, result.next_begin_offset = GetStatus.OFFSET_TOO_SMALL, min_offset
        elif offset == max_offset:
            result.status = GetStatus.OFFSET_OVERFLOW_ONE
        elif offset > max_offset:
            # The consumer had messages that a power failure destroyed. It continues at the recovered end of the queue,
            # because all later messages are new to it.
            end_now = max_offset if queue.recovered_end is None else max(queue.recovered_end, min_offset)
            result.status, result.next_begin_offset = GetStatus.OFFSET_OVERFLOW_BADLY, end_now
        else:
            config = self.config
            # Limits the number of units to read to what a result can contain.
            most = config.max_bulk_transfer_count if bulk else config.max_transfer_count_on_message_in_memory
            wanted = min(max_messages, most)
            looked_at = max(config.max_filter_message_size // UNIT_SIZE, wanted, 1)
            units = queue.units(offset, looked_at if end is None else min(looked_at, end - offset))
            if units and self.confirm_offset is not None:
                found = len(units)
                units = units_before(units, self.confirm_offset())
                if len(units) < found:
                    result.max_offset = offset + len(units) // UNIT_SIZE
                if not units:
                    result.status = GetStatus.OFFSET_OVERFLOW_ONE
                    return result
            if units:
                in_memory_from = self._log.position - self.in_memory_bytes
                light = self.light if queue.is_light else None
                (collect if light is None else light.collector(queue.topic))(
                    result,
                    units,
                    self._log,
                    in_memory_from,
                    config,
                    max_messages,
                    max_bytes,
                    tags_codes,
                    matches,
                    bulk=bulk,
                )
            else:
                result.status = GetStatus.OFFSET_FOUND_NULL
                result.next_begin_offset = queue.next_file_offset(offset)
        return result

    @property
    def trouble(self) -> str | None:
        """The reason why the store rejects messages, such as a full or failing disk; None if it accepts messages."""
        return self._log.trouble

    def confirmed_end(self, queue: ConsumeQueue) -> int:
        """Returns the queue offset after the last message that `get` can return. Without a limit it is `max_offset`."""
        end = queue.max_offset
        if self.confirm_offset is None or end <= queue.min_offset:
            return end
        until = self.confirm_offset()
        end = max(queue.count_before(until), queue.min_offset)
        unit = queue.peek(end - 1)
        # A record can start before the limit and end after it.
        if unit is not None and end > queue.min_offset and unit[0] + unit[1] > until and unit[1] != FILLER_SIZE:
            end -= 1
        return end

    @property
    def log_paths(self) -> LogPaths:
        """The directories of the log."""
        return self._log.paths

    def read_record(self, physical_offset: int) -> Record:
        """Returns the record at this offset. Raises RecordError if none starts there, StoreError outside of the log."""
        return self._log.read(physical_offset)

    def read_without_body(self, physical_offset: int) -> Record:
        """Returns the record at this offset with an empty body, without a check of its CRC. Raises as `read_record`."""
        return self._log.read(physical_offset, with_body=False)

    def record_bytes(self, physical_offset: int) -> bytes:
        """Returns the bytes of a record in the log. Raises as `read_record` does."""
        return self._log.read_bytes(physical_offset)

    def log_slice(self, physical_offset: int, max_bytes: int) -> memoryview | None:
        """Returns at most `max_bytes` bytes of one log file from this offset on, without copying them.

        They can contain the blank at the end of the file. Returns None at the end of the log. Raises StoreError outside
        of the log.
        """
        return self._log.slice(physical_offset, max_bytes)

    def bytes_at(self, physical_offset: int, size: int) -> bytes:
        """Returns `size` bytes of the log, at a queue unit's offset: fewer at the end, none outside of the log."""
        found = self._log.view_at(physical_offset)
        if found is None:
            return b""
        view, base = found
        return bytes(view[physical_offset - base : physical_offset - base + size])

    def records_with(self, mark: bytes, start: int) -> Iterator[Record]:
        """Yields the records that contain these bytes, from an offset on. Raises RecordError if none starts there."""
        return records_with(self._log, mark, start)

    def look_for_records(self, mark: bytes, start: int) -> Iterator[Record | None]:
        """Yields the same records as `records_with`, and None from time to time to let the caller do other work."""
        return look_for_records(self._log, mark, start)

    def start_of(self, timestamp_ms: int, begin: int = 0) -> int:
        """Returns a physical offset, at least `begin`. Records from `begin` to it are from this time or before."""
        return start_of(self._log, timestamp_ms, begin)

    def record_time(self, physical_offset: int) -> int:
        """Returns the store timestamp of the record at an offset, in milliseconds; -1 if there is none."""
        return self._log.store_time(physical_offset)

    def store_time(self, queue: ConsumeQueue, offset: int) -> int:
        """Returns the store timestamp of the message at a queue offset, in milliseconds; -1 if there is none."""
        if queue.compacted is not None and offset < queue.compacted.end:
            return queue.compacted.store_time(offset)
        unit = queue.unit(offset)
        return -1 if unit is None else self._log.store_time(unit[0])

    def offset_by_time(self, queue: ConsumeQueue, timestamp_ms: int, upper: bool = False) -> int:
        """Returns the first queue offset stored at or after the time; with `upper` the last one at or before it.

        Returns the visible end if all messages are older, and `min_offset` if all are newer (`getOffsetInQueueByTime`).
        """
        low, high = queue.min_offset, self.confirmed_end(queue)
        while low < high:
            middle = (low + high) // 2
            stored = self.store_time(queue, middle)
            if stored < timestamp_ms or (upper and stored == timestamp_ms):
                low = middle + 1
            else:
                high = middle
        return max(low - 1, queue.min_offset) if upper else low

    # -- copying log files --------------------------------------------------------------------------------------

    def closed_file(self, physical_offset: int) -> ClosedFile | None:
        """Returns the log file that starts at this offset; None if it is missing or may still change.

        A file does not change if it is full, on disk and confirmed, if the index has its keys, and if the next file has
        a record. Raises StoreError.
        """
        end = physical_offset + self._log.file_size
        ends = [self._log.position, self._log.flushed]
        if self.confirm_offset is not None:
            ends.append(self.confirm_offset())
        if self.config.message_index_enable:
            ends.append(self._index.position)
        file = self._log.file_at(physical_offset)
        if file is None or file.base != physical_offset or min(ends) < end or self._log.position == end:
            return None
        try:
            ended_at = round(self._log.completed_at(file))
        except OSError as e:
            raise StoreError(f"can't read the age of {file.path}: {e.strerror or e}") from e
        begun_at = self._log.store_time(physical_offset)
        return ClosedFile(file.path, physical_offset, end, begun_at, max(begun_at, ended_at))

    def units_between(self, begin: int, end: int) -> Iterator[tuple[ConsumeQueue, int, bytes]]:
        """Yields the units of all queues with records between two physical offsets, in short steps.

        The items are the queue, the queue offset of the first unit, and the units: b"" if a queue has none there. The
        caller may do other work between two items. Raises StoreError.
        """
        for queue in self._queues:
            last = queue.peek(queue.max_offset - 1) if queue.exists else None
            if last is None or last[0] < begin:
                yield queue, 0, b""
                continue
            offset, stop = queue.count_before(begin), queue.count_before(end)
            while offset < stop and queue.exists:
                units = queue.peek_units(offset, min(stop - offset, _COPIED_UNITS))
                if units:
                    yield queue, offset, units
                offset += len(units) // UNIT_SIZE or queue.next_file_offset(offset) - offset

    def index_entries_between(self, begin: int, end: int) -> Iterator[bytes]:
        """Yields the index entries of the records between two physical offsets, in the order of the log."""
        return self._index.entries_between(begin, end)

    # -- cleaning -----------------------------------------------------------------------------------------------

    def clean(self, now_ms: int) -> bool:
        """Runs one round of cleaning. Deletes the oldest log file if it has expired, and its queue and index entries.

        Then it advances queues of topics with a retention of their own past their expired messages.

        Call it again soon if it returned True, because there is more to do, and after 10 s if it returned False. A
        round takes some tens of milliseconds at most. While the disk is too full, `append` raises StoreFull. If
        something can't be deleted, the round does everything else, then raises StoreError. The next round tries again.
        """
        try:
            has_more = self._cleaner.clean(now_ms)
        finally:
            if self._trash and self._threads is not None:
                self._threads.queue_flusher.wake()
            is_advancing = self._topic_retention.run(now_ms)
        is_expiring = self.light is not None and self.light.expire()
        return has_more or is_advancing or is_expiring

    def apply_topic_retention(self, now_ms: int) -> None:
        """Advances all queues past their expired messages. Call it after `open`, before the first read.

        Raises StoreError if a queue can't be read.
        """
        self._topic_retention.run_to_end(now_ms)

    def delete_expired_soon(self) -> None:
        """Makes the next rounds of `clean` delete expired files at any hour (DELETE_EXPIRED_COMMITLOG)."""
        self._cleaner.retention.is_asked = True

    def delete_expired_queues(self) -> Iterator[int]:
        """Deletes the queues whose messages have all been deleted. Yields the number of deleted queues after each step.

        A later message in such a queue gets the queue offset 0. Queues of system topics stay, as do queues that never
        had a message (`ConsumeQueueStore.cleanExpired`).
        """
        for count in self._cleaner.delete_expired_queues():
            if count and self._threads is not None:
                self._threads.queue_flusher.wake()
            yield count

    def delete_unused_topics(self, used: Set[str]) -> int:
        """Deletes the queues of topics that are neither in use nor system topics. Returns the number of topics."""
        unused = [topic for topic in self.topics() if topic not in used and not is_system_topic(topic)]
        for topic in unused:
            logger.info("deleting the topic %s: it isn't in use", topic)
            self.delete_topic(topic)
        return len(unused)

    # -- offsets ------------------------------------------------------------------------------------------------

    @property
    def max_physical_offset(self) -> int:
        """The physical offset of the next record."""
        return self._log.position

    @property
    def min_physical_offset(self) -> int:
        return self._log.min_offset

    @property
    def flushed_offset(self) -> int:
        """The physical offset up to which the log is on disk."""
        return self._log.flushed


def _in_memory_bytes(config: StoreConfig) -> int:
    memory = files.memory()
    return memory * config.access_message_in_memory_max_ratio // 100
