"""Simple consumers, which pop messages, against a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest
from internals import client_of
from wait_until import until

from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import BrokerUnavailable, ClientClosed, ClientError, ConnectFailed, IllegalMessage, NoRouteInfo
from gantrymq.protocol.bodies.route import QueueData
from gantrymq.protocol.message import Message, MessageExt
from gantrymq.protocol.properties import POP_CK


async def receive_all(consumer: SimpleConsumer, count: int, **options: int) -> list[MessageExt]:
    messages: list[MessageExt] = []
    async with asyncio.timeout(30):
        while len(messages) < count:
            messages += await consumer.receive(**({"timeout": 1} | options))
    return messages


async def send_bodies(producer: Producer, topic: str, count: int) -> list[bytes]:
    bodies = [b"%02d" % n for n in range(count)]
    for body in bodies:
        await producer.send(Message(topic, body))
    return bodies


async def test_what_is_acknowledged_does_not_come_again(
    name_server: str, producer: Producer, topic: str, unique: str
) -> None:
    bodies = await send_bodies(producer, topic, 20)
    consumer = SimpleConsumer(name_server, unique)
    consumer.subscribe(topic)
    async with consumer:
        messages = await receive_all(consumer, 20, max_messages=7)
        assert sorted(message.body for message in messages) == bodies
        assert {message.topic for message in messages} == {topic}
        for message in messages:
            await consumer.ack(message)
        assert await consumer.receive(timeout=0.1) == []


async def test_what_is_not_acknowledged_comes_again(
    name_server: str, producer: Producer, topic: str, unique: str
) -> None:
    await producer.send(Message(topic, b"again"))
    consumer = SimpleConsumer(name_server, unique)
    consumer.subscribe(topic)
    async with consumer:
        asked = time.monotonic()
        (first,) = await receive_all(consumer, 1, invisible_time=1)
        (second,) = await receive_all(consumer, 1, invisible_time=60)
        # The invisible duration of one second began at some time after the request.
        assert time.monotonic() - asked >= 0.99
        assert (first.body, second.body) == (b"again", b"again")
        assert second.topic == topic
        assert second.reconsume_times == 1
        await consumer.ack(second)


async def test_the_invisible_time_can_be_changed(name_server: str, producer: Producer, topic: str, unique: str) -> None:
    await producer.send(Message(topic, b"sooner"))
    consumer = SimpleConsumer(name_server, unique)
    consumer.subscribe(topic)
    async with consumer:
        (message,) = await receive_all(consumer, 1, invisible_time=300)
        before = message.properties[POP_CK]
        await consumer.change_invisible_time(message, 1)
        assert message.properties[POP_CK] != before
        (again,) = await receive_all(consumer, 1)
        assert again.body == b"sooner"
        await consumer.ack(again)


async def test_two_consumers_share_one_queue(name_server: str, producer: Producer, topic: str, unique: str) -> None:
    queue = (await producer.queues(topic))[0]
    await producer.send_batch([Message(topic, b"%02d" % n) for n in range(40)], queue=queue)
    consumers = [SimpleConsumer(name_server, unique) for _ in range(2)]
    for consumer in consumers:
        consumer.subscribe(topic)
    async with consumers[0], consumers[1]:
        taken: list[list[MessageExt]] = [[], []]
        async with asyncio.timeout(30):
            while sum(map(len, taken)) < 40:
                for consumer, messages in zip(consumers, taken, strict=True):
                    messages += await consumer.receive(max_messages=10, timeout=1)
    assert all(taken)
    assert sorted(message.body for messages in taken for message in messages) == [b"%02d" % n for n in range(40)]


async def test_waits_for_a_message(name_server: str, producer: Producer, topic: str, unique: str) -> None:
    consumer = SimpleConsumer(name_server, unique)
    consumer.subscribe(topic)
    async with consumer:
        waiting = asyncio.create_task(consumer.receive(timeout=20))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        await producer.send(Message(topic, b"at last"))
        async with asyncio.timeout(10):
            messages = await waiting
        assert [message.body for message in messages] == [b"at last"]


async def test_tags_are_compared_as_text(name_server: str, producer: Producer, topic: str, unique: str) -> None:
    # "Aa" and "BB" have the same hash code in Java.
    for tags in ("BB", "Aa", "no"):
        await producer.send(Message(topic, tags.encode(), tags=tags))
    consumer = SimpleConsumer(name_server, unique)
    consumer.subscribe(topic, tags="Aa")
    async with consumer:
        assert [message.body for message in await receive_all(consumer, 1)] == [b"Aa"]
        assert await consumer.receive(timeout=0.1) == []


async def test_several_topics_take_turns(name_server: str, producer: Producer, topic: str, unique: str) -> None:
    second = f"{unique}_2"
    await producer.send(Message(topic, b"1"))
    await producer.send(Message(second, b"2"))
    consumer = SimpleConsumer(name_server, unique)
    consumer.subscribe(topic)
    async with consumer:
        consumer.subscribe(second)
        assert sorted(message.body for message in await receive_all(consumer, 2)) == [b"1", b"2"]
        consumer.unsubscribe(topic)
        await producer.send(Message(topic, b"3"))
        await producer.send(Message(second, b"4"))
        assert [message.body for message in await receive_all(consumer, 1)] == [b"4"]


async def test_in_a_namespace(name_server: str, unique: str) -> None:
    async with Producer(name_server, "producers", namespace="ns") as producer:
        await producer.send(Message(unique, b"inside"))

        async def known() -> bool:
            with contextlib.suppress(NoRouteInfo):
                return bool(await producer.client.routes.refresh(f"ns%{unique}"))
            return False

        # The broker creates the topic for the first message, and registers it a moment later.
        await until(known)
    consumer = SimpleConsumer(name_server, unique, namespace="ns")
    consumer.subscribe(unique)
    async with consumer:
        (message,) = await receive_all(consumer, 1)
        assert message.topic == unique
        await consumer.change_invisible_time(message, 60)
        await consumer.ack(message)


async def test_wrong_use_is_refused(name_server: str, producer: Producer, topic: str, unique: str) -> None:
    consumer = SimpleConsumer(name_server, unique)
    with pytest.raises(ClientClosed):
        await consumer.receive()
    async with consumer:
        with pytest.raises(ClientError, match="subscribe"):
            await consumer.receive()
        consumer.subscribe("no_such_topic_anywhere")
        with pytest.raises(NoRouteInfo):
            await consumer.receive()
        consumer.unsubscribe("no_such_topic_anywhere")
        consumer.subscribe(topic)
        for count in (0, 33):
            with pytest.raises(ClientError, match="1 to 32"):
                await consumer.receive(count)
        await producer.send(Message(topic, b"x"))
        (message,) = await receive_all(consumer, 1)
        for handle in ("nonsense", None):
            if handle is None:
                del message.properties[POP_CK]
            else:
                message.properties[POP_CK] = handle
            with pytest.raises(IllegalMessage):
                await consumer.ack(message)
        with pytest.raises(ClientError, match="already started"):
            await consumer.start()
    with pytest.raises(ClientClosed):
        await consumer.ack(message)


async def test_a_handle_of_an_unknown_broker(name_server: str, producer: Producer, topic: str, unique: str) -> None:
    await producer.send(Message(topic, b"x"))
    consumer = SimpleConsumer(name_server, unique)
    consumer.subscribe(topic)
    async with consumer:
        (message,) = await receive_all(consumer, 1)
        message.properties[POP_CK] = message.properties[POP_CK].replace(" broker-a ", " nobody ")
        with pytest.raises(BrokerUnavailable, match="nobody"):
            await consumer.ack(message)


async def test_a_broker_that_is_gone_does_not_stop_the_others(
    name_server: str, producer: Producer, topic: str, unique: str
) -> None:
    consumer = SimpleConsumer(name_server, unique)
    consumer.subscribe(topic)
    async with consumer:
        assert await consumer.receive(timeout=0) == []
        routes = client_of(consumer).routes
        route = routes.cached(topic)
        assert route
        route.queue_datas.append(QueueData("gone", 4, 4, 6))
        routes.all_brokers()["gone"] = {0: "127.0.0.1:1"}
        for number in range(4):
            await producer.send(Message(topic, b"%d" % number))
            assert len(await receive_all(consumer, 1)) == 1
        # If no broker is left, it is an error.
        routes.all_brokers()["broker-a"] = {0: "127.0.0.1:1"}
        with pytest.raises(ConnectFailed):
            await consumer.receive(timeout=1)


@pytest.mark.parametrize("handle", ["nonsense", "1 2 3 4 0 broker-b 5 6"])
async def test_a_receipt_handle_that_a_producer_sent_is_not_taken_for_the_messages_own(
    name_server: str, producer: Producer, topic: str, unique: str, handle: str
) -> None:
    """A message can be sent again with all properties of a popped message."""
    await producer.send(Message(topic, b"x", properties={POP_CK: handle}))
    consumer = SimpleConsumer(name_server, unique)
    consumer.subscribe(topic)
    async with consumer:
        (message,) = await receive_all(consumer, 1)
        await consumer.ack(message)
