"""DelayLevels: delayed messages of the 18 delay levels (`ScheduleMessageService`, `HookUtils`).

A message with a delay level waits in queue `level - 1` of SCHEDULE_TOPIC_XXXX. Its tags code there is its delivery
time, in ms. At this time, the broker stores it again in its real queue. All messages of a level have the same delay, so
each queue is in the order of delivery times and only its head is checked.

The progress of each level is in delayOffset.json, which lags behind by some seconds, and in the `DeliveryJournal`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path

import msgspec

from gantrymq.background.jobs import Jobs
from gantrymq.broker.append import DELAY, PREALLOCATION_RETRY_S, Appender, is_passing
from gantrymq.broker.delay.delivery_journal import LEVELS_QUEUE, MAX_SOURCES, DeliveryJournal, JournalEntry
from gantrymq.broker.delay.real_queue import real_queue
from gantrymq.broker.feature import Feature
from gantrymq.broker.queue_reader import QueueReader
from gantrymq.broker.tables import TablePersistence
from gantrymq.errors import IllegalMessage, StoreBusy, StoreError
from gantrymq.logs import peer_log
from gantrymq.protocol import properties as names
from gantrymq.protocol.bodies.topic_config import DataVersion
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.java import tags_code
from gantrymq.protocol.properties import decode_properties, encode_properties, find_property
from gantrymq.protocol.record import Record
from gantrymq.protocol.topic_name import SCHEDULE_TOPIC
from gantrymq.store.consume_queue import FILLER_SIZE, UNIT, ConsumeQueue
from gantrymq.system import clock
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: Maximum number of messages of one level that are delivered in one event-loop iteration.
_BATCH = 256
#: Time slice of all levels together in one event-loop iteration, in seconds.
_SLICE_S = 0.005
#: Maximum number of messages of a level that are in flight to other brokers.
_AHEAD = 32
#: Pause after a failed delivery, in seconds (DELAY_FOR_A_PERIOD).
_AFTER_ERROR_S = 10.0
#: Longest sleep while a message waits, in seconds. It limits the delay after a change of the system clock.
_LONGEST_SLEEP_S = 2.0


class _DelayOffsets(msgspec.Struct, rename="camel"):
    """The content of delayOffset.json: level -> next offset in its queue."""

    offset_table: dict[int, int] = {}
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)


class _LevelsEntry(JournalEntry):
    """A journal entry of the delay levels.

    `sources` are messages of `level`, from its offset in `offset_table` on. `offset_table` is as in delayOffset.json.
    """

    level: int
    offset_table: dict[int, int]


class DelayLevels(Feature):
    """Delays messages and delivers them when they are due."""

    def __init__(
        self, path: Path, levels_ms: list[int], appender: Appender, jobs: Jobs, *, persistence: TablePersistence
    ) -> None:
        self._file = persistence.file(path, self._encode_file, follows_log=True)
        self._levels_ms = levels_ms
        self._appender = appender
        self._reader = QueueReader(appender.store, "delayed messages")
        self._journal = DeliveryJournal(appender, LEVELS_QUEUE, _LevelsEntry)
        self._offsets = _DelayOffsets()
        #: Level -> the queue offset up to which messages are in flight to other brokers.
        self._begun: dict[int, int] = {}
        #: End of the time slice of all levels. 0 before the first level runs in an event-loop iteration.
        self._slice_ends = 0.0
        self._deliveries = {
            level: jobs.repeating(
                f"deliver delay level {level}", partial(self._deliver_due, level), after_error_s=_AFTER_ERROR_S
            )
            for level in range(1, len(levels_ms) + 1)
        }
        appender.store.replica.cut_listeners.append(self._log_was_cut)

    def load(self) -> None:
        self._offsets = self._file.load(_DelayOffsets) or self._offsets
        if self._go_back():
            self._write_now()

    def _log_was_cut(self) -> None:
        """Moves the offsets of levels back after the log has lost its end, so that lost deliveries are repeated."""
        try:
            delivered = self._journaled()
        except StoreError as e:
            log.error("how far delay levels are delivered is taken from delayOffset.json: %s", e)
            delivered = {}
        ahead = {}
        if delivered:
            ahead = {level: delivered.get(level, 0) for level in self.offsets()}
            ahead = {level: offset for level, offset in ahead.items() if offset < self.offsets()[level]}
        for level, offset in ahead.items():
            self._advance(level, offset)
        if self._go_back() or ahead:
            self._write_now()

    def _write_now(self) -> None:
        """Writes the file before the next message is stored. If the write fails, a later write repeats it."""
        self._file.write_soon()
        with suppress(StoreError, OSError):
            self._file.write_now()

    def _go_back(self) -> bool:
        """If a level's queue has lost its end, moves the level back to the new end. Returns whether any was moved."""
        lost = [level for level, offset in self.offsets().items() if offset > self._queue(level).max_offset]
        for level in lost:
            self._advance(level, self._queue(level).max_offset)
        return bool(lost)

    def _journaled(self) -> dict[int, int]:
        """Returns the next offset of each level according to the journal, or {} without an entry. Raises StoreError."""
        last = self._journal.last()
        if last is None:
            return {}
        entry, delivered = last
        return entry.offset_table | {entry.level: entry.offset_table.get(entry.level, 0) + delivered}

    async def become_master(self) -> None:
        """Starts the delivery of each level at its next offset. Raises StoreError."""
        self._go_back()
        for level, offset in self._journaled().items():
            if offset > self.offsets().get(level, 0):
                self._advance(level, offset)
        for delivery in self._deliveries.values():
            delivery.start(0.0)

    async def become_slave(self) -> None:
        """Stops the delivery, because the master delivers. `copy_offsets` applies the master's progress."""
        await self.stop()

    async def stand_in(self) -> None:
        await self.become_master()

    async def stop(self) -> None:
        for delivery in self._deliveries.values():
            delivery.cancel()
        self._begun.clear()

    def copy_offsets(self, table: bytes) -> None:
        """Replaces the progress by the master's, from its delayOffset.json in `table`. Raises BodyError."""
        offsets = decode_json(table, _DelayOffsets)
        if offsets.offset_table != self._offsets.offset_table:
            self._offsets = offsets
            self._file.changed()

    def advance_offsets(self, table: bytes) -> None:
        """Applies the larger offsets in another broker's delayOffset.json (`table`). Raises BodyError."""
        for level, offset in decode_json(table, _DelayOffsets).offset_table.items():
            if offset > self._offsets.offset_table.get(level, 0):
                self._advance(level, offset)

    def encoded_offsets(self) -> bytes:
        """Returns the progress of all levels in the format of delayOffset.json."""
        return encode_json(self._offsets)

    def _encode_file(self) -> list[bytes]:
        self._offsets.data_version.advance()
        return [self.encoded_offsets()]

    @property
    def skipped(self) -> int:
        """Number of messages that were skipped after the start, because they can't be read or delivered."""
        return self._reader.skipped

    def offsets(self) -> dict[int, int]:
        """Returns the next offset of each level in its queue."""
        return self._offsets.offset_table

    def redirect(
        self, queue: ConsumeQueue, properties: bytes, level: int, now_ms: int
    ) -> tuple[ConsumeQueue, bytes, int]:
        """Returns the queue, the properties and the tags code with which a message for `queue` waits.

        A level above the highest level counts as the highest level.
        """
        level = min(level, len(self._levels_ms))
        fields = decode_properties(properties)
        fields[names.DELAY_TIME_LEVEL] = str(level)
        fields[names.REAL_TOPIC] = queue.topic
        fields[names.REAL_QUEUE_ID] = str(queue.queue_id)
        delay_ms = self._levels_ms[level - 1]
        self._deliveries[level].wake(delay_ms / 1000)
        return self._queue(level), encode_properties(fields), now_ms + delay_ms

    def _queue(self, level: int) -> ConsumeQueue:
        return self._appender.store.queue(SCHEDULE_TOPIC, level - 1)

    def _deliver_due(self, level: int) -> float:
        """Delivers the due messages of a level. Returns the seconds to the next run, inf if the queue is empty.

        Raises GantryError or OSError if the store can't be written. A message that is delivered is not repeated.
        """
        began = monotonic()
        if not self._slice_ends:
            self._slice_ends = began + _SLICE_S
            asyncio.get_running_loop().call_soon(self._turn_ended)
        elif began >= self._slice_ends:
            # Other levels have used up the time slice.
            return 0.0
        queue = self._queue(level)
        delay_ms = self._levels_ms[level - 1]
        offset = self._offsets.offset_table.get(level, 0)
        now_ms = clock.now_ms()
        for next_offset, record in self._reader.records(queue, offset, _BATCH):
            if record is not None:
                due_ms = self._due_ms(record, delay_ms, now_ms)
                if due_ms > now_ms:
                    return min((due_ms - now_ms) / 1000, _LONGEST_SLEEP_S)
                try:
                    with self._appender.store.ahead_of_wait_queue():
                        self._deliver(level, queue, record)
                except StoreBusy:
                    self._begin_ahead(level, queue, next_offset, delay_ms, now_ms)
                    return PREALLOCATION_RETRY_S
            self._advance(level, next_offset)
            if monotonic() >= self._slice_ends:
                break
        return inf if self._offsets.offset_table.get(level, 0) >= queue.max_offset else 0.0

    def _turn_ended(self) -> None:
        """Ends the time slice when the event-loop iteration ends."""
        self._slice_ends = 0.0

    @staticmethod
    def _due_ms(record: Record, delay_ms: int, now_ms: int) -> int:
        """Returns the delivery time of a message, in ms.

        A message that was stored while the clock was ahead is due at once. Otherwise it would delay its whole level.

        Source: ScheduleMessageService.correctDeliverTimestamp.
        """
        return now_ms if record.store_timestamp > now_ms else record.store_timestamp + delay_ms

    def _begin_ahead(self, level: int, queue: ConsumeQueue, offset: int, delay_ms: int, now_ms: int) -> None:
        """Starts to send the due messages from `offset` on, if other brokers store them."""
        begun = max(self._begun.get(level, 0), offset)
        if not self._appender.escapes or begun - offset > _AHEAD // 2:
            return
        for next_offset, record in self._reader.records(queue, begun, offset + _AHEAD - begun):
            if record is None or self._due_ms(record, delay_ms, now_ms) > now_ms:
                # `_deliver_due` skips a damaged record when all messages before it are delivered.
                return
            fields = decode_properties(record.properties)
            if self._appender.is_of_deleted(fields.get(names.REAL_TOPIC, ""), record.physical_offset):
                return
            try:
                target = real_queue(self._appender.store, fields)
                self._appender.begin_escape(record, target, record.properties, record.reconsume_times)
            except IllegalMessage:
                return
            self._begun[level] = next_offset

    def _deliver(self, level: int, queue: ConsumeQueue, record: Record) -> None:
        """Stores a due message in its real queue, after a journal entry if one is needed. Skips an invalid message."""
        journal = self._journal
        try:
            fields = decode_properties(record.properties)
            if self._appender.is_of_deleted(fields.get(names.REAL_TOPIC, ""), record.physical_offset):
                return
            target = real_queue(self._appender.store, fields)
            code = tags_code(find_property(record.properties, b"TAGS") or b"")
            if not journal.announces(record.physical_offset):
                sources = []
                for physical_offset, size, _ in UNIT.iter_unpack(queue.units(record.queue_offset, MAX_SOURCES)):
                    if size == FILLER_SIZE:
                        break
                    sources.append(physical_offset)
                table = self.offsets() | {level: record.queue_offset}
                journal.announce(_LevelsEntry(sources=sources, level=level, offset_table=table))
            put = self._appender.append_again(record, target, record.properties, code, record.reconsume_times)
            journal.delivered(put)
            if (received := self._appender.received) is not None and not self._appender.escapes:
                received.add(target.topic, DELAY, put.size)
        except Exception as e:
            if is_passing(e):
                raise
            self._reader.skip(queue, record.queue_offset, record.physical_offset, e)

    def _advance(self, level: int, offset: int) -> None:
        self._offsets.offset_table[level] = offset
        self._file.changed()
