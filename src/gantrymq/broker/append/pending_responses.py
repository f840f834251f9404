"""Responses to sends that wait for the disk or for replicas (`CommitLog.GroupCommitService`, `GroupTransferService`).

- With SYNC_FLUSH, a response waits for the disk, at most `syncFlushTimeout`.
- On a SYNC_MASTER, it waits for `inSyncReplicas` - 1 slaves, at most `slaveTimeout`. In controller mode with
  `allAckInSyncStateSet`, it waits for all replicas in sync.

No response waits longer than `answer_within_ms` of the client's timeout. Otherwise the client would close the
connection and send the message again. The codes FLUSH_DISK_TIMEOUT and FLUSH_SLAVE_TIMEOUT mean: the message is stored,
but a power failure or the loss of this machine can still lose it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from functools import partial

from gantrymq.broker.append.late_responses import Answer, Answers, Caller, Waiting, answer_within_ms
from gantrymq.broker.append.slave_waits import SlaveWaits
from gantrymq.broker.append.wait_queues import WaitQueues
from gantrymq.broker.config import BrokerRole
from gantrymq.broker.context import BrokerContext
from gantrymq.broker.feature import Feature
from gantrymq.broker.replication import ALL_IN_SYNC_STATE_SET, Mode, Replication, not_enough, replicas_needed
from gantrymq.errors import RefusalReason, RequestRefused
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.connection import Connection
from gantrymq.store.config import SYNC_FLUSH
from gantrymq.store.message_writer import Sent

#: The conditions of a response: bits of `Waiting.missing`.
_DISK, _SLAVES = 1, 2
#: The timeout codes that a response to a send can have.
LATE = (ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT)
_DEPOSED = "service not available now: another broker has become master before the slaves had the message"


class PendingResponses(Feature):
    """The pending responses of one broker, at most `sendThreadPoolQueueCapacity`."""

    def __init__(self, context: BrokerContext, *, replication: Replication) -> None:
        self._config = context.config
        self._store = context.store
        self._capacity = context.config.send_thread_pool_queue_capacity
        self._loop = asyncio.get_running_loop()
        #: The responses that wait for the disk.
        self._waiting: WaitQueues[Waiting] = WaitQueues()
        self._slaves: SlaveWaits[Waiting] = SlaveWaits(self._replicated)
        self._replication = replication
        self._for_disk = context.config.store.flush_disk_type == SYNC_FLUSH
        self._replicas = 1
        #: Number of replicas in sync, and number of replicas that the NameServers list.
        self._in_sync = self._alive = 1
        #: Whether there are too few replicas (only in controller mode or with acting masters).
        self.lacks_replicas = False
        self._config_changed()
        self._expiring = context.jobs.repeating("answer sends that wait for disk or slaves for too long", self._expire)
        self.count = 0
        #: Set while no response is pending.
        self._idle = asyncio.Event()
        self._idle.set()
        context.events.config_changed.subscribe(self._config_changed)
        context.events.replica_acknowledged.subscribe(self._replica_acknowledged)

    def _config_changed(self) -> None:
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
                # Earlier messages still wait. They may require more replicas than the set has.
                replication = config.replication
                needs_all = config.enable_controller_mode and replication.all_ack_in_sync_state_set
                self._replicas = ALL_IN_SYNC_STATE_SET if needs_all else replication.in_sync_replicas

    def _replicated(self, count: int) -> int:
        """Returns the physical offset up to which `count` replicas have the log.

        Returns 0 if all replicas in sync must have the message, but too few are in sync.
        """
        return 0 if self.lacks_replicas and count == ALL_IN_SYNC_STATE_SET else self._replication.replicated(count)

    def check(self) -> None:
        """Raises RequestRefused if there are too few replicas for a message that must be replicated."""
        if self.lacks_replicas:
            raise not_enough()

    def in_sync_changed(self, count: int) -> None:
        """Sets the number of brokers in sync (controller mode). Sends responses that need no more brokers."""
        self._in_sync = count
        self._config_changed()
        self._replica_acknowledged()

    def replicas_changed(self, in_sync: int, alive: int) -> None:
        """Sets the number of replicas in sync and of live replicas, with acting masters."""
        if (in_sync, alive) != (self._in_sync, self._alive):
            self._in_sync, self._alive = in_sync, alive
            self._config_changed()

    async def become_master(self) -> None:
        self._config_changed()
        self._expiring.start()

    async def become_slave(self) -> None:
        """Rejects the responses that wait for slaves. A new master may lack the messages: clients send them again."""
        self._replicas, self.lacks_replicas = 1, False
        self.deposed()
        self._expiring.start()

    def deposed(self) -> None:
        """Rejects the responses that wait for slaves, so that clients send the messages again.

        Called when another broker is master, or probably is. The new master may have the messages nevertheless.
        """
        for waiting in self._slaves.all():
            if waiting.missing & _SLAVES:
                waiting.missing = 0
                waiting.is_unconfirmed = self._config.enable_controller_mode
                deposed = RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, _DEPOSED, RefusalReason.MAY_BE_STORED)
                self._give(waiting, deposed)

    async def stop(self) -> None:
        """Returns after all responses are sent, each after its flush or its timeout."""
        await self._idle.wait()
        self._expiring.cancel()

    @property
    def is_used(self) -> bool:
        """Whether responses may wait, or too few replicas may cause rejections. WAIT=false exempts a message."""
        config = self._config
        refuses = config.enable_slave_acting_master and config.broker_role is BrokerRole.SYNC_MASTER
        return self._for_disk or self._replicas != 1 or config.enable_controller_mode or refuses

    @property
    def response_codes_of_copies(self) -> Collection[ResponseCode]:
        """The timeout codes in responses to recalls, and to consumers that send a message back.

        In controller mode, this is FLUSH_SLAVE_TIMEOUT: another broker that lacks the stored copy may become master. In
        other modes, there are no such codes: while a slave is down, the client would repeat the request, and each
        attempt would store another copy.
        """
        return (ResponseCode.FLUSH_SLAVE_TIMEOUT,) if self._config.enable_controller_mode else ()

    @property
    def takes(self) -> bool:
        """Whether there are enough replicas, and capacity for more pending responses."""
        return not self.lacks_replicas and self.count < self._capacity

    def check_capacity(self) -> None:
        """Raises RequestRefused if the pending responses have reached the capacity."""
        if self.count >= self._capacity:
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
        late_codes: Collection[ResponseCode] = LATE,
        timeout_ms: int | None = None,
    ) -> None:
        """Sends a response after the log up to the physical offset `end` is flushed and replicated as configured.

        Args:
            connection: The client's connection.
            request: The request.
            end: Physical offset at the end of the record.
            reply: The response: a command, or an encoded frame.
            late_codes: After a timeout with one of these codes, the response has that code. After other timeouts, it is
                sent unchanged.
            timeout_ms: The client's timeout, if the request contains it.
        """
        # The message is stored. Its body is removed, because thousands of responses can be pending.
        self._wait(Answer(connection, request.without_content(), reply, late_codes), end, answer_within_ms(timeout_ms))

    def reply_all(self, connection: Connection, sent: Sent, end: int, within_ms: int) -> None:
        """As `reply`, for the responses to all requests of `sent`. They wait for at most `within_ms`."""
        self._wait(Answers(connection, sent), end, within_ms)

    async def until_safe(self, end: int) -> None:
        """Waits until the log up to `end` is flushed and replicated, or until the timeout.

        Raises RequestRefused if a flush fails or another broker is master. Raises StoreError if the store is closed.
        """
        caller = Caller()
        self._wait(caller, end, answer_within_ms(None))
        await caller.done

    def _wait(self, waiting: Waiting, end: int, within_ms: int) -> None:
        """Adds a response to the wait queues of its conditions. A response without conditions is sent at once."""
        now = self._loop.time()
        if self._for_disk:
            timeout_s = min(self._store.config.sync_flush_timeout_ms, within_ms) / 1000
            # Raises if the store is closed. The callback never runs within this call.
            self._store.when_flushed(end, partial(self._flushed, waiting))
            waiting.missing |= _DISK
            if self._waiting.add(waiting, now, timeout_s):
                self._expiring.wake(timeout_s)
        if self._replicas != 1 and not self._slaves.is_reached(end, self._replicas):
            timeout_s = min(self._config.replication.slave_timeout, within_ms) / 1000
            waiting.missing |= _SLAVES
            if self._slaves.add(waiting, end, self._replicas, now, timeout_s):
                self._expiring.wake(timeout_s)
            self._replication.log_grew()
        if not self.count:
            self._idle.clear()
        self.count += waiting.count
        if not waiting.missing:
            self._give(waiting)

    def _replica_acknowledged(self) -> None:
        """Sends the responses to messages that enough slaves have."""
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
            # The message is in the log: consumers may receive it, and the broker may have it after a restart.
            text = f"{type(error).__name__}: {error}"
            self._give(waiting, RequestRefused(ResponseCode.SYSTEM_ERROR, text, RefusalReason.MAY_BE_STORED))
        self._waiting.drop_while(_has_disk)

    def _settle(self, waiting: Waiting, what: int, code: ResponseCode = ResponseCode.SUCCESS) -> None:
        """Clears the condition `what`, which is met or has timed out. After a timeout, `code` is the timeout code."""
        if not waiting.missing & what:
            return
        waiting.missing &= ~what
        if code == ResponseCode.FLUSH_SLAVE_TIMEOUT:
            waiting.is_unconfirmed = self._config.enable_controller_mode
        if code != ResponseCode.SUCCESS and waiting.code != ResponseCode.FLUSH_SLAVE_TIMEOUT:
            # FLUSH_SLAVE_TIMEOUT takes precedence over FLUSH_DISK_TIMEOUT (`CommitLog.handleDiskFlushAndHA`).
            waiting.code = code
        if not waiting.missing:
            self._give(waiting)

    def _give(self, waiting: Waiting, error: Exception | None = None) -> None:
        """Sends a response, or `error` instead, and removes it from the count."""
        self.count -= waiting.count
        if not self.count:
            self._idle.set()
        waiting.give(error)

    def _expire(self) -> float | None:
        """Sends the responses whose timeout has ended. Returns the seconds to the next timeout."""
        now = self._loop.time()
        for waiting in self._waiting.late(now):
            self._settle(waiting, _DISK, ResponseCode.FLUSH_DISK_TIMEOUT)
        for waiting in self._slaves.late(now):
            self._settle(waiting, _SLAVES, ResponseCode.FLUSH_SLAVE_TIMEOUT)
        deadlines = [each for each in (self._waiting.next_deadline, self._slaves.next_deadline) if each is not None]
        return max(min(deadlines) - now, 0.0) if deadlines else None


def _has_disk(waiting: Waiting) -> bool:
    """Returns whether a response no longer waits for the disk."""
    return not waiting.missing & _DISK
