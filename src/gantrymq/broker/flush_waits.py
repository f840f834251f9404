"""Answers to sends that wait until the message is as safe as is promised: on the disk, at other replicas, or both.

With SYNC_FLUSH they wait for the disk, at most syncFlushTimeout; on a SYNC_MASTER for inSyncReplicas - 1 slaves, or in
controller mode with allAckInSyncStateSet for all that are in sync, at most slaveTimeout. Neither takes longer than
`answer_within_ms` of the client's timeout: the client would else close the connection and send the message again.
FLUSH_DISK_TIMEOUT and FLUSH_SLAVE_TIMEOUT say that the message is stored, but may not outlive a power failure, or this
machine (`CommitLog.GroupCommitService`, `GroupTransferService`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial

from gantrymq.background.jobs import Jobs
from gantrymq.broker.config import BrokerConfig, BrokerRole
from gantrymq.broker.late_answers import Answer, Answers, Caller, Waiting, answer_within_ms
from gantrymq.broker.part import Part
from gantrymq.broker.replication.promises import ALL_IN_SYNC_STATE_SET, Mode, not_enough, replicas_needed
from gantrymq.broker.replication.slave_waits import SlaveWaits
from gantrymq.broker.wait_queues import WaitQueues
from gantrymq.errors import RefusalReason, RequestRefused
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.connection import Connection
from gantrymq.store.config import SYNC_FLUSH
from gantrymq.store.message_store import MessageStore

#: What is waited for.
_DISK, _SLAVES = 1, 2
#: What sends are told.
LATE = (ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT)
_DEPOSED = "service not available now: another broker has become master before the slaves had the message"


class FlushWaits(Part):
    """The answers of one broker, sendThreadPoolQueueCapacity at most.

    `replicated(count)` is the physical offset up to which `count` replicas have the log; `log_grew` is called when
    somebody waits for slaves, who are to be sent what is new.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        jobs: Jobs,
        replicated: Callable[[int], int],
        log_grew: Callable[[], None],
    ) -> None:
        self._config = config
        self._store = store
        self._capacity = config.send_thread_pool_queue_capacity
        self._loop = asyncio.get_running_loop()
        #: The responses that wait for the disk.
        self._waiting: WaitQueues[Waiting] = WaitQueues()
        self._slaves: SlaveWaits[Waiting] = SlaveWaits(self._replicated)
        self._reached = replicated
        self._log_grew = log_grew
        self._for_disk = config.store.flush_disk_type == SYNC_FLUSH
        self._replicas = 1
        #: How many are in sync and how many NameServers know, in controller mode and with acting masters; too few.
        self._in_sync = self._alive = 1
        self.lacks_replicas = False
        self.config_changed()
        self._expiring = jobs.repeating("answer sends that wait for disk or slaves for too long", self._expire)
        #: How many answers wait, and done when nobody does any more.
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def config_changed(self) -> None:
        config = self._config
        mode = Mode.PLAIN
        if config.enable_controller_mode:
            mode = Mode.CONTROLLER
        elif config.enable_slave_acting_master:
            mode = Mode.ACTING_MASTER
        self._replicas, self.lacks_replicas = 1, False
        if config.broker_role is BrokerRole.SYNC_MASTER:
            try:
                self._replicas = replicas_needed(config.replication, mode, self._in_sync, self._alive)
            except RequestRefused:
                self.lacks_replicas = True
                # What was taken before waits on: the set may have become smaller than was promised.
                replication = config.replication
                needs_all = config.enable_controller_mode and replication.all_ack_in_sync_state_set
                self._replicas = ALL_IN_SYNC_STATE_SET if needs_all else replication.in_sync_replicas

    def _replicated(self, count: int) -> int:
        """The physical offset up to which as many replicas have the log as must; all in sync may be too few."""
        return 0 if self.lacks_replicas and count == ALL_IN_SYNC_STATE_SET else self._reached(count)

    def check(self) -> None:
        """Raises RequestRefused when there are too few replicas for what its sender waits for."""
        if self.lacks_replicas:
            raise not_enough()

    def in_sync_changed(self, count: int) -> None:
        """In controller mode, how many brokers are in sync: who waits may have waited for one that isn't any more."""
        self._in_sync = count
        self.config_changed()
        self.acknowledged()

    def replicas_changed(self, in_sync: int, alive: int) -> None:
        """With acting masters, how many replicas are in sync, and how many NameServers know."""
        if (in_sync, alive) != (self._in_sync, self._alive):
            self._in_sync, self._alive = in_sync, alive
            self.config_changed()

    async def become_master(self) -> None:
        self.config_changed()
        self._expiring.start()

    async def become_slave(self) -> None:
        """A slave has no message of its own: what still waits for slaves may be cut off, and is to be sent again."""
        self._replicas, self.lacks_replicas = 1, False
        self.deposed()
        self._expiring.start()

    def deposed(self) -> None:
        """Another broker is master, or probably is: refuses what still waits for slaves, so that it is sent again.

        The new master may have it all the same.
        """
        for waiting in self._slaves.all():
            if waiting.missing & _SLAVES:
                waiting.missing = 0
                waiting.is_unconfirmed = self._config.enable_controller_mode
                deposed = RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, _DEPOSED, RefusalReason.MAY_BE_STORED)
                self._give(waiting, deposed)

    async def stop(self) -> None:
        """Waits until all are answered: what is stored is flushed now, or the time of each is up."""
        await self._idle.wait()
        self._expiring.cancel()

    @property
    def is_used(self) -> bool:
        """Whether messages are waited for that don't say they needn't be."""
        config = self._config
        refuses = config.enable_slave_acting_master and config.broker_role is BrokerRole.SYNC_MASTER
        return self._for_disk or self._replicas != 1 or config.enable_controller_mode or refuses

    @property
    def told_of_copies(self) -> Collection[ResponseCode]:
        """What those are told who forget a message, because the broker stores it again, or something about it.

        In controller mode that slaves are late: another one may become master, and cut it off. Without a controller
        they couldn't do anything about a slave that is gone but have copy upon copy stored.
        """
        return (ResponseCode.FLUSH_SLAVE_TIMEOUT,) if self._config.enable_controller_mode else ()

    @property
    def takes(self) -> bool:
        """Whether there are enough replicas, and room for more who wait."""
        return not self.lacks_replicas and self._count < self._capacity

    def check_room(self) -> None:
        """Raises RequestRefused when disk or slaves are so far behind that no more messages should be taken."""
        if self._count >= self._capacity:
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                "[REJECTREQUEST]system busy, start flow control for a while: disk or slaves are behind",
            )

    def reply(
        self,
        connection: Connection,
        request: RemotingCommand,
        end: int,
        reply: RemotingCommand | tuple[bytes],
        *,
        told: Collection[ResponseCode] = LATE,
        timeout_ms: int | None = None,
    ) -> None:
        """Gives the answer (a command or an encoded frame) when the log up to `end` is as safe as is promised.

        When that takes too long its code says so if it is one that is `told`, and else it is given as it is.
        `timeout_ms` is for how long the client waits, if the request says so.
        """
        # Its message is stored: thousands that wait mustn't keep theirs in memory.
        self._wait(Answer(connection, request.without_content(), reply, told), end, answer_within_ms(timeout_ms))

    def reply_all(self, connection: Connection, answers: bytes, count: int, end: int, within_ms: int) -> None:
        """As `reply`, for so many answers of one connection, encoded, which wait for `within_ms` at most."""
        self._wait(Answers(connection, answers, count), end, within_ms)

    async def until_safe(self, end: int) -> None:
        """Returns when the log up to `end` is as safe as is promised, or the time for that is up. Raises StoreError."""
        caller = Caller()
        self._wait(caller, end, answer_within_ms(None))
        await caller.done

    def _wait(self, waiting: Waiting, end: int, within_ms: int) -> None:
        now = self._loop.time()
        if self._for_disk:
            timeout_s = min(self._store.config.sync_flush_timeout_ms, within_ms) / 1000
            # It raises when the store is closed; the answer comes in a later turn.
            self._store.when_flushed(end, partial(self._flushed, waiting))
            waiting.missing |= _DISK
            if self._waiting.add(waiting, now, timeout_s):
                self._expiring.wake(timeout_s)
        if self._replicas != 1 and not self._slaves.is_reached(end, self._replicas):
            timeout_s = min(self._config.replication.slave_timeout, within_ms) / 1000
            waiting.missing |= _SLAVES
            if self._slaves.add(waiting, end, self._replicas, now, timeout_s):
                self._expiring.wake(timeout_s)
            self._log_grew()
        if not self._count:
            self._idle.clear()
        self._count += waiting.count
        if not waiting.missing:
            self._give(waiting)

    def acknowledged(self) -> None:
        """Slaves have more of the log: all whose messages enough of them have by now are answered."""
        for waiting in self._slaves.reached():
            self._settle(waiting, _SLAVES)

    def _flushed(self, waiting: Waiting, error: Exception | None) -> None:
        # Called in the flusher's thread.
        self._loop.call_soon_threadsafe(self._answer, waiting, error)

    def _answer(self, waiting: Waiting, error: Exception | None) -> None:
        if error is None:
            self._settle(waiting, _DISK)
        elif waiting.missing & _DISK:
            waiting.missing = 0
            self._give(waiting, error)
        for _ in self._waiting.take_while(_has_disk):
            pass

    def _settle(self, waiting: Waiting, what: int, code: ResponseCode = ResponseCode.SUCCESS) -> None:
        """One thing that it waited for is there, or too late, which `code` says."""
        if not waiting.missing & what:
            return
        waiting.missing &= ~what
        if code == ResponseCode.FLUSH_SLAVE_TIMEOUT:
            waiting.is_unconfirmed = self._config.enable_controller_mode
        if code != ResponseCode.SUCCESS and waiting.code != ResponseCode.FLUSH_SLAVE_TIMEOUT:
            # That of the slaves hides that of the disk (`CommitLog.handleDiskFlushAndHA`).
            waiting.code = code
        if not waiting.missing:
            self._give(waiting)

    def _give(self, waiting: Waiting, error: Exception | None = None) -> None:
        self._count -= waiting.count
        if not self._count:
            self._idle.set()
        waiting.give(error)

    def _expire(self) -> float | None:
        now = self._loop.time()
        for waiting in self._waiting.late(now):
            self._settle(waiting, _DISK, ResponseCode.FLUSH_DISK_TIMEOUT)
        for waiting in self._slaves.late(now):
            self._settle(waiting, _SLAVES, ResponseCode.FLUSH_SLAVE_TIMEOUT)
        deadlines = [each for each in (self._waiting.next_deadline, self._slaves.next_deadline) if each is not None]
        return max(min(deadlines) - now, 0.0) if deadlines else None


def _has_disk(waiting: Waiting) -> bool:
    """It waits for the disk no more."""
    return not waiting.missing & _DISK
