"""A master hangs and another broker takes over.

The producer queries the route, and stops waiting for the former master.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from constants import change_constant
from scripted import ScriptedNameServer, serving
from scripted_producer import ProducerBroker
from wait_until import until

from gantrymq.client.producing.producer import Producer
from gantrymq.errors import BrokerError, BrokerUnavailable, RefusalReason, SendOutcomeUnknown
from gantrymq.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.message import Message, MessageQueue
from gantrymq.system.clock import monotonic

QUEUE = MessageQueue("topic", "broker", 0)


class Brokers:
    """Two brokers of one name. The first one is master and does not respond to sends."""

    def __init__(self) -> None:
        self.hung = ProducerBroker(answer=None)
        self.other = ProducerBroker()
        self.name_server = ScriptedNameServer({})

    def master(self, master: ProducerBroker, slave: ProducerBroker) -> None:
        addresses = {0: master.address, 1: slave.address}
        self.name_server.routes["topic"] = TopicRouteData(
            [QueueData("broker", 1, 1, 6)], [BrokerData("cluster", "broker", addresses)]
        )

    def without_master(self) -> None:
        self.name_server.routes["topic"] = TopicRouteData(
            [QueueData("broker", 1, 1, 6)], [BrokerData("cluster", "broker", {1: self.other.address})]
        )


@asynccontextmanager
async def moving(**options: Any) -> AsyncIterator[tuple[Brokers, Producer]]:
    brokers = Brokers()
    async with serving([brokers.name_server, brokers.hung, brokers.other]):
        brokers.master(brokers.hung, brokers.other)
        async with Producer(brokers.name_server.address, "producers", **options) as producer:
            yield brokers, producer


async def test_the_route_is_asked_for_while_the_broker_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    change_constant(monkeypatch, "client_instance.RECONNECT_S", 0.01)
    async with moving() as (brokers, producer):
        await producer.client.routes.get("topic")
        await producer.client.greet_new_brokers()
        brokers.hung.hangs = True
        # After this timeout, the connection counts as lost.
        with pytest.raises(SendOutcomeUnknown):
            await producer.send(Message("topic", b"1"), timeout=1, queue=QUEUE)
        brokers.master(brokers.other, brokers.hung)
        routes = producer.client.routes
        await until(lambda: routes.master_address("broker") == brokers.other.address, 10)
        await producer.send(Message("topic", b"2"), timeout=1, queue=QUEUE)
        assert [sent.body for sent in brokers.other.sent] == [b"2"]


async def test_nobody_waits_for_a_former_master_that_hangs() -> None:
    async with moving() as (brokers, producer):
        brokers.hung.hangs = True
        waiting = asyncio.ensure_future(producer.send(Message("topic", b"1"), timeout=30, queue=QUEUE))
        await until(lambda: brokers.hung.sent)
        brokers.master(brokers.other, brokers.hung)
        await producer.client.routes.refresh("topic")
        with pytest.raises(SendOutcomeUnknown):
            await asyncio.wait_for(waiting, 5.0)


async def test_the_route_is_requested_while_a_send_waits_for_a_hung_master(caplog: pytest.LogCaptureFixture) -> None:
    async with moving() as (brokers, producer):
        await producer.client.routes.get("topic")
        await producer.client.greet_new_brokers()
        brokers.hung.hangs = True
        waiting = asyncio.ensure_future(producer.send(Message("topic", b"1"), timeout=30))
        await until(lambda: brokers.hung.sent)
        brokers.master(brokers.other, brokers.hung)
        await waiting
        assert [sent.body for sent in brokers.other.sent] == [b"1"]
        # The change of the route ended the wait, not the longer silence that closes the connection.
        assert "has sent nothing for" not in caplog.text


async def test_a_former_master_that_lives_answers_itself() -> None:
    async with moving() as (brokers, producer):
        waiting = asyncio.ensure_future(producer.send(Message("topic", b"1"), timeout=30, queue=QUEUE))
        await until(lambda: brokers.hung.sent)
        brokers.master(brokers.other, brokers.hung)
        client = producer.client
        await client.routes.refresh("topic")
        # Any response shows that the broker does not hang.
        await client.greet_again(brokers.hung.address)
        await until(lambda: not client._former)
        assert not waiting.done()
        waiting.cancel()


async def test_a_send_to_one_queue_follows_the_master() -> None:
    """After a handover, the rejected sends are the only sign of it. The producer must not retry for half a minute."""
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
            await producer.send(Message("topic", b"1"), timeout=1, queue=QUEUE)
        assert isinstance(raised.value.__cause__, BrokerError)
        assert len(brokers.hung.sent) > 1


async def test_a_send_to_one_queue_that_is_refused_is_not_sent_again() -> None:
    async with moving() as (brokers, producer):
        brokers.hung.answer = ResponseCode.SYSTEM_BUSY
        with pytest.raises(BrokerError, match="as scripted"):
            await producer.send(Message("topic", b"1"), queue=QUEUE)
        assert len(brokers.hung.sent) == 1


async def test_a_send_goes_to_a_broker_that_has_returned_to_the_route() -> None:
    """The only known broker loses its master during a send. Then another broker of the topic registers."""
    returned = ProducerBroker("returned")
    async with moving(try_timeout=0.2) as (brokers, producer), serving([returned]):
        waiting = asyncio.ensure_future(producer.send(Message("topic", b"1"), timeout=10))
        await until(lambda: brokers.hung.sent)
        brokers.without_master()
        asked = len(brokers.name_server.asked)
        # One request after the timeout of the first attempt, and others because the broker has no master.
        await until(lambda: len(brokers.name_server.asked) >= asked + 3)
        assert not waiting.done()
        brokers.name_server.routes["topic"] = TopicRouteData(
            [QueueData("returned", 1, 1, 6)], [BrokerData("cluster", "returned", {0: returned.address})]
        )
        assert (await waiting).queue.broker_name == "returned"


async def test_one_of_two_brokers_that_have_returned_hangs() -> None:
    """The timeout of an attempt follows the route: the other broker gets a part of it."""
    hanging, other = ProducerBroker("hanging", answer=None), ProducerBroker("other")
    async with moving() as (brokers, producer), serving([hanging, other]):
        brokers.hung.refuse(ResponseCode.SYSTEM_BUSY, RefusalReason.NOT_MASTER)
        waiting = asyncio.ensure_future(producer.send(Message("topic", b"1"), timeout=10))
        await until(lambda: brokers.hung.sent)
        brokers.name_server.routes["topic"] = TopicRouteData(
            [QueueData("hanging", 1, 1, 6), QueueData("other", 1, 1, 6)],
            [
                BrokerData("cluster", "hanging", {0: hanging.address}),
                BrokerData("cluster", "other", {0: other.address}),
            ],
        )
        assert (await waiting).queue.broker_name == "other"


async def test_a_send_waits_for_a_master_for_all_of_its_timeout() -> None:
    """`try_timeout` limits a request, and not the wait for a master."""
    async with moving(try_timeout=0.2) as (brokers, producer):
        began = monotonic()
        waiting = asyncio.ensure_future(producer.send(Message("topic", b"1"), timeout=2))
        await until(lambda: brokers.hung.sent)
        brokers.without_master()
        with pytest.raises(SendOutcomeUnknown, match="may be stored"):
            await waiting
        assert monotonic() - began > 1.8
