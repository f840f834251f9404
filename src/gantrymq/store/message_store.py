"""The message store: opens, closes and cleans its parts, and finds records (`DefaultMessageStore`).

One thread, the broker's, calls everything here. `message_writer` puts messages in.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Set
from contextlib import AbstractContextManager, ExitStack, contextmanager

from gantrymq.background.jobs import Jobs
from gantrymq.errors import StoreError
from gantrymq.protocol.record import Record
from gantrymq.protocol.topic_name import is_system_topic
from gantrymq.store.checkpoint import load_checkpoint
from gantrymq.store.cleaner import Cleaner
from gantrymq.store.collect import collect
from gantrymq.store.commit_log import CommitLog
from gantrymq.store.config import UNIT_SIZE, StoreConfig
from gantrymq.store.consume_queue import FILLER_SIZE, ConsumeQueue, units_before
from gantrymq.store.delay_level import parse_delay_levels
from gantrymq.store.directory import StoreDirectory
from gantrymq.store.flusher import FlushCallback
from gantrymq.store.get_result import GetResult, GetStatus
from gantrymq.store.key_lookup import KeyLookup
from gantrymq.store.log_scan import look_for_records, records_with, start_of
from gantrymq.store.message_index import MessageIndex
from gantrymq.store.message_writer import MessageWriter, PutResult
from gantrymq.store.queue_table import QueueTable
from gantrymq.store.recovery import Recovery
from gantrymq.store.refusal import Refusal
from gantrymq.store.replica import Replica
from gantrymq.store.room_maker import RoomMaker
from gantrymq.store.store_threads import StoreThreads
from gantrymq.store.trash import Trash
from gantrymq.system import files

__all__ = ["MessageStore", "PutResult"]

logger = logging.getLogger(__name__)


class MessageStore:
    """The store in `config.store_path_root_dir`. `store_host` is the broker's address as in a record.

    `jobs` gets the reports of its threads. With `waits` False `append` doesn't wait for files that are being made.
    """

    def __init__(self, config: StoreConfig, store_host: bytes, *, jobs: Jobs | None = None, waits: bool = True) -> None:
        self.config = config
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
        self._index = MessageIndex(
            self._log, config.index_directory, config.max_hash_slot_num, config.max_index_num, rooms
        )
        self._is_indexed = config.message_index_enable
        self.keys = KeyLookup(config, self._log, self._index)
        self._cleaner = Cleaner(config, self._log, self._queues, self._index, self._trash)
        writer = MessageWriter(self._log, self._queues.dirty, store_host, with_crc=config.enabled_append_prop_crc)
        #: See MessageWriter. Bound here: a method that calls its one would cost each message a call more.
        self.append = writer.append
        self.begin_batch = writer.begin_batch
        self.append_batch = writer.append_batch
        self.append_sends = writer.append_sends
        #: While it is open.
        self._threads: StoreThreads | None = None
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
                self._check_log_is_there()
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
            threads = StoreThreads(
                config, self._log, self._queues.dirty, self._index, self._trash, checkpoint, self._rooms, self._jobs
            )
            stack.callback(threads.stop)
            threads.start()
            self._threads = threads
            self._open = stack.pop_all()
        self._drop_torn()

    def _check_log_is_there(self) -> None:
        """Raises StoreError if queues have messages and the log has no file. Recovery would remove them all."""
        if self._log.was_missing and any(queue.max_offset for queue in self._queues):
            config = self.config
            raise StoreError(
                f"{config.commit_log_directory} has no file of the log, but the queues in "
                f"{config.consume_queue_directory} have messages: mount or restore it, or correct storePathCommitLog. "
                f"To begin anew without these messages, move the queues and {config.index_directory} away"
            )

    def config_changed(self) -> None:
        """The configuration has another content: what was taken from it when the store was opened is taken again."""
        config = self.config
        self.in_memory_bytes = _in_memory_bytes(config)
        if config.message_index_enable and not self._is_indexed:
            # What was built before it was switched off is kept as far as it is on the disk for sure.
            self._index.open(0, was_aborted=True)
            self._is_indexed = True
        if self._threads is not None:
            self._threads.config_changed()

    def close(self) -> None:
        """Brings all to the disk, answers who waits for that, and unlocks the directory.

        Buffers of a GetResult stay good. Raises StoreError when the disk fails; then the next `open` finds the store as
        after a crash. Whatever it raises, the store is closed.
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
        if self._torn_at is not None and self._log.is_copy and self._threads is not None:
            logger.warning("a power failure may have damaged the record at %d: the log ends there", self._torn_at)
            self.replica.truncate(self._torn_at)
            self._torn_at = None

    def _alone(self, end: int) -> AbstractContextManager[None]:
        """See `StoreThreads.alone`. Raises StoreError, OSError."""
        return self._open_threads().alone(end)

    def _open_threads(self) -> StoreThreads:
        if self._threads is None:
            raise StoreError("the store is closed")
        return self._threads

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
        if self._threads is not None:
            # Then a recovery won't meet the topic's records again.
            self._threads.queue_flusher.flush_soon()

    def delete_queues_before(self, topic: str, physical_offset: int) -> None:
        """Deletes the queues of a topic that have only messages before this physical offset. Raises StoreError."""
        self._queues.delete(
            [
                queue
                for queue_id in self._queues.queue_ids(topic)
                if (queue := self.queue(topic, queue_id)).count_before(physical_offset) == queue.max_offset > 0
            ]
        )
        if self._threads is not None:
            self._threads.queue_flusher.flush_soon()

    # -- writing ------------------------------------------------------------------------------------------------

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Within it `append` waits for files; for who can't come again later."""
        before, self._rooms.waits = self._rooms.waits, True
        try:
            yield
        finally:
            self._rooms.waits = before

    @contextmanager
    def ahead_of_line(self) -> Iterator[None]:
        """Within it `append` takes what room there is, whoever waits for it; for what goes on in the background.

        It stands in no line, and with many senders there may be one all the time.
        """
        before, self._rooms.is_ahead_of_line = self._rooms.is_ahead_of_line, True
        try:
            yield
        finally:
            self._rooms.is_ahead_of_line = before

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
        self._open_threads().log_flusher.when_flushed(callback)

    # -- reading ------------------------------------------------------------------------------------------------

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
        """The records from a queue offset on that have one of the tags codes and for which `matches(record)`.

        None takes all. At least one record comes however large it is; `max_transfer_*` of the configuration limit them
        further, or, with `bulk`, `max_bulk_transfer_*`. No result reaches over the queue offset `end` or the end of a
        queue file, and where `matches` takes long it is short. Raises StoreError when the store is closed.
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
            if self._trash and self._threads is not None:
                self._threads.queue_flusher.wake()

    def delete_expired_soon(self) -> None:
        """The next rounds of `clean` delete what has expired, whatever the hour (DELETE_EXPIRED_COMMITLOG)."""
        self._cleaner.retention.is_asked = True

    def delete_expired_queues(self) -> Iterator[int]:
        """Deletes the queues that have no messages any more. A later message in one begins at 0 again.

        Looks at some of them in each step, and tells how many were deleted in it. Those of system topics stay, and
        those that never had a message (`ConsumeQueueStore.cleanExpired`).
        """
        for count in self._cleaner.delete_expired_queues():
            if count and self._threads is not None:
                self._threads.queue_flusher.wake()
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
