"""Conditions for a new request of a topic's route: brokers that reject requests, are lost, or hang."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from scripted import ScriptedGroupBroker, ScriptedNameServer, serving
from scripted_producer import ProducerBroker
from wait_until import until

from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import BrokerUnavailable, RefusalReason
from gantrymq.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.message import Message, MessageExt
from gantrymq.protocol.private_fields import REASON_FIELD
from gantrymq.remoting.connection import Connection, RequestHandler


class HangingBroker(ScriptedGroupBroker):
    """A broker that, while it `hangs`, accepts connections without a response, as after SIGSTOP."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs = False

    def handlers(self) -> dict[int, RequestHandler]:
        return {code: self._unless_it_hangs(handler) for code, handler in super().handlers().items()}

    def _unless_it_hangs(self, handler: RequestHandler) -> RequestHandler:
        def handle(connection: Connection, request: RemotingCommand) -> object:
            reply = handler(connection, request)
            return None if self.hangs else reply

        return handle  # type: ignore[return-value]


def route(addresses: dict[int, str]) -> TopicRouteData:
    """Returns a route with one queue of a broker with these replicas."""
    return TopicRouteData([QueueData("broker", 1, 1, 6)], [BrokerData("cluster", "broker", addresses)])


async def handle(message: MessageExt) -> None:
    """Does nothing."""


@asynccontextmanager
async def consuming(
    name_server: ScriptedNameServer, first: ScriptedGroupBroker, second: ScriptedGroupBroker, **options: Any
) -> AsyncIterator[PushConsumer]:
    async with serving([name_server, first, second]):
        name_server.routes["topic"] = route({0: first.address})
        consumer = PushConsumer(name_server.address, "group", handle, start_from="earliest", **options)
        consumer.subscribe("topic")
        async with consumer:
            await until(lambda: first.pulls)
            yield consumer


async def test_a_consumer_leaves_a_master_that_hangs(tmp_path: Path) -> None:
    """Otherwise its pulls would wait for half a minute, because no error occurs."""
    name_server, hung, other = ScriptedNameServer({}), HangingBroker(), ScriptedGroupBroker()
    # The pulls are the only requests of a broadcasting consumer.
    async with consuming(name_server, hung, other, broadcasting=True, offset_directory=tmp_path):
        hung.hangs = True
        name_server.routes["topic"] = route({0: other.address})
        # After 3 s of silence the client sends a heartbeat, after 6 s it closes the connection and requests the route.
        await until(lambda: other.pulls, 12)


async def test_a_long_poll_of_a_live_broker_goes_on(tmp_path: Path) -> None:
    name_server, broker, other = ScriptedNameServer({}), ScriptedGroupBroker(), ScriptedGroupBroker()
    async with consuming(name_server, broker, other, broadcasting=True, offset_directory=tmp_path):
        before = broker.heartbeats
        # Two heartbeats that the client sends because no bytes arrive.
        await until(lambda: broker.heartbeats >= before + 2, 25)
        assert len(broker.pulls) == 1


async def test_a_consumer_follows_a_lost_broker_that_has_left_the_route() -> None:
    """Otherwise the client would request the route only after half a minute."""
    name_server, first, second = ScriptedNameServer({}), ScriptedGroupBroker(), ScriptedGroupBroker()
    async with consuming(name_server, first, second):
        name_server.routes["topic"] = TopicRouteData()
        await first.server.stop()
        await until(lambda: name_server.asked[-2:] == ["topic", "topic"])
        # A time without any broker, as during an election.
        asked = name_server.asked.count("topic")
        await until(lambda: name_server.asked.count("topic") > asked + 2)
        name_server.routes["topic"] = route({0: second.address})
        await until(lambda: second.pulls, 4)


async def test_a_consumer_asks_who_is_master_instead_of_a_slave() -> None:
    name_server, first, second = ScriptedNameServer({}), ScriptedGroupBroker(), ScriptedGroupBroker()
    first.more = {REASON_FIELD: RefusalReason.NOT_MASTER}
    first.pull_answers = [(ResponseCode.SYSTEM_BUSY, 0, b"")] * 3
    async with consuming(name_server, first, second):
        name_server.routes["topic"] = route({0: second.address, 1: first.address})
        await until(lambda: second.pulls, 4)


async def test_requests_for_a_route_are_bounded() -> None:
    """The number of failing sends must not matter. Without a limit, 50 parallel sends of 2 s cause 2000 requests."""
    broker = ProducerBroker()
    broker.refuse(ResponseCode.SYSTEM_BUSY, RefusalReason.NOT_MASTER)
    name_server = ScriptedNameServer({})
    async with serving([name_server, broker]):
        name_server.routes["topic"] = route({0: broker.address})
        async with Producer(name_server.address, "producers", retry_times=0) as producer:
            outcomes = await asyncio.gather(
                *(producer.send(Message("topic", b"%d" % n), timeout=2) for n in range(50)), return_exceptions=True
            )
    assert {type(outcome) for outcome in outcomes} == {BrokerUnavailable}
    assert 2 < name_server.asked.count("topic") < 30


async def test_a_producer_with_several_brokers_asks_in_the_background() -> None:
    deposed, healthy, successor = (
        ProducerBroker("broker-a", ResponseCode.SYSTEM_BUSY),
        ProducerBroker("broker-b"),
        ProducerBroker("broker-a"),
    )
    deposed.refuse(ResponseCode.SYSTEM_BUSY, RefusalReason.NOT_MASTER)
    name_server = ScriptedNameServer({})

    def route_with(master: ProducerBroker) -> TopicRouteData:
        brokers = (master, healthy)
        return TopicRouteData(
            [QueueData(broker.name, 1, 1, 6) for broker in brokers],
            [BrokerData("cluster", broker.name, {0: broker.address}) for broker in brokers],
        )

    async with serving([name_server, deposed, healthy, successor]):
        name_server.routes["topic"] = route_with(deposed)
        options = {"retry_times": 0, "send_latency_fault_enable": False}
        async with Producer(name_server.address, "producers", **options) as producer:  # type: ignore[arg-type]
            await producer.client.routes.get("topic")
            name_server.routes["topic"] = route_with(successor)
            while not deposed.sent:
                try:
                    await producer.send(Message("topic", b"1"))
                except BrokerUnavailable:
                    break
            await until(lambda: producer.client.routes.master_address("broker-a") == successor.address, 4)
            for _ in range(2):
                await producer.send(Message("topic", b"2"))
    assert [sent.body for sent in successor.sent] == [b"2"]
