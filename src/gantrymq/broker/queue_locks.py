"""Which client of a group may consume a queue in order: LOCK_BATCH_MQ, UNLOCK_BATCH_MQ (`RebalanceLockManager`)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from gantrymq.background.jobs import Jobs
from gantrymq.broker.part import Part
from gantrymq.broker.topics import BrokerTopics
from gantrymq.protocol.bodies.offset import QueueLockAnswer, QueueLockRequest
from gantrymq.protocol.bodies.queue_map import QueueObject
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_request_json, encode_json
from gantrymq.remoting.connection import Connection, Reply, RequestHandler

#: A lock that its client doesn't renew in so many seconds is free (rocketmq.broker.rebalance.lockMaxLiveTime); clients
#: renew theirs every 20 s.
LOCK_LIFE_S = 60.0
#: How often it is looked for those, s.
_LOOK_S = 10.0


@dataclass(slots=True)
class _Lock:
    client_id: str
    renewed: float


class QueueLocks:
    """Locks by group and (topic, queue id). Plain tables, told the time in seconds."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[tuple[str, int], _Lock]] = {}

    def lock(self, group: str, topic: str, queue_id: int, client_id: str, now: float) -> bool:
        """Takes or renews a lock; False while another client has it."""
        locks = self._groups.setdefault(group, {})
        held = locks.get((topic, queue_id))
        if held is not None and held.client_id != client_id and now - held.renewed <= LOCK_LIFE_S:
            return False
        locks[topic, queue_id] = _Lock(client_id, now)
        return True

    def unlock(self, group: str, topic: str, queue_id: int, client_id: str) -> None:
        """Gives a lock back; that of another client stays."""
        locks = self._groups.get(group, {})
        held = locks.get((topic, queue_id))
        if held is not None and held.client_id == client_id:
            del locks[topic, queue_id]
            if not locks:
                del self._groups[group]

    def expire(self, now: float) -> None:
        """Forgets the locks that nobody renewed."""
        for group, locks in list(self._groups.items()):
            for queue in [queue for queue, lock in locks.items() if now - lock.renewed > LOCK_LIFE_S]:
                del locks[queue]
            if not locks:
                del self._groups[group]

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))


class QueueLocking(Part):
    """The requests; a queue that this broker doesn't have can't be locked."""

    def __init__(self, topics: BrokerTopics, jobs: Jobs) -> None:
        self.locks = QueueLocks()
        self._topics = topics
        self._clock = asyncio.get_running_loop().time
        self._expiring = jobs.repeating("expire queue locks", self._expire, _LOOK_S)

    def handlers(self) -> dict[int, RequestHandler]:
        return {RequestCode.LOCK_BATCH_MQ: self.lock, RequestCode.UNLOCK_BATCH_MQ: self.unlock}

    async def start(self) -> None:
        self._expiring.start()

    async def stop(self) -> None:
        self._expiring.cancel()

    def lock(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Locks what it can of the queues; answers those that are the client's now."""
        body = decode_request_json(request.body, QueueLockRequest)
        now = self._clock()
        locked = [
            queue
            for queue in self._known(body.mq_set)
            if self.locks.lock(body.consumer_group, queue.topic, queue.queue_id, body.client_id, now)
        ]
        return RemotingCommand.response(body=encode_json(QueueLockAnswer(locked)))

    def unlock(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Gives the client's locks of these queues back."""
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
