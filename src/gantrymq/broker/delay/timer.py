"""Timer: messages with a delivery time of their own, such as TIMER_DELIVER_MS (`TimerMessageStore`, `HookUtils`).

These timer messages wait in the topic rmq_sys_wheel_timer and then in the slots of the timer wheel. This module runs
the state machine in `timer_delivery`. It sleeps until the end of the next slot with messages. Without messages, it sets
no timer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from math import inf
from typing import NamedTuple

from gantrymq.background.jobs import Jobs
from gantrymq.broker.append import PREALLOCATION_RETRY_S, Appender
from gantrymq.broker.delay.timer_delivery import Step, TimerDelivery
from gantrymq.broker.delay.timer_message import slot_time
from gantrymq.broker.delay.timer_metrics import TimerMetrics
from gantrymq.broker.feature import Feature
from gantrymq.broker.log_flushed import log_flushed
from gantrymq.errors import RequestRefused, StoreBusy, StoreError
from gantrymq.metrics import Histogram
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

#: Time slice of the timer in one event-loop iteration, in seconds.
_SLICE_S = 0.005
#: Pause while the store can't be written, in seconds.
_BLOCKED_S = 0.5
#: Pause after an unexpected error, in seconds.
_AFTER_ERROR_S = 10.0
#: Longest sleep while a message waits, in seconds. It limits the delay after a change of the system clock.
_LONGEST_SLEEP_S = 2.0
#: Maximum number of recall messages in one slot, because all are in memory while the slot is delivered. Recall messages
#: that were stored before the start do not count. Java has no limit.
MAX_RECALLS_OF_SLOT = 100_000
#: Maximum time for which a stopping broker continues to deliver a partly delivered slot, in seconds.
_FINISH_S = 2.0


class TimerBehind(NamedTuple):
    """The lag of the timer.

    Attributes:
        overdue_ms: Time since the oldest slot with messages became due, in ms.
        not_taken_in: Number of messages in the timer topic that are not on the wheel yet.
        waiting: Number of messages on the wheel.
    """

    overdue_ms: int
    not_taken_in: int
    waiting: int


class Timer(Feature):
    """The timer messages of one broker."""

    def __init__(self, config: StoreConfig, appender: Appender, jobs: Jobs) -> None:
        self._config = config
        self._store = appender.store
        #: Later changes of the configuration have no effect, because the files are opened only at the start.
        self._is_enabled = config.timer_wheel_enable
        self.files = TimerStore(
            config.store_path_root_dir,
            config.timer_precision_ms,
            config.timer_roll_window_slot,
            config.mapped_file_size_timer_log,
        )
        self._metrics = TimerMetrics(config.config_directory / "timermetrics")
        self.delivery = TimerDelivery(self.files, appender, self._metrics, config.timer_precision_ms)
        self._loop = asyncio.get_running_loop()
        self._delivering = jobs.repeating("deliver timer messages", self._turn, after_error_s=_AFTER_ERROR_S)
        self._saved: asyncio.Future[None] | None = None
        self._flushing = jobs.repeating("flush the timer's files", self._flush)
        self._is_changed = False
        #: Slot -> number of its recall messages since the start.
        self._recalls: dict[int, int] = {}
        self._is_master = False
        #: True if the broker became a slave after its last delivery, so that its log is a copy of the master's.
        self._follows = False
        self._stands_in = False
        #: On a slave, the newest checkpoint of its master. If the slave was acting master, its own checkpoint.
        self._masters_checkpoint: bytes | None = None
        #: Number of times that the log has lost its end.
        self._cuts = 0
        self._store.replica.cut_listeners.append(self._log_was_cut)

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.GET_TIMER_CHECK_POINT: self.get_checkpoint,
            RequestCode.GET_TIMER_METRICS: self.get_metrics,
        }

    # -- lifecycle ----------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Recovers the files. Raises StoreError."""
        if self._is_enabled:
            self.files.open(self._store.max_physical_offset, now_ms())
            if not self.files.is_used:
                # The wheel and the counts are built from the timer topic.
                self._metrics.clear()
            elif not self._metrics.load():
                self.delivery.count_waiting(now_ms())

    async def become_master(self) -> None:
        """Starts the delivery at this broker's own progress or at its former master's progress. Raises StoreError."""
        self._is_master = True
        if self._is_enabled:
            if self._follows:
                self._follows = False
                self.files.reopen(self._store.max_physical_offset, now_ms())
                self._recalls.clear()
                self._metrics.clear()
            self.delivery.begin()
            self._delivering.start(0.0)
            self._flushing.start()
        self._masters_checkpoint = None

    async def stand_in(self) -> None:
        """Starts the delivery as `become_master` does. The master takes over the progress later (`take_over`)."""
        await self.become_master()
        self._stands_in = True

    async def become_slave(self) -> None:
        """Stops the delivery and empties the wheel: the log may lose messages that are on the wheel."""
        self._is_master, self._follows = False, True
        self._delivering.cancel()
        await self._flushing.stop()
        if self._saved is not None:
            await asyncio.wait([self._saved])
        if self._stands_in and self._is_enabled:
            # Keeps the progress for the next period as acting master, and for the master, which requests it.
            checkpoint = self.files.checkpoint(now_ms())
            self._masters_checkpoint = checkpoint.encode()
            await self._loop.run_in_executor(None, self.files.keep, checkpoint)
        self._stands_in = False
        if self._is_enabled and self.files.is_used:
            self.files.begin_anew(self._store.max_physical_offset, now_ms())

    async def stop(self) -> None:
        """Stops the delivery and flushes the files. `redirect` must not be called afterwards."""
        if not self._is_enabled:
            return
        if not self._is_master:
            self.files.close()
            return
        self._delivering.cancel()
        await self._flushing.stop()
        if self._saved is not None:
            # The thread that writes continues after the job is cancelled.
            await asyncio.wait([self._saved])
        try:
            await self._finish_slot()
            if self.files.is_used:
                await self._flush()
        finally:
            self.files.close()

    async def _finish_slot(self) -> None:
        """Continues a partly delivered slot for at most _FINISH_S. The next start reads an unfinished slot again."""
        end = self._loop.time() + _FINISH_S
        more = True
        try:
            while more and self.delivery.is_delivering and self._loop.time() < end:
                with self._store.waiting():
                    more = self._turn() == 0.0
                await asyncio.sleep(0)
        except (StoreError, OSError) as e:
            log.error("what is due isn't delivered before the stop: %s", e)

    # -- messages -----------------------------------------------------------------------------------------------

    def redirect(self, queue: ConsumeQueue, properties: bytes, tags_code: int) -> tuple[ConsumeQueue, bytes, int]:
        """Returns the queue, the properties and the tags code with which a message for `queue` waits.

        All three are unchanged if the message is due already. The caller must store the message in the same event-loop
        iteration.

        Raises:
            RequestRefused: The timer is off, the delivery time is invalid, or the slot has too many messages.
        """
        fields = decode_properties(properties)
        if names.TIMER_OUT_MS in fields:
            # The message has waited already (`HookUtils.checkIfTimerMessage`).
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
        return self.delivery.queue(), encode_properties(fields), tags_code

    def _check_congestion(self, slot_ms: int) -> None:
        """Rejects messages at random above the slot's limit, more of them in a fuller slot (`isReject`)."""
        limit = self._config.timer_congest_num_each_slot
        over = self.files.number_at(slot_ms) - limit
        if over > 0 and randomness.random() < over / limit:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"timer message is under flow control, max num limit is {2 * limit} or the current value is greater "
                f"than {limit} and less than {2 * limit}, trigger random flow control",
            )

    def _count_recall(self, slot_ms: int) -> None:
        """Counts a recall message. Raises RequestRefused if the slot has MAX_RECALLS_OF_SLOT already."""
        count = self._recalls.get(slot_ms, 0)
        if count >= MAX_RECALLS_OF_SLOT:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"timer message is under flow control, {count} messages of the same delivery time are recalled already",
            )
        self._recalls[slot_ms] = count + 1

    # -- the loop -----------------------------------------------------------------------------------------------

    def _turn(self) -> float:
        """Runs steps for at most _SLICE_S. Returns the seconds to the next run, inf if nothing waits."""
        end = self._loop.time() + _SLICE_S
        try:
            with self._store.ahead_of_wait_queue():
                while (step := self.delivery.step(now_ms())) is Step.MORE:
                    self._is_changed = True
                    if self._loop.time() >= end:
                        break
        except StoreBusy:
            step = Step.NOT_PREALLOCATED
        if self._is_changed:
            self._flushing.wake(self._config.timer_flush_interval_ms / 1000)
        if step is Step.MORE:
            return 0.0
        if step is Step.NOT_PREALLOCATED:
            return PREALLOCATION_RETRY_S
        if step is Step.BLOCKED:
            return _BLOCKED_S
        due_ms = self.delivery.due_ms()
        return inf if due_ms is None else min(max(due_ms - now_ms(), 0) / 1000, _LONGEST_SLEEP_S)

    # -- the disk -----------------------------------------------------------------------------------------------

    async def _flush(self) -> None:
        """Flushes the commit log, then the timer's files with a new checkpoint.

        Raises StoreError or OSError. Without a newer checkpoint, a power failure causes repeated deliveries.
        """
        self._is_changed = False
        now = now_ms()
        self._recalls = {slot_ms: count for slot_ms, count in self._recalls.items() if slot_ms >= now}
        checkpoint, metrics = self.files.checkpoint(now_ms()), self._metrics.encode()
        # The checkpoint counts messages as delivered, so the delivered copies must be on disk first.
        await log_flushed(self._store)
        self._saved = self._loop.run_in_executor(None, self._save, checkpoint, metrics)
        await asyncio.shield(self._saved)
        self.files.delete_before(self._store.min_physical_offset)

    def _save(self, checkpoint: TimerCheckpoint, metrics: bytes) -> None:
        self.files.flush(checkpoint)
        self._metrics.save(metrics)

    # -- metrics and progress -----------------------------------------------------------------------------------

    def get_checkpoint(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns the current checkpoint in the format of the file timercheck."""
        if not self._is_enabled:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "The checkpoint is null")
        return RemotingCommand.response(body=self._masters_checkpoint or self.files.checkpoint(now_ms()).encode())

    def get_metrics(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns the number of waiting messages of each topic."""
        if not self._is_enabled:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "The timer message store is null")
        return RemotingCommand.response(body=self._metrics.encode())

    async def copy_checkpoint(self, content: bytes) -> None:
        """Keeps the checkpoint of the master. Raises RecordError, or StoreError if it can't be written."""
        checkpoint = of_slave(content)
        self._masters_checkpoint = content
        if self._is_enabled:
            cuts = self._cuts
            await self._loop.run_in_executor(None, self.files.keep, checkpoint)
            if self._cuts > cuts:
                self._drop_checkpoint()

    def _log_was_cut(self) -> None:
        """Discards the checkpoint: it may count deliveries that the log has lost."""
        self._cuts += 1
        self._masters_checkpoint = None
        if self._is_enabled:
            self._drop_checkpoint()

    def _drop_checkpoint(self) -> None:
        """Replaces the checkpoint by an empty one if the log has a delivery journal, which is more exact."""
        try:
            if self.delivery.is_journaled():
                self.files.keep(TimerCheckpoint())
        except (StoreError, OSError) as e:
            log.error("timer messages that were cut off the log may not be delivered: %s", e)

    async def take_over(self, content: bytes) -> None:
        """Takes over a former acting master's progress, before delivery. Raises RecordError or StoreError."""
        checkpoint = of_slave(content)
        if self._is_enabled and checkpoint.read_time_ms > self.files.read_time_ms:
            await self._loop.run_in_executor(None, self.files.keep, checkpoint)
            # All waiting messages are added to the wheel again, except messages that are already delivered.
            self.files.begin_anew(self._store.max_physical_offset, now_ms())

    def copy_metrics(self, content: bytes) -> None:
        """Copies the master's number of waiting messages of each topic. Raises BodyError."""
        self._metrics.copy(content)

    def behind(self) -> TimerBehind:
        """Returns the current lag. It is 0 on a slave, which delivers no messages."""
        if not self._is_enabled or not self._is_master:
            return TimerBehind(0, 0, 0)
        due_ms = self.delivery.due_ms()
        not_taken_in = self.delivery.queue().max_offset - self.files.queue_offset
        overdue_ms = 0 if due_ms is None else max(now_ms() - due_ms, 0)
        return TimerBehind(overdue_ms, not_taken_in, self.files.waiting)

    def has_delivered_due(self) -> bool:
        """Returns True if no message that is due waits for its delivery. It is False on a slave."""
        behind = self.behind()
        return self._is_master and behind.overdue_ms == 0 and behind.not_taken_in == 0

    def waiting(self) -> dict[str, int]:
        """Returns the number of waiting messages by topic."""
        return self._metrics.counts()

    @property
    def skipped(self) -> int:
        """Number of messages skipped since the start, because they can't be read or delivered."""
        return self.delivery.skipped

    def totals(self) -> Iterator[tuple[str, int]]:
        """Yields two counters since the start: messages added to the wheel, and messages delivered."""
        yield "enqueue", self.delivery.total_enqueued
        yield "dequeue", self.delivery.total_dequeued

    @property
    def enqueued(self) -> Counter[str]:
        """Number of messages added to the wheel since the start, by topic, without deleted topics."""
        return self.delivery.enqueued

    @property
    def dequeued(self) -> Counter[str]:
        """Number of messages delivered since the start, by topic, without deleted topics."""
        return self.delivery.dequeued

    @property
    def delays_s(self) -> Mapping[str, Histogram]:
        """Time from birth to delivery time of the messages in `enqueued`, in seconds, by topic."""
        return self.delivery.delays_s

    def topics_deleted(self, topics: Collection[str]) -> None:
        """Removes the counters of deleted topics."""
        self.delivery.topics_deleted(topics)

    def enqueue_latency_ms(self) -> int:
        """Returns the age of the oldest timer message that is not on the wheel yet, in ms. It is 0 on a slave."""
        if not self._is_enabled or not self._is_master:
            return 0
        offset, queue = self.files.queue_offset, self.delivery.queue()
        stored_ms = self._store.store_time(queue, offset) if offset < queue.max_offset else 0
        return max(now_ms() - stored_ms, 0) if stored_ms > 0 else 0

    def number_due(self, start_ms: int, end_ms: int) -> int:
        """Returns the number of waiting messages that are due between two times, in ms."""
        return self.files.number_due(start_ms, end_ms)
