"""The synchronous face, against a cluster."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gantrymq.client.lite_pull_consumer import LitePullConsumer
from gantrymq.client.producer import Producer
from gantrymq.client.push_consumer import PushConsumer
from gantrymq.client.queue_selector import select_by_hash
from gantrymq.client.simple_consumer import SimpleConsumer
from gantrymq.errors import ClientClosed, ClientError, IllegalMessage
from gantrymq.protocol.heartbeat import CONSUME_FROM_FIRST_OFFSET
from gantrymq.protocol.message import Message, MessageExt
from gantrymq.sync import SyncLitePullConsumer, SyncProducer, SyncPushConsumer, SyncSimpleConsumer


def test_send_and_receive(name_server: str, unique: str) -> None:
    got = threading.Semaphore(0)

    def handle(message: MessageExt) -> None:
        got.release()

    with SyncProducer(Producer(name_server, "producers")) as producer:
        producer.send(Message(unique, b"1"))
        producer.send_batch([Message(unique, b"2"), Message(unique, b"3")])
        producer.send_with(Message(unique, b"4"), select_by_hash, "key")
        producer.send_oneway(Message(unique, b"5"))
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda n: producer.send(Message(unique, b"%d" % n)), range(6, 21)))
        with pytest.raises(IllegalMessage):
            producer.send(Message(unique, b""))
        queues = producer.queues(unique)

    consumer = PushConsumer(name_server, unique, handle, consume_from_where=CONSUME_FROM_FIRST_OFFSET)
    consumer.subscribe(unique)
    with SyncPushConsumer(consumer):
        for _ in range(20):
            assert got.acquire(timeout=20)

    reader = LitePullConsumer(name_server, f"{unique}_reader", consume_from_where=CONSUME_FROM_FIRST_OFFSET)
    with SyncLitePullConsumer(reader) as lite:
        lite.assign(lite.queues(unique))
        assert set(lite.queues(unique)) == set(queues)
        bodies = set()
        for message in lite:
            bodies.add(message.body)
            if len(bodies) == 20:
                break
        lite.commit()
        assert sum(lite.committed(queue) or 0 for queue in queues) == 20
        lite.seek(queues[0], 1)
        lite.seek_to_end(queues[1])
        lite.seek_to_begin(queues[2])
        assert lite.poll()
    assert bodies == {b"%d" % n for n in range(1, 21)}


def test_pop_and_subscriptions_that_change(name_server: str, unique: str) -> None:
    with SyncProducer(Producer(name_server, "producers")) as producer:
        producer.send(Message(unique, b"1"))
    consumer = SyncSimpleConsumer(SimpleConsumer(name_server, unique))
    with consumer:
        consumer.subscribe(unique)
        (message,) = consumer.receive()
        consumer.change_invisible_time(message, 60_000)
        consumer.ack(message)
        consumer.unsubscribe(unique)
        with pytest.raises(ClientError, match="subscribe"):
            consumer.receive()


def test_works_between_start_and_close(name_server: str) -> None:
    producer = SyncProducer(Producer(name_server, "producers"))
    with pytest.raises(ClientClosed):
        producer.send(Message("t", b"x"))
    producer.start()
    producer.close()
    producer.close()
    with pytest.raises(ClientClosed):
        producer.send(Message("t", b"x"))
    assert not [thread for thread in threading.enumerate() if thread.name == "gantrymq-client"]


async def test_does_not_need_the_callers_loop(name_server: str, unique: str) -> None:
    def send() -> None:
        with SyncProducer(Producer(name_server, "producers")) as producer:
            producer.send(Message(unique, b"x"))

    await asyncio.to_thread(send)
