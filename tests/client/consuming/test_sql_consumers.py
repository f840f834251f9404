"""Every kind of consumer with a SQL92 filter receives exactly the matching messages."""

from __future__ import annotations

import asyncio

import pytest
from inbox import Inbox
from wait_until import until

from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import BrokerError
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.message import Message

EXPRESSION = "number BETWEEN 3 AND 5 AND (colour = 'red' OR colour IS NULL)"
WANTED = [b"%d" % number for number in (3, 4, 5)]


@pytest.fixture
async def sent(producer: Producer, topic: str) -> str:
    for number in range(10):
        properties = {"number": str(number)} | ({"colour": "red"} if number % 2 else {})
        await producer.send(Message(topic, b"%d" % number, properties=properties))
    await producer.send(Message(topic, b"blue", properties={"number": "4", "colour": "blue"}))
    return topic


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_push(name_server: str, producer: Producer, sent: str, unique: str, orderly: bool) -> None:
    inbox = Inbox()
    consumer = PushConsumer(name_server, unique, inbox, orderly=orderly, start_from="earliest")
    consumer.subscribe(sent, sql=EXPRESSION)
    async with consumer:
        await until(lambda: len(inbox.messages) >= 3)
        await producer.send(Message(sent, b"last", properties={"number": "5"}))
        await until(lambda: b"last" in inbox.bodies)
    assert inbox.bodies == [*WANTED, b"last"]


async def test_lite_pull(name_server: str, sent: str, unique: str) -> None:
    consumer = LitePullConsumer(name_server, unique, start_from="earliest")
    consumer.subscribe(sent, sql=EXPRESSION)
    async with consumer, asyncio.timeout(20):
        messages = aiter(consumer)
        bodies = [(await anext(messages)).body for _ in WANTED]
    assert sorted(bodies) == WANTED


async def test_simple(name_server: str, sent: str, unique: str) -> None:
    consumer = SimpleConsumer(name_server, unique)
    consumer.subscribe(sent, sql=EXPRESSION)
    bodies: list[bytes] = []
    async with consumer, asyncio.timeout(30):
        while len(bodies) < len(WANTED):
            for message in await consumer.receive(timeout=5):
                bodies.append(message.body)
                await consumer.ack(message)
        assert await consumer.receive(timeout=0) == []
    assert sorted(bodies) == WANTED


async def test_a_wrong_expression_is_named(name_server: str, sent: str, unique: str) -> None:
    consumer = SimpleConsumer(name_server, unique)
    consumer.subscribe(sent, sql="number >")
    with pytest.raises(BrokerError) as raised:
        await consumer.start()
    assert raised.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
