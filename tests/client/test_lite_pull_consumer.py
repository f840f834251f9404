"""Lite pull consumers, against a cluster."""

from __future__ import annotations

import asyncio

import pytest
from waiting import eventually

from gantrymq.client.lite_pull_consumer import LitePullConsumer
from gantrymq.client.producer import Producer
from gantrymq.errors import ClientClosed, ClientError
from gantrymq.protocol.heartbeat import CONSUME_FROM_FIRST_OFFSET
from gantrymq.protocol.message import Message, MessageExt, MessageQueue


@pytest.fixture
async def queue(producer: Producer, topic: str) -> MessageQueue:
    """A queue of ten messages, b"0" to b"9"."""
    queue = (await producer.queues(topic))[1]
    await producer.send_batch([Message(topic, b"%d" % n) for n in range(10)], queue=queue)
    return queue


async def poll_all(consumer: LitePullConsumer, count: int) -> list[bytes]:
    messages: list[MessageExt] = []
    async with asyncio.timeout(20):
        while len(messages) < count:
            messages += await consumer.poll(500)
    return [message.body for message in messages]


async def test_subscribed_topics(name_server: str, producer: Producer, topic: str, unique: str) -> None:
    consumer = LitePullConsumer(name_server, unique, consume_from_where=CONSUME_FROM_FIRST_OFFSET)
    consumer.subscribe(topic, "wanted")
    async with consumer:
        await eventually(lambda: len(consumer.assignment) == 4)
        for tags in ("wanted", "unwanted", "wanted"):
            await producer.send(Message(topic, tags.encode(), tags=tags))
        assert await poll_all(consumer, 2) == [b"wanted"] * 2
        assert await consumer.poll(100) == []


async def test_assigned_queues_and_seeking(name_server: str, queue: MessageQueue, unique: str) -> None:
    async with LitePullConsumer(name_server, unique, consume_from_where=CONSUME_FROM_FIRST_OFFSET) as consumer:
        await consumer.assign([queue])
        assert consumer.assignment == {queue}
        assert await poll_all(consumer, 10) == [b"%d" % n for n in range(10)]
        await consumer.seek(queue, 7)
        assert await poll_all(consumer, 3) == [b"7", b"8", b"9"]
        await consumer.seek_to_begin(queue)
        assert (await consumer.poll(max_messages=1))[0].body == b"0"
        await consumer.seek_to_end(queue)
        assert await consumer.poll(100) == []
        await consumer.assign([])
        assert consumer.assignment == set()
        with pytest.raises(ClientError, match="not assigned"):
            await consumer.seek(queue, 0)


async def test_handed_out_messages_count_at_the_next_poll(name_server: str, queue: MessageQueue, unique: str) -> None:
    async with LitePullConsumer(name_server, unique, consume_from_where=CONSUME_FROM_FIRST_OFFSET) as consumer:
        await consumer.assign([queue])
        await consumer.poll(max_messages=3)
        await consumer.poll(max_messages=2)
    async with LitePullConsumer(name_server, unique) as consumer:
        assert await consumer.committed(await _known(consumer, queue)) == 3
        await consumer.assign([queue])
        assert (await consumer.poll())[0].body == b"3"


async def _known(consumer: LitePullConsumer, queue: MessageQueue) -> MessageQueue:
    """The same queue, once the consumer knows where it is."""
    return next(known for known in await consumer.queues(queue.topic) if known == queue)


async def test_commit(name_server: str, queue: MessageQueue, unique: str) -> None:
    consumer = LitePullConsumer(name_server, unique, auto_commit=False, consume_from_where=CONSUME_FROM_FIRST_OFFSET)
    async with consumer:
        await consumer.assign([queue])
        await consumer.poll(max_messages=4)
        # A broker that has no offset says 0 as long as the queue's first message is still in memory.
        assert not await consumer.committed(queue)
        await consumer.commit()
        assert await consumer.committed(queue) == 4
        await consumer.poll(max_messages=4)
        await consumer.poll(max_messages=1)
    async with LitePullConsumer(name_server, unique) as consumer:
        assert await consumer.committed(await _known(consumer, queue)) == 4


async def test_iteration(name_server: str, producer: Producer, queue: MessageQueue, unique: str) -> None:
    bodies: list[bytes] = []
    async with LitePullConsumer(name_server, unique, consume_from_where=CONSUME_FROM_FIRST_OFFSET) as consumer:
        await consumer.assign([queue])
        async for message in consumer:
            bodies.append(message.body)
            if len(bodies) == 10:
                await producer.send(Message(queue.topic, b"new"), queue=queue)
            if message.body == b"new":
                break
        await consumer.commit()
        assert await consumer.committed(queue) == 11
    assert bodies == [b"%d" % n for n in range(10)] + [b"new"]


async def test_closing_ends_an_iteration(name_server: str, queue: MessageQueue, unique: str) -> None:
    consumer = LitePullConsumer(name_server, unique)
    await consumer.start()

    async def iterate() -> list[MessageExt]:
        return [message async for message in consumer]

    iteration = asyncio.create_task(iterate())
    await asyncio.sleep(0.05)
    await consumer.close()
    async with asyncio.timeout(5):
        assert await iteration == []
    with pytest.raises(ClientClosed):
        await consumer.poll()


async def test_subscribed_queues_can_not_be_assigned(name_server: str, queue: MessageQueue, unique: str) -> None:
    consumer = LitePullConsumer(name_server, unique)
    consumer.subscribe(queue.topic)
    async with consumer:
        with pytest.raises(ClientError, match="assigned by hand"):
            await consumer.assign([queue])
        with pytest.raises(ClientError, match="before the start"):
            consumer.subscribe("another")
