"""Locks of queues: the table and the requests."""

from __future__ import annotations

from broker_support import Peer

from gantrymq.broker.broker import Broker
from gantrymq.broker.consumers.locks import LOCK_LIFE_S, QueueLocks
from gantrymq.protocol.bodies.offset import QueueLockAnswer, QueueLockRequest
from gantrymq.protocol.bodies.queue_map import QueueObject
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.fastjson import decode_json, encode_json


def test_lock_is_its_clients_until_it_expires() -> None:
    locks = QueueLocks()
    assert locks.lock("g", "t", 0, "one", 0)
    assert not locks.lock("g", "t", 0, "two", LOCK_LIFE_S)
    assert locks.lock("g", "t", 0, "two", LOCK_LIFE_S + 0.1)
    assert not locks.lock("g", "t", 0, "one", LOCK_LIFE_S + 0.2)


def test_lock_is_renewed() -> None:
    locks = QueueLocks()
    for now in (0.0, 50.0, 100.0):
        assert locks.lock("g", "t", 0, "one", now)
        assert not locks.lock("g", "t", 0, "two", now + 59)


def test_groups_and_queues_are_apart() -> None:
    locks = QueueLocks()
    assert locks.lock("g", "t", 0, "one", 0)
    assert locks.lock("h", "t", 0, "two", 0)
    assert locks.lock("g", "t", 1, "two", 0)
    assert locks.lock("g", "u", 0, "two", 0)


def test_only_the_holder_unlocks() -> None:
    locks = QueueLocks()
    locks.lock("g", "t", 0, "one", 0)
    locks.unlock("g", "t", 0, "two")
    assert not locks.lock("g", "t", 0, "two", 1)
    locks.unlock("g", "t", 0, "one")
    assert len(locks) == 0
    assert locks.lock("g", "t", 0, "two", 1)
    locks.unlock("none", "t", 0, "two")


def test_expired_locks_are_forgotten() -> None:
    locks = QueueLocks()
    locks.lock("g", "t", 0, "one", 0)
    locks.lock("g", "t", 1, "one", 50)
    locks.expire(61)
    assert len(locks) == 1
    locks.expire(111)
    assert len(locks) == 0


async def test_requests(peer: Peer, broker: Broker) -> None:
    await peer.send("orders", b"x")

    async def ask(code: int, client_id: str, *queue_ids: int, topic: str = "orders") -> list[int]:
        queues = [QueueObject("broker-a", queue_id, topic) for queue_id in queue_ids]
        body = encode_json(QueueLockRequest("consumers", client_id, queues))
        response = await peer.ask(code, body=body)
        assert response.code == ResponseCode.SUCCESS
        if code == RequestCode.UNLOCK_BATCH_MQ:
            return []
        return [queue.queue_id for queue in decode_json(response.body, QueueLockAnswer).lock_ok_mq_set]

    lock, unlock = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ
    assert await ask(lock, "one", 0, 1) == [0, 1]
    assert await ask(lock, "two", 0, 1, 2) == [2]
    await ask(unlock, "two", 0, 2)
    assert await ask(lock, "three", 0, 2) == [2]
    await ask(unlock, "one", 0)
    assert await ask(lock, "three", 0) == [0]
    # Queues that this broker does not have are neither locked nor stored.
    assert await ask(lock, "one", -1, 4, 2**31 - 1) == []
    assert await ask(lock, "one", 0, topic="none") == []
    await ask(unlock, "one", 0, topic="none")


async def test_as_java_asks(peer: Peer) -> None:
    await peer.send("orders", b"x")
    body = (
        b'{"clientId":"127.0.0.1@1","consumerGroup":"javas","mqSet":[{"brokerName":"broker-a","queueId":1,'
        b'"topic":"orders"}],"onlyThisBroker":false}'
    )
    response = await peer.ask(RequestCode.LOCK_BATCH_MQ, body=body)
    assert response.body == b'{"lockOKMQSet":[{"brokerName":"broker-a","queueId":1,"topic":"orders"}]}'
