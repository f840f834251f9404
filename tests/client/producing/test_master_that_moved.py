"""A broker's master hangs and another takes over: a producer asks where it is, and waits for the former one no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from scripted import ScriptedNameServer, serving
from scripted_producer import ProducerBroker
from waiting import until

from gantrymq.client import client_instance
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import BrokerError, BrokerUnavailable, RefusalReason, SendOutcomeUnknown
from gantrymq.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.message import Message, MessageQueue

QUEUE = MessageQueue("topic", "broker", 0)


class Brokers:
    """Two of one name; the first is master and answers no sends."""

    def __init__(self) -> None:
        self.hung = ProducerBroker(answer=None)
        self.other = ProducerBroker()
        self.name_server = ScriptedNameServer({})

    def master(self, master: ProducerBroker, slave: ProducerBroker) -> None:
        addresses = {0: master.address, 1: slave.address}
        self.name_server.routes["topic"] = TopicRouteData(
            [QueueData("broker", 1, 1, 6)], [BrokerData("cluster", "broker", addresses)]
        )


@asynccontextmanager
async def moving() -> AsyncIterator[tuple[Brokers, Producer]]:
    brokers = Brokers()
    async with serving([brokers.name_server, brokers.hung, brokers.other]):
        brokers.master(brokers.hung, brokers.other)
        async with Producer(brokers.name_server.address, "producers") as producer:
            yield brokers, producer


async def test_the_route_is_asked_for_while_the_broker_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_instance, "RECONNECT_S", 0.01)
    async with moving() as (brokers, producer):
        await producer.client.routes.get("topic")
        await producer.client.greet_new_brokers()
        brokers.hung.hangs = True
        # Its connection is left after this.
        with pytest.raises(SendOutcomeUnknown):
            await producer.send(Message("topic", b"1"), 1000, queue=QUEUE)
        brokers.master(brokers.other, brokers.hung)
        routes = producer.client.routes
        await until(lambda: routes.master_address("broker") == brokers.other.address, 10)
        await producer.send(Message("topic", b"2"), 1000, queue=QUEUE)
        assert [sent.body for sent in brokers.other.sent] == [b"2"]


async def test_nobody_waits_for_a_former_master_that_hangs() -> None:
    async with moving() as (brokers, producer):
        brokers.hung.hangs = True
        waiting = asyncio.ensure_future(producer.send(Message("topic", b"1"), 30_000, queue=QUEUE))
        await until(lambda: brokers.hung.sent)
        brokers.master(brokers.other, brokers.hung)
        await producer.client.routes.refresh("topic")
        with pytest.raises(SendOutcomeUnknown):
            await asyncio.wait_for(waiting, 5.0)


async def test_a_former_master_that_lives_answers_itself() -> None:
    async with moving() as (brokers, producer):
        waiting = asyncio.ensure_future(producer.send(Message("topic", b"1"), 30_000, queue=QUEUE))
        await until(lambda: brokers.hung.sent)
        brokers.master(brokers.other, brokers.hung)
        client = producer.client
        await client.routes.refresh("topic")
        # Whatever it says, it isn't hung.
        await client.greet_again(brokers.hung.address)
        await until(lambda: not client._former)
        assert not waiting.done()
        waiting.cancel()


async def test_a_send_to_one_queue_follows_the_master() -> None:
    """Nothing tells a producer of a hand-over but that its sends are refused: it went on for half a minute."""
    async with moving() as (brokers, producer):
        brokers.hung.refuse(ResponseCode.SYSTEM_BUSY, RefusalReason.NOT_MASTER)
        waiting = asyncio.ensure_future(producer.send(Message("topic", b"1"), queue=QUEUE))
        await until(lambda: brokers.hung.sent)
        brokers.master(brokers.other, brokers.hung)
        await waiting
        assert [sent.body for sent in brokers.other.sent] == [b"1"]


async def test_a_send_to_one_queue_ends_in_its_time_when_nobody_is_master() -> None:
    async with moving() as (brokers, producer):
        brokers.hung.refuse(ResponseCode.SYSTEM_BUSY, RefusalReason.NOT_MASTER)
        with pytest.raises(BrokerUnavailable, match="answered code 2") as raised:
            await producer.send(Message("topic", b"1"), 1000, queue=QUEUE)
        assert isinstance(raised.value.__cause__, BrokerError)
        assert len(brokers.hung.sent) > 1


async def test_a_send_to_one_queue_that_is_refused_is_not_sent_again() -> None:
    async with moving() as (brokers, producer):
        brokers.hung.answer = ResponseCode.SYSTEM_BUSY
        with pytest.raises(BrokerError, match="as scripted"):
            await producer.send(Message("topic", b"1"), queue=QUEUE)
        assert len(brokers.hung.sent) == 1
