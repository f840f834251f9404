"""POP as one part of the broker: puts its pieces together and gives them their time.

A consumer's message goes through `pop` and waits in `buffer` (or `orderly`) for its acknowledgement, `ack`.
What takes longer goes by `revive_log` and the timer to the revive topic, and comes back by `revive`. Who finds
nothing waits in `waiting`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from pathlib import Path

from gantrymq.background.jobs import Jobs
from gantrymq.broker.appender import ROOM_S, Appender
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.consumer_offsets import ConsumerOffsets
from gantrymq.broker.deliveries import Deliveries
from gantrymq.broker.long_polling import LongPolling
from gantrymq.broker.message_filter import MessageFilters
from gantrymq.broker.part import Part
from gantrymq.broker.pop.ack import PopAcks
from gantrymq.broker.pop.buffer import PopBuffer
from gantrymq.broker.pop.handing_out import HandingOut
from gantrymq.broker.pop.notification import PopNotifications
from gantrymq.broker.pop.orderly import OrderlyPops
from gantrymq.broker.pop.pop import Popping
from gantrymq.broker.pop.queues import PopQueues
from gantrymq.broker.pop.revive import PopRevive
from gantrymq.broker.pop.revive_log import Delay, ReviveLog
from gantrymq.broker.pop.waiting import PopWaiting
from gantrymq.broker.retry import RetryTopics
from gantrymq.broker.room_waits import RoomWaits
from gantrymq.broker.saving import Saving
from gantrymq.broker.subscription_groups import SubscriptionGroupTable
from gantrymq.broker.topics import REVIVE_QUEUE_NUMS, BrokerTopics
from gantrymq.errors import GantryError, StoreBusy
from gantrymq.protocol.bodies.pop import Checkpoint
from gantrymq.protocol.record import Record
from gantrymq.remoting.connection import Connection, RequestHandler
from gantrymq.remoting.long_requests import LongRequests
from gantrymq.system.clock import now_ms

log = logging.getLogger(__name__)

#: How often the buffer and the revive log are looked at, s (`reviveInterval`).
_TICK_S = 1.0
#: Checkpoints that leave the buffer before the loop gets its turn.
_EXPIRE_BATCH = 256
#: Later than every checkpoint has to leave the buffer, ms.
_EVER = 1 << 62


class PopService(Part):
    """The pops of one broker; `delay` is the timer's `redirect`."""

    def __init__(
        self,
        config: BrokerConfig,
        path: Path,
        appender: Appender,
        polling: LongPolling,
        topics: BrokerTopics,
        groups: SubscriptionGroupTable,
        offsets: ConsumerOffsets,
        filters: MessageFilters,
        retry: RetryTopics,
        delay: Delay,
        deliveries: Deliveries,
        jobs: Jobs,
        *,
        saving: Saving,
        long_requests: LongRequests,
        room_waits: RoomWaits,
    ) -> None:
        self._config = config
        self._log = revive_log = ReviveLog(appender, config.broker_cluster_name, REVIVE_QUEUE_NUMS, delay)
        self._revive_topic = revive_log.topic
        self.buffer = PopBuffer(
            offsets,
            self._write_down,
            stay_ms=config.pop_ck_stay_buffer_time,
            leave_before_ms=config.pop_ck_stay_buffer_time_out,
            max_size=config.pop_ck_max_buffer_size,
        )
        limits = {"line_limit": config.pop_polling_size, "limit": config.max_pop_polling_size}
        self.waiting = PopWaiting("pops", polling, jobs, **limits)
        self.waiting_notifications = PopWaiting("notifications", polling, jobs, **limits)
        self._store = appender.store
        self.queues = PopQueues(config, appender.store, topics, groups, offsets, self.buffer)
        self._orderly = OrderlyPops(path, self.queues.exists, saving=saving)
        handing_out = HandingOut(
            config,
            appender.store,
            offsets,
            self.queues,
            self.buffer,
            self._orderly,
            deliveries,
            REVIVE_QUEUE_NUMS,
        )
        popping = Popping(
            config,
            self.queues,
            filters,
            handing_out,
            self._orderly,
            self.waiting,
            revive_log,
            long_requests=long_requests,
            room_waits=room_waits,
        )
        acks = PopAcks(
            config,
            offsets,
            self.queues,
            self.buffer,
            revive_log,
            self._orderly,
            self._order_changed,
            long_requests,
        )
        notifications = PopNotifications(self.queues, self._orderly, self.waiting_notifications, self.waiting)
        self._handlers = {**popping.handlers(), **acks.handlers(), **notifications.handlers()}
        self._revive = PopRevive(
            revive_log,
            appender,
            topics,
            groups,
            offsets,
            retry,
            config,
        )
        self._expiring = jobs.repeating("write down what is popped", self._expire, _TICK_S)
        self._reviving = jobs.repeating("bring back what wasn't acknowledged", self._bring_back, _TICK_S)

    def config_changed(self) -> None:
        config = self._config
        self.buffer.set_limits(
            stay_ms=config.pop_ck_stay_buffer_time,
            leave_before_ms=config.pop_ck_stay_buffer_time_out,
            max_size=config.pop_ck_max_buffer_size,
        )
        for waiting in (self.waiting, self.waiting_notifications):
            waiting.set_limits(line_limit=config.pop_polling_size, limit=config.max_pop_polling_size)

    def handlers(self) -> dict[int, RequestHandler]:
        return self._handlers

    def load(self) -> None:
        self._orderly.load()

    async def start(self) -> None:
        await self.waiting.start()
        await self.waiting_notifications.start()

    async def become_master(self) -> None:
        self._begin()

    async def stand_in(self) -> None:
        """What the master has handed out comes back; what is handed out here is noted in memory alone."""
        self.buffer.keeps_all = True
        self._log.keeper = self._revive.acknowledged
        self._begin()

    def _begin(self) -> None:
        self._revive.start()
        self._expiring.start()
        self._reviving.start()
        for waiting in (self.waiting, self.waiting_notifications):
            waiting.admit()

    async def become_slave(self) -> None:
        """Nothing is popped here, and nothing comes back: the master hands out again what is in memory."""
        self._expiring.cancel()
        self._reviving.cancel()
        for waiting in (self.waiting, self.waiting_notifications):
            await waiting.dismiss()
        self.buffer.forget()
        self.buffer.keeps_all = False
        self._log.keeper = None

    def offsets_reset(self, topic: str, group: str, queue_ids: Collection[int]) -> None:
        """Discards the in-flight messages of a group in queues whose offsets were reset.

        Checkpoints in the revive log are discarded later, when they are read: see `ConsumerOffsets.is_old_pop`.
        """
        self.buffer.discard({(topic, group, queue_id) for queue_id in queue_ids})
        self._orderly.discard(topic, group, queue_ids)
        for waiting in (self.waiting, self.waiting_notifications):
            for line in (-1, *queue_ids):
                if waiting.count((topic, group, line)):
                    waiting.wake((topic, group, line))

    def topics_deleted(self, topics: Collection[str]) -> None:
        """Discards the in-flight messages of deleted topics."""
        self.buffer.discard_topics(topics)
        self._orderly.discard_topics(topics)

    def connection_closed(self, connection: Connection) -> None:
        self.waiting.connection_closed(connection)
        self.waiting_notifications.connection_closed(connection)

    def bring_back_now(self, note: Record) -> None:
        """Brings back what a note that is due for the revive log says; see `PopRevive`."""
        self._revive.bring_back_now(note)

    @property
    def revive_topic(self) -> str:
        """Where notes about pops go when they are due."""
        return self._revive_topic

    @property
    def skipped(self) -> int:
        """Records and messages that were lost since the start, since they can't be read or brought back."""
        return self._revive.skipped

    def revive_lags(self) -> list[int]:
        """By revive queue, how many of its records aren't read yet."""
        return self._revive.lags()

    async def stop(self) -> None:
        """Answers who waits and writes all that is handed out to the log: the timer must still be there."""
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
            log.error("%d pops are forgotten, their messages come again: %s", len(self.buffer), e)

    def _order_changed(self, topic: str, group: str, queue_id: int) -> None:
        """An orderly queue is free, or will be at another time than those know who wait for it."""
        for waiting in (self.waiting, self.waiting_notifications):
            for line in (-1, queue_id):
                waiting.wake((topic, group, line))

    def _write_down(self, checkpoint: Checkpoint, revive_queue_id: int) -> None:
        """A checkpoint leaves the buffer. Raises GantryError or OSError; it is tried again."""
        if self.buffer.keeps_all:
            self._revive.bring_back(checkpoint)
        else:
            self._log.put_checkpoint(checkpoint, revive_queue_id)

    def _expire(self) -> float:
        try:
            with self._store.ahead_of_line():
                return 0.0 if self.buffer.expire(now_ms(), _EXPIRE_BATCH) else _TICK_S
        except StoreBusy:
            return ROOM_S

    def _bring_back(self) -> float:
        try:
            with self._store.ahead_of_line():
                return 0.0 if self._revive.turn() else _TICK_S
        except StoreBusy:
            return ROOM_S
