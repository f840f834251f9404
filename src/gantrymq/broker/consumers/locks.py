"""Queue locks for consumers in order: LOCK_BATCH_MQ and UNLOCK_BATCH_MQ (`RebalanceLockManager`).

A lock gives one client of a group the right to consume a queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from gantrymq.broker.context import BrokerContext
from gantrymq.broker.feature import Feature
from gantrymq.protocol.bodies.offset import QueueLockAnswer, QueueLockRequest
from gantrymq.protocol.bodies.queue_map import QueueObject
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_request_json, encode_json
from gantrymq.remoting.connection import Connection, Reply, RequestHandler

#: Lifetime of a lock without renewal, in seconds (rocketmq.broker.rebalance.lockMaxLiveTime). Clients renew their locks
#: every 20 s.
LOCK_LIFE_S = 60.0
#: Interval of the removal of expired locks, in seconds.
_LOOK_S = 10.0


@dataclass(slots=True)
class _Lock:
    client_id: str
    renewed: float


class QueueLocks:
    """Stores the locks by group and (topic, queue id). The caller passes the current time, in seconds."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[tuple[str, int], _Lock]] = {}

    def lock(self, group: str, topic: str, queue_id: int, client_id: str, now: float) -> bool:
        """Acquires or renews a lock. Returns False while another client has it."""
        locks = self._groups.setdefault(group, {})
        held = locks.get((topic, queue_id))
        if held is not None and held.client_id != client_id and now - held.renewed <= LOCK_LIFE_S:
            return False
        locks[topic, queue_id] = _Lock(client_id, now)
        return True

    def unlock(self, group: str, topic: str, queue_id: int, client_id: str) -> None:
        """Releases a lock, if this client has it."""
        locks = self._groups.get(group, {})
        held = locks.get((topic, queue_id))
        if held is not None and held.client_id == client_id:
            del locks[topic, queue_id]
            if not locks:
                del self._groups[group]

    def expire(self, now: float) -> None:
        """Removes the locks that were not renewed within LOCK_LIFE_S."""
        for group, locks in list(self._groups.items()):
            for queue in [queue for queue, lock in locks.items() if now - lock.renewed > LOCK_LIFE_S]:
                del locks[queue]
            if not locks:
                del self._groups[group]

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))


class LockRequests(Feature):
    """Handles the lock requests of one broker. Only existing queues of this broker can be locked."""

    def __init__(self, context: BrokerContext) -> None:
        self.locks = QueueLocks()
        self._topics = context.topics
        self._clock = asyncio.get_running_loop().time
        self._expiring = context.jobs.repeating("expire queue locks", self._expire, _LOOK_S)

    def handlers(self) -> dict[int, RequestHandler]:
        return {RequestCode.LOCK_BATCH_MQ: self.lock, RequestCode.UNLOCK_BATCH_MQ: self.unlock}

    async def start(self) -> None:
        self._expiring.start()

    async def stop(self) -> None:
        self._expiring.cancel()

    def lock(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Handles LOCK_BATCH_MQ: locks as many queues as possible and returns the locked ones."""
        body = decode_request_json(request.body, QueueLockRequest)
        now = self._clock()
        locked = [
            queue
            for queue in self._known(body.mq_set)
            if self.locks.lock(body.consumer_group, queue.topic, queue.queue_id, body.client_id, now)
        ]
        return RemotingCommand.response(body=encode_json(QueueLockAnswer(locked)))

    def unlock(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Handles UNLOCK_BATCH_MQ: releases the client's locks of these queues."""
        body = decode_request_json(request.body, QueueLockRequest)
        for queue in body.mq_set:
            self.locks.unlock(body.consumer_group, queue.topic, queue.queue_id, body.client_id)
        return RemotingCommand.response()

    def _expire(self) -> None:
        self.locks.expire(self._clock())

    def _known(self, queues: Iterable[QueueObject]) -> Iterable[QueueObject]:
        for queue in queues:
            topic = self._topics.get(queue.topic)
            if topic is not None and 0 <= queue.queue_id < topic.read_queue_nums:
                yield queue
