"""The POP feature of the broker: creates its parts and runs their background jobs.

- `processor` handles pop requests and `dispatcher` selects the messages. Without messages, `long_polling` holds the
  request.
- `buffer`, or `orderly` for pops in order, stores the in-flight messages. `ack` handles acknowledgements.
- `revive_log` stores longer pops. The timer delivers them to the revive topic.
- `revive` reads the revive topic and redelivers unacknowledged messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from gantrymq.broker.append import PREALLOCATION_RETRY_S, Appender, PreallocationWaits
from gantrymq.broker.config import BrokerRole
from gantrymq.broker.context import BrokerContext
from gantrymq.broker.feature import Feature
from gantrymq.broker.pop.ack import PopAcks
from gantrymq.broker.pop.buffer import PopBuffer
from gantrymq.broker.pop.dispatcher import PopDispatcher
from gantrymq.broker.pop.long_polling import PopLongPolling
from gantrymq.broker.pop.notification import PopNotifications
from gantrymq.broker.pop.orderly import OrderlyPops
from gantrymq.broker.pop.processor import PopProcessor
from gantrymq.broker.pop.queues import PopQueues
from gantrymq.broker.pop.revive import PopRevive
from gantrymq.broker.pop.revive_counts import ReviveCounts
from gantrymq.broker.pop.revive_log import LogTimer, ReviveLog
from gantrymq.broker.pull import LongPolling
from gantrymq.broker.send import RetryTopics
from gantrymq.broker.tables import REVIVE_QUEUE_NUMS
from gantrymq.errors import GantryError, StoreBusy
from gantrymq.protocol.bodies.pop import Checkpoint
from gantrymq.protocol.record import Record
from gantrymq.remoting.connection import RequestHandler
from gantrymq.system.clock import now_ms

log = logging.getLogger(__name__)

#: Interval of the background jobs for the buffer and the revive log, in seconds (`reviveInterval`).
_TICK_S = 1.0
#: Interval while a checkpoint is overdue, because the retry topic is not on disk yet or the timer is late, in seconds.
_OVERDUE_S = 0.1
#: Maximum number of checkpoints that leave the buffer in one event-loop iteration.
_EXPIRE_BATCH = 256
#: A time that is later than the expiry of every checkpoint in the buffer, in ms.
_EVER = 1 << 62


class PopService(Feature):
    """Runs POP on one broker.

    Attributes:
        acks: Handles acknowledgements. It is a feature of its own, because lite topics have other acknowledgements.
    """

    def __init__(
        self,
        context: BrokerContext,
        *,
        appender: Appender,
        polling: LongPolling,
        retry: RetryTopics,
        timer: LogTimer,
        preallocation_waits: PreallocationWaits,
    ) -> None:
        config, jobs = context.config, context.jobs
        self._config = config
        self._log = revive_log = ReviveLog(appender, config.broker_cluster_name, REVIVE_QUEUE_NUMS, timer)
        self._revive_topic = revive_log.topic
        self.buffer = PopBuffer(
            context.offsets,
            self._write_down,
            stay_ms=config.pop_ck_stay_buffer_time,
            leave_before_ms=config.pop_ck_stay_buffer_time_out,
            max_size=config.pop_ck_max_buffer_size,
        )
        limits = {"queue_limit": config.pop_polling_size, "limit": config.max_pop_polling_size}
        self.waiting = PopLongPolling("pops", polling, jobs, **limits)
        self.waiting_notifications = PopLongPolling("notifications", polling, jobs, **limits)
        self._store = appender.store
        self.queues = PopQueues(context, self.buffer)
        self.orderly = OrderlyPops(
            config.store.config_directory / "consumerOrderInfo.json",
            self.queues.exists,
            persistence=context.persistence,
        )
        dispatcher = PopDispatcher(
            context,
            queues=self.queues,
            buffer=self.buffer,
            orderly=self.orderly,
            revive_queue_nums=REVIVE_QUEUE_NUMS,
        )
        popping = PopProcessor(
            context,
            queues=self.queues,
            dispatcher=dispatcher,
            orderly=self.orderly,
            waiting=self.waiting,
            revive_log=revive_log,
            preallocation_waits=preallocation_waits,
        )
        self.acks = PopAcks(
            context,
            queues=self.queues,
            buffer=self.buffer,
            revive_log=revive_log,
            orderly=self.orderly,
            wake=self._order_changed,
        )
        notifications = PopNotifications(self.queues, self.orderly, self.waiting_notifications, self.waiting)
        self._handlers = {**popping.handlers(), **notifications.handlers()}
        self._revive = PopRevive(context, revive_log=revive_log, appender=appender, retry=retry)
        #: True if another broker may be master.
        self._is_doubted = False
        self._expiring = jobs.repeating("write down what is popped", self._expire, _TICK_S)
        self._reviving = jobs.repeating("revive unacknowledged messages", self._revive_due, _TICK_S)
        events = context.events
        events.config_changed.subscribe(self._config_changed)
        events.mastership_doubted.subscribe(self._mastership_doubted)
        events.topics_deleted.subscribe(lambda names, queues: self._topics_deleted(names))
        events.offsets_reset.subscribe(lambda topic, group, offsets: self._offsets_reset(topic, group, offsets.keys()))
        for waiting in (self.waiting, self.waiting_notifications):
            events.connection_closed.subscribe(waiting.connection_closed)

    def _config_changed(self) -> None:
        config = self._config
        self.buffer.set_limits(
            stay_ms=config.pop_ck_stay_buffer_time,
            leave_before_ms=config.pop_ck_stay_buffer_time_out,
            max_size=config.pop_ck_max_buffer_size,
        )
        for waiting in (self.waiting, self.waiting_notifications):
            waiting.set_limits(queue_limit=config.pop_polling_size, limit=config.max_pop_polling_size)

    def handlers(self) -> dict[int, RequestHandler]:
        return self._handlers

    def load(self) -> None:
        self.orderly.load()

    async def start(self) -> None:
        await self.waiting.start()
        await self.waiting_notifications.start()

    async def become_master(self) -> None:
        self._begin()

    async def stand_in(self) -> None:
        """Starts as acting master: revives the master's pops. Checkpoints of new pops stay in memory."""
        self.buffer.keep_all(True)
        self._log.keep_acks_by(self._revive.acknowledged)
        self._begin()

    def _begin(self) -> None:
        self._revive.start()
        self._expiring.start()
        self._reviving.start()
        # While the broker becomes master, another broker may already have replaced it.
        if not self._is_doubted:
            for waiting in (self.waiting, self.waiting_notifications):
                waiting.admit()

    async def become_slave(self) -> None:
        """Stops pops and redelivery. The pops in the buffer are dropped: the master pops their messages again."""
        self._expiring.cancel()
        self._reviving.cancel()
        for waiting in (self.waiting, self.waiting_notifications):
            await waiting.dismiss()
        self._revive.stop()
        self.buffer.forget()
        self.buffer.keep_all(False)
        self._log.keep_acks_by(None)

    def _mastership_doubted(self, is_doubted: bool) -> None:
        """Ends long polls while another broker may be master. Clients poll again, and get errors during this time."""
        self._is_doubted = is_doubted
        for waiting in (self.waiting, self.waiting_notifications):
            if is_doubted:
                waiting.dismiss_soon()
            elif self._config.broker_role is not BrokerRole.SLAVE:
                waiting.admit()

    def _offsets_reset(self, topic: str, group: str, queue_ids: Collection[int]) -> None:
        """Discards the in-flight messages of a group in queues whose offsets were reset.

        Checkpoints in the revive log are discarded later, when they are read: see `ConsumerOffsets.is_old_pop`.
        """
        self.buffer.discard({(topic, group, queue_id) for queue_id in queue_ids})
        self.orderly.discard(topic, group, queue_ids)
        for waiting in (self.waiting, self.waiting_notifications):
            for line in (-1, *queue_ids):
                if waiting.count((topic, group, line)):
                    waiting.wake((topic, group, line))

    def _topics_deleted(self, topics: Collection[str]) -> None:
        """Discards the in-flight messages and the counters of deleted topics."""
        self.buffer.discard_topics(topics)
        self.orderly.discard_topics(topics)
        self._log.counts.topics_deleted(topics)

    def revive_now(self, note: Record) -> None:
        """Redelivers the messages of a checkpoint record that is due for the revive log; see `PopRevive`."""
        self._revive.revive_now(note)

    @property
    def revive_topic(self) -> str:
        """The topic to which the timer delivers checkpoints and acknowledgements when they are due."""
        return self._revive_topic

    @property
    def skipped(self) -> int:
        """The number of records and messages since the start that could not be read or redelivered."""
        return self._revive.skipped

    def revive_lags(self) -> list[int]:
        """Returns the lag of each revive queue: its number of unread records. [] on a slave."""
        return self._revive.lags()

    def revive_latencies_ms(self) -> list[int]:
        """Returns the age of the oldest unread record of each revive queue, in ms. [] on a slave."""
        return self._revive.latencies_ms()

    @property
    def revive_counts(self) -> ReviveCounts:
        """Counters of the revive log since the start."""
        return self._log.counts

    async def stop(self) -> None:
        """Ends the pending long polls and writes all checkpoints to the revive log. The timer must still run."""
        await self.waiting.stop()
        await self.waiting_notifications.stop()
        self._expiring.cancel()
        self._reviving.cancel()
        if self.buffer.keeps_all:
            self.buffer.forget()
        try:
            more = True
            while more:
                more = self.buffer.expire(_EVER, _EXPIRE_BATCH)
                await asyncio.sleep(0)
        except GantryError as e:
            log.error("%d pops are discarded, their messages are redelivered: %s", len(self.buffer), e)

    def _order_changed(self, topic: str, group: str, queue_id: int) -> None:
        """Wakes the long polls of an orderly queue, which is unblocked or has another unblock time."""
        for waiting in (self.waiting, self.waiting_notifications):
            for line in (-1, queue_id):
                waiting.wake((topic, group, line))

    def _write_down(self, checkpoint: Checkpoint, revive_queue_id: int) -> None:
        """Writes a checkpoint from the buffer to the revive log. On an acting master, redelivers its messages instead.

        Raises GantryError or OSError. The buffer then calls this function again.
        """
        if self.buffer.keeps_all:
            self._revive.revive(checkpoint)
        else:
            self._log.put_checkpoint(checkpoint, revive_queue_id)

    def _expire(self) -> float:
        try:
            with self._store.ahead_of_wait_queue():
                return 0.0 if self.buffer.expire(now_ms(), _EXPIRE_BATCH) else _TICK_S
        except StoreBusy:
            return PREALLOCATION_RETRY_S

    def _revive_due(self) -> float:
        try:
            with self._store.ahead_of_wait_queue():
                if self._revive.turn():
                    return 0.0
        except StoreBusy:
            return PREALLOCATION_RETRY_S
        due_ms = self._revive.next_due_ms()
        if due_ms is None:
            return _TICK_S
        return min(max((due_ms - now_ms()) / 1000, _OVERDUE_S), _TICK_S)
