"""Locks that a consumer releases while it renews them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from scripted import ScriptedNameServer, route_over, serving
from wait_until import until

from gantrymq.client.client_instance import ClientInstance
from gantrymq.client.consuming.consumer_locks import ConsumerLocks
from gantrymq.protocol.bodies.offset import QueueLockAnswer, QueueLockRequest
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.message import MessageQueue
from gantrymq.remoting.connection import Connection
from gantrymq.remoting.listener import ListenOptions
from gantrymq.remoting.server import RemotingServer

QUEUE = MessageQueue("topic", "broker", 0)


class LockBroker:
    """Grants every lock unless `refuses`. Responds only after `held` is set, if there is such an event."""

    def __init__(self) -> None:
        self.refuses = False
        self.held: asyncio.Event | None = None
        self.asked: list[list[MessageQueue]] = []
        self.unlocked: list[MessageQueue] = []
        self.server = RemotingServer(
            {
                RequestCode.LOCK_BATCH_MQ: self._lock,
                RequestCode.UNLOCK_BATCH_MQ: self._unlock,
            },
            ListenOptions("127.0.0.1"),
        )

    def _lock(self, connection: Connection, request: RemotingCommand) -> None:
        connection.respond_with(request, self._answer(decode_json(request.body, QueueLockRequest)))

    def _unlock(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        self.unlocked += [queue.queue for queue in decode_json(request.body, QueueLockRequest).mq_set]
        return RemotingCommand.response()

    async def _answer(self, wanted: QueueLockRequest) -> RemotingCommand:
        self.asked.append([queue.queue for queue in wanted.mq_set])
        if self.held is not None:
            await self.held.wait()
        return RemotingCommand.response(body=encode_json(QueueLockAnswer([] if self.refuses else wanted.mq_set)))


@asynccontextmanager
async def locks_over(broker: LockBroker) -> AsyncIterator[ConsumerLocks]:
    async with client_of(broker) as client:
        locks = ConsumerLocks(client, "group")
        yield locks
        await locks.close(5)


@asynccontextmanager
async def client_of(broker: LockBroker) -> AsyncIterator[ClientInstance]:
    """Yields a client whose next route query returns another broker."""
    name_server = ScriptedNameServer({})
    async with serving([name_server, broker]):
        name_server.routes["topic"] = route_over({"broker": f"127.0.0.1:{broker.server.port}"})
        client = ClientInstance(name_server.address)
        await client.routes.get("topic")
        name_server.routes["topic"] = route_over({"other": "127.0.0.1:1"})
        yield client
        await client.close()


async def test_a_lock_that_is_released_during_its_renewal_is_not_renewed_again() -> None:
    """Otherwise the lock would be taken from the queue's next consumer, or never be released."""
    broker = LockBroker()
    async with locks_over(broker) as locks:
        assert await locks.lock([QUEUE]) == {QUEUE}
        broker.held = asyncio.Event()
        renewing = asyncio.create_task(locks.renew())
        await until(lambda: len(broker.asked) == 2)
        unlocking = asyncio.create_task(locks.unlock([QUEUE]))
        await unlocking
        broker.held.set()
        await renewing
        assert not locks.holds(QUEUE)
        await locks.renew()
        assert len(broker.asked) == 2


async def test_close_releases_the_lock_of_a_broker_that_left_the_route() -> None:
    """Otherwise the queue's next consumer would have to wait for a minute."""
    broker = LockBroker()
    async with client_of(broker) as client:
        locks = ConsumerLocks(client, "group")
        assert await locks.lock([QUEUE]) == {QUEUE}
        await client.routes.refresh("topic")
        await locks.close(5)
        assert broker.unlocked == [QUEUE]


async def test_renewal_requests_lost_locks_again_but_no_refused_ones() -> None:
    broker = LockBroker()
    async with locks_over(broker) as locks:
        broker.refuses = True
        assert await locks.lock([QUEUE]) == set()
        await locks.renew()
        assert len(broker.asked) == 1
        broker.refuses = False
        assert await locks.lock([QUEUE]) == {QUEUE}
        assert locks.holds(QUEUE)
        # A lock that got lost while its queue is consumed is requested again.
        broker.refuses = True
        await locks.renew()
        assert not locks.holds(QUEUE)
        broker.refuses = False
        await locks.renew()
        assert locks.holds(QUEUE)


async def test_failed_requests_list_their_queues_briefly(caplog: pytest.LogCaptureFixture) -> None:
    queues = [MessageQueue("topic", "broker", id) for id in range(4)]
    broker = LockBroker()
    async with locks_over(broker) as locks:
        assert await locks.lock(queues) == set(queues)
        broker.refuses = True
        await locks.renew()
        await broker.server.stop()
        await locks.lock(queues)
        await locks.unlock(queues)
    listed = "topic (broker 0-3)"
    assert f"group group can't renew the locks of {listed}" in caplog.messages
    for action in ("lock", "unlock"):
        assert any(line.startswith(f"can't {action} {listed} for group group: ") for line in caplog.messages)


async def test_was_lost_is_true_if_another_consumer_had_the_lock() -> None:
    """The remaining messages must be neither handled nor committed, because the other consumer is ahead."""
    broker = LockBroker()
    async with locks_over(broker) as locks:
        await locks.lock([QUEUE])
        await locks.renew()
        assert not locks.was_lost(QUEUE)
        broker.refuses = True
        await locks.renew()
        broker.refuses = False
        assert await locks.lock([QUEUE]) == {QUEUE}
        assert locks.was_lost(QUEUE)
        locks.taken_anew(QUEUE)
        assert not locks.was_lost(QUEUE)
        assert locks.holds(QUEUE)


async def test_a_lock_granted_after_its_queue_was_released_is_unlocked() -> None:
    """The queue was released during the lock request. Otherwise the broker would lock out others for a minute."""
    broker = LockBroker()
    broker.held = asyncio.Event()
    async with locks_over(broker) as locks:
        locking = asyncio.create_task(locks.lock([QUEUE]))
        await until(lambda: broker.asked)
        await locks.unlock([QUEUE])
        assert broker.unlocked == [QUEUE]
        broker.held.set()
        assert await locking == set()
        assert broker.unlocked == [QUEUE, QUEUE]


async def test_the_lock_of_a_cancelled_call_is_released_and_not_renewed() -> None:
    broker = LockBroker()
    broker.held = asyncio.Event()
    async with locks_over(broker) as locks:
        locking = asyncio.create_task(locks.lock([QUEUE]))
        await until(lambda: broker.asked)
        locking.cancel()
        await asyncio.gather(locking, return_exceptions=True)
        broker.held.set()
        await locks.renew()
        assert len(broker.asked) == 1
    # The broker granted the lock although no caller waited, so it is released.
    assert broker.unlocked == [QUEUE]
