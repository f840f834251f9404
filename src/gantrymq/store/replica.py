"""Writes the data that a slave receives from its master to log and queues.

Data arrives as in the master's log. An incomplete record stays in memory. A complete record is checked before it is
visible in log or queues. The checks cover its length, its position and the CRC of its body. If the record has a CRC of
its whole content (`record_crc`), this CRC is checked, too. Other fields can't be verified.

A queue offset that isn't the next one of its queue is rare. Such a record is rejected once and accepted if the same
data arrives again. Offset 0 starts the queue again, because its topic was deleted.

Java's slave copies bytes without checks (`CommitLog.appendData`). It stops at damaged data when it builds the queues
(`ReputMessageService`), but its log keeps the damaged bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from struct import Struct
from zlib import crc32

from gantrymq.errors import RecordError, StoreBusy, StoreError
from gantrymq.protocol.java import tags_code
from gantrymq.protocol.properties import TAGS, find_property
from gantrymq.protocol.record import (
    BLANK_SIZE,
    BODY_AT_V4,
    FIXED_SIZE_V4,
    MAGIC_V1,
    Buffer,
    decode_record,
    unpacker,
)
from gantrymq.protocol.sys_flag import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_PREPARED
from gantrymq.protocol.topic_name import SCHEDULE_TOPIC
from gantrymq.store.commit_log import CommitLog
from gantrymq.store.consume_queue import FILLER_SIZE, UNIT, ConsumeQueue
from gantrymq.store.delay_level import tags_code_of
from gantrymq.store.incoming_record import size_of_next
from gantrymq.store.log_reader import check_places, runs_of
from gantrymq.store.message_index import MessageIndex
from gantrymq.store.queue_table import QueueTable
from gantrymq.store.record_crc import has_crc, has_wrong_crc
from gantrymq.store.trash import Trash
from gantrymq.store.unconfirmed_units import UnconfirmedUnits, Units, clear_units, preallocate, write_units

log = logging.getLogger(__name__)

_HOSTS_V6 = BORN_HOST_V6 | STORE_HOST_V6
_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()
_TAGS = TAGS.encode()
_unpack = unpacker(
    "size",
    "magic",
    "body_crc",
    "queue_id",
    "queue_offset",
    "physical_offset",
    "sys_flag",
    "store_timestamp",
    "body_length",
)
_unpack_i16 = Struct(">h").unpack_from
_pack_unit = UNIT.pack


class Replica:
    """Writes replicated data to a store that accepts nothing else. Call it in the thread that calls the store."""

    def __init__(
        self,
        commit_log: CommitLog,
        queues: QueueTable,
        index: MessageIndex,
        trash: Trash,
        delays_ms: Sequence[int],
        alone: Callable[[int], AbstractContextManager[None]],
        *,
        needs_crc: bool = False,
        dispatch: Callable[[int], Collection[ConsumeQueue]] = lambda until: (),
    ) -> None:
        """Creates the replica. `dispatch` adds the visible records before a physical offset to light queues.

        It returns the light queues with new messages.
        """
        self._log = commit_log
        self._queues = queues
        self._index = index
        self._trash = trash
        self._delays_ms = delays_ms
        self._alone = alone
        self._needs_crc = needs_crc
        self._dispatch = dispatch
        self._held = UnconfirmedUnits(commit_log, queues)
        #: The start of an incomplete record, and the number of bytes needed for the next check.
        self._unfinished = bytearray()
        self._wanted = 0
        #: Number of bytes of the next data that were stored before StoreBusy was raised.
        self._repeated = 0
        #: Queues with new messages that no call has returned yet.
        self._changed_queues: dict[ConsumeQueue, None] = {}
        #: Called when the log was truncated, before new data is stored. Offsets can then be beyond the ends of queues.
        self.cut_listeners: list[Callable[[], None]] = []
        #: Called with each queue that replaces the queue of a deleted topic, the physical offset of the end of the old
        #: queue's last record, and that of the new queue's first record. Offsets in the old queue are outdated.
        self.restart_listeners: list[Callable[[ConsumeQueue, int, int], None]] = []
        #: True if records have arrived since the log last lost its end: in a crash before the start, or by `truncate`.
        self.has_received = False
        #: Offset and checksum of the rejected data, which is accepted if it arrives again.
        self._doubted = (-1, 0)

    @property
    def received(self) -> int:
        """The physical offset up to which data has arrived."""
        return self._log.position + len(self._unfinished)

    def restart(self) -> None:
        """Discards an incomplete record, because the connection is lost. The next data starts at the end of the log."""
        self._unfinished = bytearray()
        self._wanted = self._repeated = 0

    def begin_at(self, physical_offset: int) -> None:
        """Starts an empty log at this offset, the start of a file. Raises StoreError if the log has messages."""
        if self._log.position > self._log.min_offset:
            raise StoreError(f"the log has messages: it can't begin at {physical_offset}")
        self.begin_anew(physical_offset)

    def begin_anew(self, physical_offset: int) -> None:
        """Deletes all messages. The log is then empty and starts at this offset, which is the start of a file.

        A slave calls this if the master has already deleted the data after the end of the slave's log. Raises
        StoreError.
        """
        self._check_copy()
        if physical_offset < 0 or physical_offset % self._log.file_size:
            raise StoreError(f"a log can't begin at {physical_offset}: its files have {self._log.file_size} bytes")
        with self._changed(0):
            self._held.drop()
            self._queues.delete(list(self._queues))
            self._index.cut(0)
            self._log.begin_at(physical_offset, self._trash)
        self._was_cut()

    def truncate(self, physical_offset: int) -> None:
        """Truncates log, queues and index at this offset. Does nothing if the log ends before it.

        A record must start at this offset. The method waits for the disk. After a crash during this operation, the log
        can be longer than requested, but not longer than before. Raises StoreError if no record starts there or
        something can't be deleted; the caller may try again.
        """
        self._check_copy()
        commit_log = self._log
        if physical_offset < commit_log.position:
            if not commit_log.begins_at(physical_offset):
                raise StoreError(f"the log can't be cut at {physical_offset}: no record begins there")
            with self._changed(physical_offset):
                self._held.show(self._changed_queues, physical_offset)
                self._held.drop()
                for queue in self._queues:
                    queue.drop_from(physical_offset)
                self._index.cut(physical_offset)
                commit_log.cut(physical_offset)
            self._was_cut()
        self.restart()

    def _was_cut(self) -> None:
        self.has_received = False
        for listener in self.cut_listeners:
            listener()

    def _check_copy(self) -> None:
        if not self._log.is_copy:
            raise StoreError("the store isn't a slave's: its log takes no copy of another one")

    @contextmanager
    def _changed(self, end: int) -> Iterator[None]:
        try:
            with self._alone(end):
                yield
        except OSError as e:
            raise StoreError(f"can't drop what is behind {end} of the log: {e}") from e
        finally:
            self.restart()

    def append(self, data: Buffer) -> list[ConsumeQueue]:
        """Appends the next bytes of the log. Returns the queues with new messages.

        Raises StoreBusy while a file is preallocated, and StoreFull and StoreError as the store's `append` does. The
        caller must then pass the same data again or call `restart`. Raises RecordError if the data is damaged. All
        records before the damage are stored, and the next data must start at the end of the log.
        """
        self._check_copy()
        begin, self._repeated = self._repeated, 0
        unfinished = self._unfinished
        if len(unfinished) + len(data) - begin < self._wanted:
            unfinished += memoryview(data)[begin:]
            return []
        buffer = b"".join((unfinished, memoryview(data)[begin:]))
        self._wanted = at = 0
        try:
            while at < len(buffer) and (taken := self._take_runs(buffer, at) or self._take(buffer, at)):
                at += taken
            self.has_received |= at > 0
            if self._held.until is not None:
                self._held.show(self._changed_queues, self._held.until)
        except RecordError:
            self.restart()
            raise
        except BaseException:
            self._repeated = len(data)
            self._unfinished = bytearray(memoryview(buffer)[at:])
            self._wanted = 0
            raise
        self._unfinished = bytearray(memoryview(buffer)[at:])
        return self._notify()

    def confirm(self, physical_offset: int) -> list[ConsumeQueue]:
        """Sets the confirm offset. A record is not visible until the confirm offset has passed it.

        Used in controller mode. All records are visible before the first call and after `set_slave`. Returns the queues
        with new messages. Raises StoreBusy, StoreFull or StoreError; the caller may try again.
        """
        self._check_copy()
        self._held.until = max(physical_offset, self._held.until or 0)
        self._held.show(self._changed_queues, self._held.until)
        return self._notify()

    def show_all(self) -> None:
        """Makes all records visible. Raises as `confirm` does."""
        self._held.show(self._changed_queues)
        self._held.until = None

    def _notify(self) -> list[ConsumeQueue]:
        until = self._held.until
        end = self._log.position if until is None else min(until, self._log.position)
        changed = [*self._changed_queues, *self._dispatch(end)]
        self._changed_queues.clear()
        return changed

    def _take_runs(self, buffer: bytes, at: int) -> int:
        """Stores the next records with native code. Returns the bytes; 0 if they must be checked individually."""
        commit_log = self._log
        file_end = at + commit_log.file_size - commit_log.position % commit_log.file_size
        end = max(min(len(buffer), file_end - BLANK_SIZE), at)
        runs = runs_of(buffer, at, end, commit_log.position - at, needs_crc=self._needs_crc)
        if runs is None:
            return 0
        all_units = []
        for run in runs.runs:
            try:
                queue = self._queue(run.topic, run.queue_id)
            except RecordError:
                return 0
            if self._held.next_offset(queue) != run.first:
                return 0
            all_units.append(Units(queue, run.first, run.units))
        self._put(memoryview(buffer)[at : runs.end], all_units, runs.last_timestamp)
        return runs.end - at

    def _take(self, buffer: bytes, at: int) -> int:
        """Stores complete records from `at` on, as many as possible at once. Returns the number of bytes.

        It stops before an unusual record, so that the records before it are stored. The next call handles that record.
        """
        commit_log = self._log
        first = commit_log.position - at
        timestamp = commit_log.store_timestamp
        file_end = at + commit_log.file_size - commit_log.position % commit_log.file_size
        end, last = min(len(buffer), file_end), min(len(buffer), file_end - BLANK_SIZE)
        queues: dict[tuple[bytes, int], Units] = {}
        pos = at
        while pos < end:
            is_plain = False
            if pos + FIXED_SIZE_V4 <= end:
                size, magic, crc, queue_id, queue_offset, place, sys_flag, stored, body_length = _unpack(buffer, pos)
                stop = pos + size
                # Almost every record meets this condition. All others are checked below.
                if (
                    magic == MAGIC_V1
                    and place == first + pos
                    and not sys_flag & _HOSTS_V6
                    and 0 <= body_length <= size - FIXED_SIZE_V4
                    and stop <= last
                ):
                    body_end = pos + BODY_AT_V4 + body_length
                    topic_end = body_end + 1 + buffer[body_end]
                    is_plain = (
                        topic_end + 2 <= stop
                        and topic_end + 2 + _unpack_i16(buffer, topic_end)[0] == stop
                        and crc32(buffer[pos + BODY_AT_V4 : body_end]) & 0x7FFFFFFF == crc
                    )
            try:
                if is_plain:
                    topic, properties = buffer[body_end + 1 : topic_end], buffer[topic_end + 2 : stop]
                else:
                    size = size_of_next(buffer, pos, first + pos, file_end - pos)
                    stop = pos + size
                    if stop > len(buffer):
                        self._wanted = size
                        break
                    if stop == file_end:
                        if pos == at:
                            self._check_blank(buffer[pos:stop], first + pos)
                            pos = stop
                        break
                    record = decode_record(buffer, pos)
                    queue_id, queue_offset, sys_flag = record.queue_id, record.queue_offset, record.sys_flag
                    topic, properties, stored = record.topic, record.properties, record.store_timestamp
                if has_wrong_crc(buffer, pos, stop) or (self._needs_crc and not has_crc(buffer[pos:stop])):
                    raise RecordError("its property __CRC32# is missing or wrong")
                if sys_flag & TRANSACTION_PREPARED:
                    # PREPARED and ROLLBACK contain this bit. Neither has a unit.
                    check_places(queue_id, queue_offset, first + pos)
                else:
                    units = queues.get((topic, queue_id))
                    if units is None:
                        queue = self._queue(topic, queue_id)
                        units = Units(queue, self._held.next_offset(queue))
                    if queue_offset != units.next_offset:
                        if pos > at:
                            break
                        check_places(queue_id, queue_offset, first + pos)
                        queue = self._fitting(units.queue, queue_offset, first + pos, buffer[pos:stop])
                        units = Units(queue, queue_offset)
                    if topic == _SCHEDULE_TOPIC:
                        code = tags_code_of(decode_record(buffer, pos), self._delays_ms)
                    else:
                        code = tags_code(find_property(properties, _TAGS) or b"")
                    queues[topic, queue_id] = units
                    units.data += _pack_unit(first + pos, size, code)
                    units.next_offset = queue_offset + 1
            except RecordError as e:
                if pos > at:
                    break
                raise RecordError(f"what came of the log at {first + pos} is damaged: {e}") from e
            timestamp = stored
            pos = stop
        if pos > at:
            self._put(memoryview(buffer)[at:pos], list(queues.values()), timestamp)
        return pos - at

    def _put(self, data: memoryview, all_units: list[Units], timestamp: int) -> None:
        """Writes verified data. Raises StoreBusy, StoreFull or StoreError; nothing is written then."""
        commit_log, held = self._log, self._held
        try:
            commit_log.preallocate_for_copy(len(data))
        except StoreBusy:
            if held.until is None:
                # Also requests preallocation for the queues, so that both run at the same time.
                preallocate(all_units)
            raise
        if held.until is None:
            preallocate(all_units)
            write_units(all_units)
        try:
            commit_log.write(data)
        except StoreError:
            if held.until is None:
                clear_units(all_units)
            raise
        if held.until is None:
            for units in all_units:
                queue = units.queue
                queue.count_written(len(units))
                self._queues.mark_dirty(queue)
                self._changed_queues[queue] = None
        elif all_units:
            held.hold(commit_log.position, commit_log.position + len(data), all_units)
        # As in `MessageWriter.append`, the log's position makes everything valid and is set last.
        commit_log.store_timestamp = timestamp
        commit_log.position += len(data)

    def _check_blank(self, blank: bytes, physical_offset: int) -> None:
        if blank.count(0, BLANK_SIZE) < len(blank) - BLANK_SIZE:
            self._doubt(physical_offset, blank, "a blank isn't empty")

    def _doubt(self, physical_offset: int, what: bytes, why: str) -> None:
        """Rejects suspicious data with a RecordError, but accepts it if the same data arrives again."""
        doubted = physical_offset, crc32(what)
        if self._doubted != doubted:
            self._doubted = doubted
            raise RecordError(f"{why}: it must be copied again")
        log.warning("%s at the physical offset %d: so it is in the master's log", why, physical_offset)

    def _queue(self, topic: bytes, queue_id: int) -> ConsumeQueue:
        try:
            return self._queues.get_or_create(topic.decode(), queue_id)
        except (UnicodeDecodeError, StoreError) as e:
            raise RecordError(str(e)) from e

    def _fitting(self, queue: ConsumeQueue, queue_offset: int, physical_offset: int, record: bytes) -> ConsumeQueue:
        """Makes `queue_offset` the next offset of the queue and returns the queue. Raises RecordError in doubt."""
        if self._held.next_offset(queue) != queue.max_offset:
            # The queue will be replaced, so its pending units are written first.
            self._held.show(self._changed_queues)
        if queue_offset == 0:
            log.info("%r begins anew at the physical offset %d: its topic was deleted", queue, physical_offset)
            old_end = _log_end_of(queue)
            self._queues.delete([queue])
            new = self._queues.get_or_create(queue.topic, queue.queue_id)
            for listener in self.restart_listeners:
                listener(new, old_end, physical_offset)
            return new
        # A queue without messages is plausible: the log may start after its older messages.
        if queue.has_messages or not self._log.min_offset:
            self._doubt(physical_offset, record, f"the queue offset {queue_offset} isn't the next one of {queue!r}")
        if queue_offset > queue.max_offset:
            queue.skip_to(queue_offset)
        else:
            with self._changed(self._log.position):
                queue.cut(queue_offset)
        return queue


def _log_end_of(queue: ConsumeQueue) -> int:
    """Returns the physical offset of the end of the queue's last record; 0 if the queue can't be read."""
    try:
        last = queue.peek(queue.max_offset - 1)
    except StoreError as e:
        log.warning("the last message of %r can't be read: %s", queue, e)
        return 0
    return 0 if last is None or last[1] == FILLER_SIZE else last[0] + last[1]
