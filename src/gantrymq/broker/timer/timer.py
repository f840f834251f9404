"""Messages with a delivery time of their own, TIMER_DELIVER_MS and the like (`TimerMessageStore`, `HookUtils`).

They wait in the topic rmq_sys_wheel_timer and on the timer wheel (`delivery`). This is the shell that gives the
state machine its time: it sleeps until the next slot with messages is over, and not at all where there are none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from math import inf
from typing import NamedTuple

from gantrymq.background.jobs import Jobs
from gantrymq.broker.appender import ROOM_S, Appender
from gantrymq.broker.log_flushed import log_flushed
from gantrymq.broker.part import Part
from gantrymq.broker.timer.delivery import Step, TimerDelivery
from gantrymq.broker.timer.message import slot_time
from gantrymq.broker.timer.metrics import TimerMetrics
from gantrymq.errors import RequestRefused, StoreBusy, StoreError
from gantrymq.protocol import properties as names
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.properties import decode_properties, encode_properties
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.store.config import StoreConfig
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.timer_checkpoint import TimerCheckpoint, of_slave
from gantrymq.store.timer_store import TimerStore
from gantrymq.system import randomness
from gantrymq.system.clock import now_ms

log = logging.getLogger(__name__)

#: So long the loop is held at most before others get their turn, s.
_TURN_S = 0.005
#: The pause when the store takes nothing, and after an error that nobody foresaw, s.
_BLOCKED_S = 0.5
_AFTER_ERROR_S = 10.0
#: The longest sleep while a message waits: the clock may be set meanwhile, s.
_LONGEST_SLEEP_S = 2.0
#: So many messages that take others back may be due in one slot: all are held in memory while it is delivered. Java has
#: no bound. It is counted from the start on: those of before are on the disk alone.
MAX_RECALLS_OF_SLOT = 100_000
#: A stopping broker goes on with a half delivered slot for so long, s.
_FINISH_S = 2.0


class TimerBehind(NamedTuple):
    """ms since the oldest slot that is over, messages that aren't on the wheel yet, and those on it."""

    overdue_ms: int
    not_taken_in: int
    waiting: int


class Timer(Part):
    """The timer messages of one broker."""

    def __init__(self, config: StoreConfig, appender: Appender, jobs: Jobs) -> None:
        self._config = config
        self._store = appender.store
        #: What is asked for later on has no effect: without its files there is no timer.
        self._is_enabled = config.timer_wheel_enable
        self._files = TimerStore(
            config.store_path_root_dir,
            config.timer_precision_ms,
            config.timer_roll_window_slot,
            config.mapped_file_size_timer_log,
        )
        self._metrics = TimerMetrics(config.config_directory / "timermetrics")
        self._delivery = TimerDelivery(self._files, appender, self._metrics, config.timer_precision_ms)
        self._loop = asyncio.get_running_loop()
        self._delivering = jobs.repeating("deliver timer messages", self._turn, after_error_s=_AFTER_ERROR_S)
        #: The last write of the files.
        self._saved: asyncio.Future[None] | None = None
        self._flushing = jobs.repeating("flush the timer's files", self._flush)
        self._is_changed = False
        #: Slot -> how many messages that take others back are due in it.
        self._recalls: dict[int, int] = {}
        self._is_master = False
        #: Its log is a copy of another's.
        self._follows = False
        self._stands_in = False
        #: At a slave, the newest checkpoint of its master, or its own after it stood in.
        self._masters_checkpoint: bytes | None = None
        #: How often the log has lost its end.
        self._cuts = 0
        self._store.replica.cut_listeners.append(self._log_was_cut)

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.GET_TIMER_CHECK_POINT: self.get_checkpoint,
            RequestCode.GET_TIMER_METRICS: self.get_metrics,
        }

    # -- life ---------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Recovers the files. Raises StoreError."""
        if self._is_enabled:
            self._files.open(self._store.max_physical_offset, now_ms())
            if not self._files.is_used:
                # All that waits is taken in, and counted, from the queue.
                self._metrics.clear()
            elif not self._metrics.load():
                self._delivery.count_waiting(now_ms())

    async def become_master(self) -> None:
        """Takes up where it stopped, or the master that it has followed did. Raises StoreError."""
        self._is_master = True
        if self._is_enabled:
            if self._follows:
                self._follows = False
                self._files.reopen(self._store.max_physical_offset, now_ms())
                self._recalls.clear()
                self._metrics.clear()
            self._delivery.begin()
            self._delivering.start(0.0)
            self._flushing.start()
        self._masters_checkpoint = None

    async def stand_in(self) -> None:
        """As a master that it becomes; how far it gets the master takes over (`take_over`)."""
        await self.become_master()
        self._stands_in = True

    async def become_slave(self) -> None:
        """The master delivers; what this broker has taken in may be cut off its log."""
        self._is_master, self._follows = False, True
        self._delivering.cancel()
        await self._flushing.stop()
        if self._saved is not None:
            await asyncio.wait([self._saved])
        if self._stands_in and self._is_enabled:
            # It isn't to be delivered again when it stands in once more, nor by the master, who asks for it.
            checkpoint = self._files.checkpoint(now_ms())
            self._masters_checkpoint = checkpoint.encode()
            await self._loop.run_in_executor(None, self._files.keep, checkpoint)
        self._stands_in = False
        if self._is_enabled and self._files.is_used:
            self._files.begin_anew(self._store.max_physical_offset, now_ms())

    async def stop(self) -> None:
        """Brings all to the disk. Nothing may be redirected any more."""
        if not self._is_enabled:
            return
        if not self._is_master:
            self._files.close()
            return
        self._delivering.cancel()
        await self._flushing.stop()
        if self._saved is not None:
            # Its thread goes on, whoever was cancelled.
            await asyncio.wait([self._saved])
        try:
            await self._finish_slot()
            if self._files.is_used:
                await self._flush()
        finally:
            self._files.close()

    async def _finish_slot(self) -> None:
        """A slot that is left half delivered comes again as a whole after the next start."""
        end = self._loop.time() + _FINISH_S
        more = True
        try:
            while more and self._delivery.is_delivering and self._loop.time() < end:
                with self._store.waiting():
                    more = self._turn() == 0.0
                await asyncio.sleep(0)
        except (StoreError, OSError) as e:
            log.error("what is due isn't delivered before the stop: %s", e)

    # -- messages -----------------------------------------------------------------------------------------------

    def redirect(self, queue: ConsumeQueue, properties: bytes, tags_code: int) -> tuple[ConsumeQueue, bytes, int]:
        """Where a message for `queue` waits: (queue, properties, tags code); as they are when it is due already.

        To be stored there before the loop goes on. Raises RequestRefused: no timer here, no possible time, or too many
        messages in its slot.
        """
        fields = decode_properties(properties)
        if names.TIMER_OUT_MS in fields:
            # It has waited once (`HookUtils.checkIfTimerMessage`).
            return queue, properties, tags_code
        if not self._is_enabled:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, "accurate timer message is not enabled, timerWheelEnable is false"
            )
        slot_ms = slot_time(fields, self._config, now_ms())
        if slot_ms is None:
            return queue, properties, tags_code
        self._check_congestion(slot_ms)
        if names.TIMER_DEL_UNIQKEY in fields:
            self._count_recall(slot_ms)
        fields[names.TIMER_OUT_MS] = str(slot_ms)
        fields[names.REAL_TOPIC] = queue.topic
        fields[names.REAL_QUEUE_ID] = str(queue.queue_id)
        self._delivering.wake()
        return self._delivery.queue(), encode_properties(fields), tags_code

    def _check_congestion(self, slot_ms: int) -> None:
        """From the limit on messages are refused at random, the more the fuller the slot (`isReject`)."""
        limit = self._config.timer_congest_num_each_slot
        over = self._files.number_at(slot_ms) - limit
        if over > 0 and randomness.random() < over / limit:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"timer message is under flow control, max num limit is {2 * limit} or the current value is greater "
                f"than {limit} and less than {2 * limit}, trigger random flow control",
            )

    def _count_recall(self, slot_ms: int) -> None:
        count = self._recalls.get(slot_ms, 0)
        if count >= MAX_RECALLS_OF_SLOT:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"timer message is under flow control, {count} messages due at the same time are taken back already",
            )
        self._recalls[slot_ms] = count + 1

    # -- the loop -----------------------------------------------------------------------------------------------

    def _turn(self) -> float:
        """Works for a while; returns when it is to go on."""
        end = self._loop.time() + _TURN_S
        try:
            with self._store.ahead_of_line():
                while (step := self._delivery.step(now_ms())) is Step.MORE:
                    self._is_changed = True
                    if self._loop.time() >= end:
                        break
        except StoreBusy:
            step = Step.NO_ROOM
        if self._is_changed:
            self._flushing.wake(self._config.timer_flush_interval_ms / 1000)
        if step is Step.MORE:
            return 0.0
        if step is Step.NO_ROOM:
            return ROOM_S
        if step is Step.BLOCKED:
            return _BLOCKED_S
        due_ms = self._delivery.due_ms()
        return inf if due_ms is None else min(max(due_ms - now_ms(), 0) / 1000, _LONGEST_SLEEP_S)

    # -- the disk -----------------------------------------------------------------------------------------------

    async def _flush(self) -> None:
        """Raises StoreError or OSError: after a power failure messages would come twice."""
        self._is_changed = False
        now = now_ms()
        self._recalls = {slot_ms: count for slot_ms, count in self._recalls.items() if slot_ms >= now}
        checkpoint, metrics = self._files.checkpoint(now_ms()), self._metrics.encode()
        # Only then the checkpoint may say that what was delivered was.
        await log_flushed(self._store)
        self._saved = self._loop.run_in_executor(None, self._save, checkpoint, metrics)
        await asyncio.shield(self._saved)
        self._files.delete_before(self._store.min_physical_offset)

    def _save(self, checkpoint: TimerCheckpoint, metrics: bytes) -> None:
        self._files.flush(checkpoint)
        self._metrics.save(metrics)

    # -- figures ------------------------------------------------------------------------------------------------

    def get_checkpoint(self, connection: Connection, request: RemotingCommand) -> Reply:
        """The content of timercheck as it would be now."""
        if not self._is_enabled:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "The checkpoint is null")
        return RemotingCommand.response(body=self._masters_checkpoint or self._files.checkpoint(now_ms()).encode())

    def get_metrics(self, connection: Connection, request: RemotingCommand) -> Reply:
        """How many messages wait for each topic."""
        if not self._is_enabled:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "The timer message store is null")
        return RemotingCommand.response(body=self._metrics.encode())

    async def copy_checkpoint(self, content: bytes) -> None:
        """Takes how far the master's timer has got. Raises RecordError, or OSError when it can't be kept."""
        checkpoint = of_slave(content)
        self._masters_checkpoint = content
        if self._is_enabled:
            cuts = self._cuts
            await self._loop.run_in_executor(None, self._files.keep, checkpoint)
            if self._cuts > cuts:
                self._drop_checkpoint()

    def _log_was_cut(self) -> None:
        """A checkpoint may have what was delivered behind the log's end."""
        self._cuts += 1
        self._masters_checkpoint = None
        if self._is_enabled:
            self._drop_checkpoint()

    def _drop_checkpoint(self) -> None:
        """The log says better what was delivered, if it does at all."""
        try:
            if self._delivery.is_journaled():
                self._files.keep(TimerCheckpoint())
        except (StoreError, OSError) as e:
            log.error("timer messages that were cut off the log may not be delivered: %s", e)

    async def take_over(self, content: bytes) -> None:
        """Before the start: takes how far a slave has got that stood in. Raises RecordError, StoreError, OSError."""
        checkpoint = of_slave(content)
        if self._is_enabled and checkpoint.read_time_ms > self._files.read_time_ms:
            await self._loop.run_in_executor(None, self._files.keep, checkpoint)
            # All that waits is taken in again, so that what was delivered can be left out.
            self._files.begin_anew(self._store.max_physical_offset, now_ms())

    def copy_metrics(self, content: bytes) -> None:
        """Takes how many messages wait at the master. Raises BodyError."""
        self._metrics.copy(content)

    def behind(self) -> TimerBehind:
        """How far it lags now."""
        due_ms = self._delivery.due_ms()
        not_taken_in = self._delivery.queue().max_offset - self._files.queue_offset if self._is_enabled else 0
        overdue_ms = 0 if due_ms is None else max(now_ms() - due_ms, 0)
        return TimerBehind(overdue_ms, not_taken_in, self._files.waiting)

    def waiting(self) -> dict[str, int]:
        """Messages that wait, by topic."""
        return self._metrics.counts()

    @property
    def skipped(self) -> int:
        """Messages that were lost since the start, since they can't be read or delivered."""
        return self._delivery.skipped

    def totals(self) -> Iterator[tuple[str, int]]:
        """Messages that went onto the wheel, and from there on, since the start."""
        yield "enqueue", self._delivery.taken_in
        yield "dequeue", self._delivery.delivered
