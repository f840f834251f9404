"""Delayed messages of the 18 levels (`ScheduleMessageService`, `HookUtils`).

A message with a delay level waits in queue level-1 of SCHEDULE_TOPIC_XXXX, its tags code being the time it is due (ms);
when due it is stored again in its real queue. All messages of a level wait equally long, so a queue is in order of time
and only its head matters. How far each level has got is in delayOffset.json, some seconds late, and in the log itself
(`DeliveryJournal`).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path

import msgspec

from gantrymq.background.jobs import Jobs
from gantrymq.broker.appender import ROOM_S, Appender, is_passing
from gantrymq.broker.delivery_journal import LEVELS_QUEUE, MAX_SOURCES, DeliveryJournal, JournalEntry
from gantrymq.broker.part import Part
from gantrymq.broker.queue_reader import QueueReader
from gantrymq.broker.real_queue import real_queue
from gantrymq.broker.saving import Saving
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

#: Messages of one level that are delivered before the loop gets its turn, and for how long all levels may hold it, s.
_BATCH = 256
_TURN_S = 0.005
#: So many of a level are on their way at once where other brokers store them.
_AHEAD = 32
#: DELAY_FOR_A_PERIOD: the pause after a failed delivery.
_AFTER_ERROR_S = 10.0
#: The longest sleep while a message waits: the clock may be set meanwhile, s.
_LONGEST_SLEEP_S = 2.0


class _DelayOffsets(msgspec.Struct, rename="camel"):
    offset_table: dict[int, int] = {}
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)


class _LevelsEntry(JournalEntry):
    """`offset_table` is that of delayOffset.json; `sources` are in the queue of `level`, from its offset on."""

    level: int
    offset_table: dict[int, int]


class Schedule(Part):
    """Delays messages and delivers them when they are due."""

    def __init__(self, path: Path, levels_ms: list[int], appender: Appender, jobs: Jobs, *, saving: Saving) -> None:
        self._file = saving.file(path, self._encode_file, follows_log=True)
        self._levels_ms = levels_ms
        self._appender = appender
        self._reader = QueueReader(appender.store, "delayed messages")
        self._journal = DeliveryJournal(appender, LEVELS_QUEUE, _LevelsEntry)
        self._offsets = _DelayOffsets()
        #: Level -> the offset up to which messages are on their way to other brokers.
        self._begun: dict[int, int] = {}
        #: When the levels have held the loop for long enough; 0 before the first one's turn.
        self._turn_ends = 0.0
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
        """Goes back: messages that were delivered behind the log's end must be delivered again."""
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
        """Before a message can come; what can't be written now is tried again."""
        self._file.write_soon()
        with suppress(StoreError, OSError):
            self._file.write_now()

    def _go_back(self) -> bool:
        """A level whose queue has lost its end goes on at the end that it has; whether there is one."""
        lost = [level for level, offset in self.offsets().items() if offset > self._queue(level).max_offset]
        for level in lost:
            self._advance(level, self._queue(level).max_offset)
        return bool(lost)

    def _journaled(self) -> dict[int, int]:
        """How far each level is delivered by what the log has; empty where it doesn't say. Raises StoreError."""
        last = self._journal.last()
        if last is None:
            return {}
        entry, delivered = last
        return entry.offset_table | {entry.level: entry.offset_table.get(entry.level, 0) + delivered}

    async def become_master(self) -> None:
        """Takes up every level where it stopped. Raises StoreError."""
        self._go_back()
        for level, offset in self._journaled().items():
            if offset > self.offsets().get(level, 0):
                self._advance(level, offset)
        for delivery in self._deliveries.values():
            delivery.start(0.0)

    async def become_slave(self) -> None:
        """The master delivers; `copy_offsets` tells how far it is."""
        await self.stop()

    async def stand_in(self) -> None:
        await self.become_master()

    async def stop(self) -> None:
        for delivery in self._deliveries.values():
            delivery.cancel()
        self._begun.clear()

    def copy_offsets(self, table: bytes) -> None:
        """Takes how far the master has delivered. Raises BodyError."""
        offsets = decode_json(table, _DelayOffsets)
        if offsets.offset_table != self._offsets.offset_table:
            self._offsets = offsets
            self._file.changed()

    def advance_offsets(self, table: bytes) -> None:
        """Takes how far another has delivered where that is further. Raises BodyError."""
        for level, offset in decode_json(table, _DelayOffsets).offset_table.items():
            if offset > self._offsets.offset_table.get(level, 0):
                self._advance(level, offset)

    def encoded_offsets(self) -> bytes:
        """How far each level is delivered, as delayOffset.json has it."""
        return encode_json(self._offsets)

    def _encode_file(self) -> list[bytes]:
        self._offsets.data_version.advance()
        return [self.encoded_offsets()]

    @property
    def skipped(self) -> int:
        """Messages that were lost since the start, since they can't be read or delivered."""
        return self._reader.skipped

    def offsets(self) -> dict[int, int]:
        """{level: offset in its queue}."""
        return self._offsets.offset_table

    def redirect(
        self, queue: ConsumeQueue, properties: bytes, level: int, now_ms: int
    ) -> tuple[ConsumeQueue, bytes, int]:
        """Where a message for `queue` waits: (queue, properties, tags code). A level too high is the highest."""
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
        """Stores again what is due; returns the seconds to the next message, inf when the queue is empty.

        Raises GantryError or OSError when the store takes nothing; what is stored isn't stored once more.
        """
        began = monotonic()
        if not self._turn_ends:
            self._turn_ends = began + _TURN_S
            asyncio.get_running_loop().call_soon(self._turn_ended)
        elif began >= self._turn_ends:
            # The levels before it have used up this turn of the loop.
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
                    with self._appender.store.ahead_of_line():
                        self._deliver(level, queue, record)
                except StoreBusy:
                    self._begin_ahead(level, queue, next_offset, delay_ms, now_ms)
                    return ROOM_S
            self._advance(level, next_offset)
            if monotonic() >= self._turn_ends:
                break
        return inf if self._offsets.offset_table.get(level, 0) >= queue.max_offset else 0.0

    def _turn_ended(self) -> None:
        self._turn_ends = 0.0

    @staticmethod
    def _due_ms(record: Record, delay_ms: int, now_ms: int) -> int:
        """When a message is due. One that was stored while the clock was ahead is due now: it would hold up its level.

        Source: ScheduleMessageService.correctDeliverTimestamp.
        """
        return now_ms if record.store_timestamp > now_ms else record.store_timestamp + delay_ms

    def _begin_ahead(self, level: int, queue: ConsumeQueue, offset: int, delay_ms: int, now_ms: int) -> None:
        """Has those from `offset` on that are due on their way, if that is to another broker."""
        begin, begun = self._appender.begin_elsewhere, max(self._begun.get(level, 0), offset)
        if begin is None or begun - offset > _AHEAD // 2:
            return
        for next_offset, record in self._reader.records(queue, begun, offset + _AHEAD - begun):
            if record is None or self._due_ms(record, delay_ms, now_ms) > now_ms:
                # What can't be read is dealt with in its turn.
                return
            fields = decode_properties(record.properties)
            if self._appender.is_of_deleted(fields.get(names.REAL_TOPIC, ""), record.physical_offset):
                return
            try:
                target = real_queue(self._appender.store, fields)
                begin(record, target, record.properties, record.reconsume_times)
            except IllegalMessage:
                return
            self._begun[level] = next_offset

    def _deliver(self, level: int, queue: ConsumeQueue, record: Record) -> None:
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
        except Exception as e:
            if is_passing(e):
                raise
            self._reader.skip(queue, record.queue_offset, record.physical_offset, e)

    def _advance(self, level: int, offset: int) -> None:
        self._offsets.offset_table[level] = offset
        self._file.changed()
