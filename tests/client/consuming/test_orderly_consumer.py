"""Orderly push consumers against a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import defaultdict

import pytest
from inbox import Inbox, queues_of
from wait_until import until

from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import ClientError
from gantrymq.protocol.message import Message, MessageExt


async def send_numbers(producer: Producer, topic: str, count: int, first: int = 0) -> None:
    """Sends `count` numbered messages to each queue."""
    for queue in await producer.queues(topic):
        await producer.send_batch([Message(topic, b"%d" % n) for n in range(first, first + count)], queue=queue)


class Order:
    """Received numbers by queue id, and the largest number of parallel handlers per queue."""

    def __init__(self) -> None:
        self.came: defaultdict[int, list[int]] = defaultdict(list)
        self.most = 0
        self._now: defaultdict[int, int] = defaultdict(int)

    async def __call__(self, message: MessageExt) -> None:
        self._now[message.queue_id] += 1
        self.most = max(self.most, self._now[message.queue_id])
        await asyncio.sleep(0)
        self.came[message.queue_id].append(int(message.body))
        self._now[message.queue_id] -= 1

    @property
    def total(self) -> int:
        return sum(map(len, self.came.values()))


@pytest.mark.parametrize("in_threads", [False, True])
async def test_one_after_the_other(
    name_server: str, producer: Producer, topic: str, unique: str, in_threads: bool
) -> None:
    order = Order()
    came: defaultdict[int, list[int]] = defaultdict(list)
    threads: set[str] = set()

    def handle(message: MessageExt) -> None:
        threads.add(threading.current_thread().name)
        came[message.queue_id].append(int(message.body))

    await send_numbers(producer, topic, 100)
    consumer = PushConsumer(
        name_server,
        unique,
        handle if in_threads else order,
        orderly=True,
        start_from="earliest",
    )
    consumer.subscribe(topic)
    seen = came if in_threads else order.came
    async with consumer:
        await until(lambda: sum(map(len, seen.values())) == 400)
    assert seen == {queue_id: list(range(100)) for queue_id in range(4)}
    if not in_threads:
        assert order.most == 1


async def test_a_failure_stops_its_queue_only(name_server: str, producer: Producer, topic: str, unique: str) -> None:
    came: list[tuple[int, int, int]] = []
    go_on = False

    async def handle(message: MessageExt) -> None:
        came.append((message.queue_id, int(message.body), message.reconsume_times))
        if message.queue_id == 1 and message.body == b"2" and not go_on:
            raise ValueError("not yet")

    await send_numbers(producer, topic, 5)
    consumer = PushConsumer(name_server, unique, handle, orderly=True, suspend=0.02, start_from="earliest")
    consumer.subscribe(topic)
    async with consumer:
        await until(lambda: sum(queue_id != 1 for queue_id, _, _ in came) == 15)
        # An orderly consumer retries more often than a concurrent one.
        await until(lambda: sum(body == 2 for queue_id, body, _ in came if queue_id == 1) > 20)
        assert max(body for queue_id, body, _ in came if queue_id == 1) == 2
        go_on = True
        await until(lambda: (1, 4, 0) in came)
    tries = [times for queue_id, body, times in came if (queue_id, body) == (1, 2)]
    assert tries == list(range(len(tries)))


async def test_a_hopeless_message_makes_way(
    name_server: str, producer: Producer, topic: str, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    came: list[tuple[bytes, int]] = []

    async def handle(message: MessageExt) -> None:
        came.append((message.body, message.reconsume_times))
        if message.body == b"hopeless":
            raise ValueError("never")

    queue = (await producer.queues(topic))[0]
    await producer.send_batch([Message(topic, body) for body in (b"hopeless", b"next")], queue=queue)
    consumer = PushConsumer(
        name_server,
        unique,
        handle,
        orderly=True,
        suspend=0.01,
        max_reconsume_times=2,
        start_from="earliest",
    )
    consumer.subscribe(topic)
    async with consumer:
        await until(lambda: came[-1:] == [(b"next", 0)])
        async with LitePullConsumer(name_server, f"{unique}_reader") as reader:
            await reader.assign(await _queues_when_there(reader, f"%DLQ%{unique}"))
            for dead in reader.assignment:
                await reader.seek_to_begin(dead)
            (message,) = await reader.poll(timeout=10)
    assert came == [(b"hopeless", 0), (b"hopeless", 1), (b"hopeless", 2), (b"next", 0)]
    failures = [line for line in caplog.messages if line.startswith(f"handler failed: topic {topic!r}, message ")]
    assert [line.partition(" attempt ")[2] for line in failures] == [
        "1; next attempt in 0.01 s, its queue waits",
        "2; next attempt in 0.01 s, its queue waits",
        "3; goes to the dead-letter queue",
    ]
    assert (message.body, message.properties["RETRY_TOPIC"]) == (b"hopeless", topic)


async def _queues_when_there(reader: LitePullConsumer, topic: str) -> list[object]:
    async def queues() -> list[object]:
        with contextlib.suppress(ClientError):
            return await reader.queues(topic)
        return []

    return await until(queues)


async def test_order_stays_when_queues_move(name_server: str, producer: Producer, topic: str, unique: str) -> None:
    """A second consumer joins and leaves during the consumption. No message is lost or out of order."""
    orders = Order(), Order()
    consumers = [PushConsumer(name_server, unique, order, orderly=True, start_from="earliest") for order in orders]
    for consumer in consumers:
        consumer.subscribe(topic)
    async with consumers[0]:
        await until(lambda: queues_of(consumers[0], topic) == 4)
        await send_numbers(producer, topic, 50)
        async with consumers[1]:
            await until(lambda: [queues_of(consumer, topic) for consumer in consumers] == [2, 2])
            await send_numbers(producer, topic, 50, first=50)
            await until(lambda: orders[0].total + orders[1].total >= 400)
            assert orders[1].total
        await until(lambda: queues_of(consumers[0], topic) == 4)
        await send_numbers(producer, topic, 10, first=100)
        await until(lambda: orders[0].total + orders[1].total >= 440)
    for queue_id in range(4):
        came = [order.came[queue_id] for order in orders]
        assert sorted(came[0] + came[1]) == list(range(110))
        assert all(numbers == sorted(numbers) for numbers in came)


async def test_a_queue_is_not_given_up_in_the_middle_of_a_message(
    name_server: str, producer: Producer, topic: str, unique: str
) -> None:
    began: set[int] = set()
    go_on = asyncio.Event()
    inbox = Inbox()

    async def handle(message: MessageExt) -> None:
        began.add(message.queue_id)
        await go_on.wait()

    slow = PushConsumer(name_server, unique, handle, orderly=True, start_from="earliest")
    quick = PushConsumer(name_server, unique, inbox, orderly=True, start_from="earliest")
    for consumer in (slow, quick):
        consumer.subscribe(topic)
    async with slow:
        await until(lambda: queues_of(slow, topic) == 4)
        await send_numbers(producer, topic, 1)
        await until(lambda: len(began) == 4)
        async with quick:
            await asyncio.sleep(0.5)
            assert not inbox.messages
            go_on.set()
            await until(lambda: queues_of(quick, topic) == 2)
            await send_numbers(producer, topic, 1, first=1)
            await until(lambda: inbox.bodies == [b"1", b"1"])
