"""Lite pull consumers against a cluster."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from wait_until import until

from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.middleware import Middleware, ReceiveCall, ReceiveContext
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import ClientClosed, ClientError
from gantrymq.protocol.message import Message, MessageExt, MessageQueue


@pytest.fixture
async def queue(producer: Producer, topic: str) -> MessageQueue:
    """Returns a queue with ten messages, b"0" to b"9"."""
    queue = (await producer.queues(topic))[1]
    await producer.send_batch([Message(topic, b"%d" % n) for n in range(10)], queue=queue)
    return queue


async def poll_all(consumer: LitePullConsumer, count: int) -> list[bytes]:
    messages: list[MessageExt] = []
    async with asyncio.timeout(20):
        while len(messages) < count:
            messages += await consumer.poll(timeout=0.5)
    return [message.body for message in messages]


async def test_subscribed_topics(name_server: str, producer: Producer, topic: str, unique: str) -> None:
    consumer = LitePullConsumer(name_server, unique, start_from="earliest")
    consumer.subscribe(topic, tags="wanted")
    async with consumer:
        await until(lambda: len(consumer.assignment) == 4)
        for tags in ("wanted", "unwanted", "wanted"):
            await producer.send(Message(topic, tags.encode(), tags=tags))
        assert await poll_all(consumer, 2) == [b"wanted"] * 2
        assert await consumer.poll(timeout=0.1) == []


async def test_assigned_queues_and_seeking(name_server: str, queue: MessageQueue, unique: str) -> None:
    async with LitePullConsumer(name_server, unique, start_from="earliest") as consumer:
        await consumer.assign([queue])
        assert consumer.assignment == {queue}
        assert await poll_all(consumer, 10) == [b"%d" % n for n in range(10)]
        await consumer.seek(queue, 7)
        assert await poll_all(consumer, 3) == [b"7", b"8", b"9"]
        await consumer.seek_to_begin(queue)
        assert (await consumer.poll(max_messages=1))[0].body == b"0"
        await consumer.seek_to_end(queue)
        assert await consumer.poll(timeout=0.1) == []
        await consumer.assign([])
        assert consumer.assignment == set()
        with pytest.raises(ClientError, match="not assigned"):
            await consumer.seek(queue, 0)


async def test_where_it_stands(name_server: str, producer: Producer, queue: MessageQueue, unique: str) -> None:
    async with LitePullConsumer(name_server, unique, start_from="earliest") as consumer:
        await consumer.assign([queue], tags="wanted")
        await consumer.seek(queue, 0)
        assert await consumer.end_offset(queue) == 10
        await until(lambda: consumer.position(queue) == 10)
        await consumer.assign([queue])
        await consumer.seek(queue, 2)
        assert consumer.position(queue) == 2
        for expected in (5, 8, 10):
            await consumer.poll(max_messages=3)
            assert consumer.position(queue) == expected
        await producer.send(Message(queue.topic, b"10"), queue=queue)
        await poll_all(consumer, 1)
        assert consumer.position(queue) == await consumer.end_offset(queue) == 11
        with pytest.raises(ClientError, match="not assigned"):
            consumer.position(queue._replace(queue_id=0))


async def test_handed_out_messages_count_at_the_next_poll(name_server: str, queue: MessageQueue, unique: str) -> None:
    async with LitePullConsumer(name_server, unique, start_from="earliest") as consumer:
        await consumer.assign([queue])
        await consumer.poll(max_messages=3)
        await consumer.poll(max_messages=2)
    async with LitePullConsumer(name_server, unique) as consumer:
        assert await consumer.committed(await _known(consumer, queue)) == 3
        await consumer.assign([queue])
        assert (await consumer.poll())[0].body == b"3"


async def _known(consumer: LitePullConsumer, queue: MessageQueue) -> MessageQueue:
    """Returns the same queue after the consumer has its route."""
    return next(known for known in await consumer.queues(queue.topic) if known == queue)


async def test_commit(name_server: str, queue: MessageQueue, unique: str) -> None:
    consumer = LitePullConsumer(name_server, unique, auto_commit=False, start_from="earliest")
    async with consumer:
        await consumer.assign([queue])
        await consumer.poll(max_messages=4)
        # Without a committed offset, a broker returns 0 as long as the queue's first message is in memory.
        assert not await consumer.committed(queue)
        await consumer.commit()
        assert await consumer.committed(queue) == 4
        await consumer.poll(max_messages=4)
        await consumer.poll(max_messages=1)
    async with LitePullConsumer(name_server, unique) as consumer:
        assert await consumer.committed(await _known(consumer, queue)) == 4


async def test_iteration(name_server: str, producer: Producer, queue: MessageQueue, unique: str) -> None:
    bodies: list[bytes] = []
    # With automatic commits, a pending pull may commit after `commit` does.
    consumer = LitePullConsumer(name_server, unique, auto_commit=False, start_from="earliest")
    async with consumer:
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


async def test_subscribed_and_assigned_do_not_mix(name_server: str, queue: MessageQueue, unique: str) -> None:
    consumer = LitePullConsumer(name_server, unique)
    consumer.subscribe(queue.topic)
    async with consumer:
        with pytest.raises(ClientError, match="assigned by hand"):
            await consumer.assign([queue])
    async with LitePullConsumer(name_server, unique) as consumer:
        await consumer.assign([queue])
        with pytest.raises(ClientError, match="before the start"):
            consumer.subscribe("another")


async def test_paused_queues_hand_nothing_out(
    name_server: str, producer: Producer, queue: MessageQueue, unique: str
) -> None:
    other = queue._replace(queue_id=2)
    await producer.send(Message(queue.topic, b"other"), queue=other)
    async with LitePullConsumer(name_server, unique, start_from="earliest") as consumer:
        await consumer.assign([queue, other])
        assert len(await poll_all(consumer, 11)) == 11
        await consumer.seek(queue, 4)
        consumer.pause([queue])
        assert consumer.paused == {queue}
        await producer.send(Message(queue.topic, b"other"), queue=other)
        assert await poll_all(consumer, 1) == [b"other"]
        await consumer.seek(queue, 6)
        assert await consumer.poll(timeout=0.2) == []
        consumer.resume([queue])
        assert await poll_all(consumer, 4) == [b"6", b"7", b"8", b"9"]
        with pytest.raises(ClientError, match="not assigned"):
            consumer.pause([queue._replace(queue_id=0)])


async def test_what_was_pulled_before_a_pause_stays(name_server: str, queue: MessageQueue, unique: str) -> None:
    async with LitePullConsumer(name_server, unique, start_from="earliest") as consumer:
        await consumer.assign([queue])
        assert [message.body for message in await consumer.poll(timeout=5, max_messages=1)] == [b"0"]
        consumer.pause([queue])
        assert await consumer.poll(timeout=0.05) == []
        consumer.resume([queue])
        assert await poll_all(consumer, 9) == [b"%d" % n for n in range(1, 10)]


async def test_by_time(name_server: str, producer: Producer, queue: MessageQueue, unique: str) -> None:
    await asyncio.sleep(0.01)
    between = time.time_ns() // 1_000_000
    await producer.send(Message(queue.topic, b"late"), queue=queue)
    async with LitePullConsumer(name_server, unique) as consumer:
        await consumer.assign([queue])
        assert await consumer.offset_for_time(queue, 0) == 0
        await consumer.seek_to_time(queue, between)
        assert await poll_all(consumer, 1) == [b"late"]


async def test_commit_of_given_offsets(name_server: str, queue: MessageQueue, unique: str) -> None:
    consumer = LitePullConsumer(name_server, unique, auto_commit=False, start_from="earliest")
    async with consumer:
        await consumer.assign([queue])
        # Java's broker accepts offsets only from groups that have pulled (ConsumerManageProcessor).
        assert await consumer.poll(max_messages=1)
        await consumer.commit({queue: 6})
        assert await consumer.committed(queue) == 6


async def test_expression_of_assigned_queues(
    name_server: str, producer: Producer, queue: MessageQueue, unique: str
) -> None:
    await producer.send(Message(queue.topic, b"tagged", tags="wanted"), queue=queue)
    async with LitePullConsumer(name_server, unique, start_from="earliest") as consumer:
        await consumer.assign([queue], tags="wanted")
        assert await poll_all(consumer, 1) == [b"tagged"]
        await consumer.assign([queue], tags="*")
        await consumer.seek_to_begin(queue)
        assert len(await poll_all(consumer, 11)) == 11


async def test_topics_may_change_while_it_runs(
    name_server: str, producer: Producer, queue: MessageQueue, unique: str
) -> None:
    second = f"{unique}_2"
    await producer.send(Message(second, b"second"))
    consumer = LitePullConsumer(name_server, unique, start_from="earliest")
    consumer.subscribe(queue.topic)
    async with consumer:
        assert len(await poll_all(consumer, 10)) == 10
        consumer.subscribe(second)
        assert await poll_all(consumer, 1) == [b"second"]
        consumer.unsubscribe(queue.topic)
        await until(lambda: {queue.topic for queue in consumer.assignment} == {second})


async def test_offsets_on_this_machine(
    name_server: str, producer: Producer, queue: MessageQueue, unique: str, tmp_path: Path
) -> None:
    """Both consumers receive all messages, and each continues at its own offset."""
    for name in ("one", "two", "one"):
        consumer = LitePullConsumer(
            name_server,
            unique,
            broadcasting=True,
            offset_directory=tmp_path,
            instance_name=name,
            start_from="earliest",
        )
        consumer.subscribe(queue.topic)
        async with consumer:
            if (tmp_path / consumer_id(tmp_path, name) / unique).exists():
                await until(lambda consumer=consumer: len(consumer.assignment) == 4)
                assert await consumer.poll(timeout=0.2) == []
            else:
                assert len(await poll_all(consumer, 10)) == 10
                await consumer.commit()


def consumer_id(directory: Path, name: str) -> str:
    return next((path.name for path in directory.glob(f"*@{name}")), name)


@pytest.mark.parametrize("size", [0, 1025])
def test_impossible_batch_sizes_are_refused(size: int) -> None:
    with pytest.raises(ClientError, match="pull_batch_size"):
        LitePullConsumer("127.0.0.1:9876", "group", pull_batch_size=size)


async def test_two_polls_at_once_are_refused(name_server: str, producer: Producer, topic: str, unique: str) -> None:
    """With two polls, the future of the first one would be lost, and its messages would count as consumed."""
    consumer = LitePullConsumer(name_server, unique, start_from="earliest")
    consumer.subscribe(topic)
    async with consumer:
        first = asyncio.ensure_future(consumer.poll(timeout=60))
        await asyncio.sleep(0)
        with pytest.raises(ClientError, match="another poll"):
            await consumer.poll(timeout=0.001)
        await producer.send(Message(topic, b"x"))
        assert [message.body for message in await first] == [b"x"]
        # A cancelled poll is over.
        second = asyncio.ensure_future(consumer.poll(timeout=60))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert await consumer.poll(timeout=0.001) == []


class FailingOnce(Middleware):
    """Raises once, before or after a poll."""

    def __init__(self, *, before: bool) -> None:
        self.before = before
        self.topics: list[str] = []

    async def around_receive(self, call: ReceiveCall, context: ReceiveContext) -> list[MessageExt]:
        if self.topics:
            return await call(context)
        self.topics += context.topics
        if not self.before:
            await call(context)
        raise ValueError("as scripted")


@pytest.mark.parametrize("before", [True, False])
async def test_a_middleware_that_fails_loses_and_repeats_no_message(
    name_server: str, queue: MessageQueue, unique: str, before: bool
) -> None:
    failing = FailingOnce(before=before)
    async with LitePullConsumer(name_server, unique, start_from="earliest", middleware=[failing]) as consumer:
        await consumer.assign([queue])
        with pytest.raises(ValueError, match="as scripted"):
            await consumer.poll(timeout=20, max_messages=4)
        assert failing.topics == [queue.topic]
        assert await poll_all(consumer, 10) == [b"%d" % n for n in range(10)]


class CallingTwice(Middleware):
    """Calls twice in the first poll, one call after the other or both at a time."""

    def __init__(self, *, at_a_time: bool) -> None:
        self.at_a_time = at_a_time
        self.polls = 0

    async def around_receive(self, call: ReceiveCall, context: ReceiveContext) -> list[MessageExt]:
        self.polls += 1
        if self.polls > 1:
            return await call(context)
        if self.at_a_time:
            first, second = await asyncio.gather(call(context), call(context))
            return first + second
        return await call(context) + await call(context)


@pytest.mark.parametrize("at_a_time", [True, False])
async def test_a_middleware_that_calls_twice_loses_no_message(
    name_server: str, queue: MessageQueue, unique: str, at_a_time: bool
) -> None:
    twice = CallingTwice(at_a_time=at_a_time)
    async with LitePullConsumer(name_server, unique, start_from="earliest", middleware=[twice]) as consumer:
        await consumer.assign([queue])
        with pytest.raises(ClientError, match="awaited `call` again"):
            await consumer.poll(timeout=20, max_messages=4)
        assert await poll_all(consumer, 10) == [b"%d" % n for n in range(10)]


class CallingUntilMessages(Middleware):
    async def around_receive(self, call: ReceiveCall, context: ReceiveContext) -> list[MessageExt]:
        while not (messages := await call(context)):
            pass
        return messages


async def test_a_middleware_calls_again_after_a_call_without_messages(
    name_server: str, queue: MessageQueue, unique: str
) -> None:
    middleware = [CallingUntilMessages()]
    async with LitePullConsumer(name_server, unique, start_from="earliest", middleware=middleware) as consumer:
        await consumer.assign([queue])
        async with asyncio.timeout(20):
            assert await consumer.poll(timeout=0.001)
