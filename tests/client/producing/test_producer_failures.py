from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from scripted import SILENT, ScriptedBroker, ScriptedNameServer, route_over, serving
from wait_until import until

from gantrymq.client.broker_api import SendStatus
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import (
    BrokerError,
    BrokerUnavailable,
    ClientClosed,
    ClientError,
    ConnectFailed,
    NoRouteInfo,
    RequestTimeout,
    SendOutcomeUnknown,
)
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.message import Message, MessageQueue
from gantrymq.remoting.listener import ListenOptions
from gantrymq.remoting.server import RemotingServer

MESSAGE = Message("topic", b"body")


@asynccontextmanager
async def producer_over(*brokers: ScriptedBroker) -> AsyncIterator[Producer]:
    name_server = ScriptedNameServer({})
    async with serving([name_server, *brokers]):
        name_server.routes["topic"] = route_over({broker.name: broker.address for broker in brokers})
        async with Producer(name_server.address, "producers") as producer:
            yield producer


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_ERROR, ResponseCode.NO_PERMISSION])
async def test_a_broker_in_trouble_is_avoided(code: ResponseCode) -> None:
    good, bad = ScriptedBroker("good"), ScriptedBroker("bad", code)
    async with producer_over(good, bad) as producer:
        for _ in range(8):
            assert (await producer.send(MESSAGE)).queue.broker_name == "good"
    assert len(good.sends) == 8
    assert bad.sends


async def test_an_unreachable_broker_is_avoided() -> None:
    good, gone = ScriptedBroker("good"), ScriptedBroker("gone")
    async with producer_over(good, gone) as producer:
        await gone.server.stop()
        for _ in range(8):
            assert (await producer.send(MESSAGE)).queue.broker_name == "good"


async def test_gives_up_after_three_tries() -> None:
    bad = ScriptedBroker("bad", ResponseCode.SYSTEM_BUSY)
    async with producer_over(bad) as producer:
        with pytest.raises(BrokerError, match="as scripted") as raised:
            await producer.send(MESSAGE)
    assert raised.value.code == ResponseCode.SYSTEM_BUSY
    assert "bad, bad, bad" in raised.value.__notes__[0]
    assert len(bad.sends) == 3


async def test_a_refused_message_is_not_tried_again() -> None:
    bad = ScriptedBroker("bad", ResponseCode.MESSAGE_ILLEGAL)
    async with producer_over(bad) as producer:
        with pytest.raises(BrokerError):
            await producer.send(MESSAGE)
    assert len(bad.sends) == 1


async def test_a_message_for_one_queue_is_not_tried_again() -> None:
    bad = ScriptedBroker("bad", ResponseCode.SYSTEM_BUSY)
    async with producer_over(bad) as producer:
        with pytest.raises(BrokerError):
            await producer.send(MESSAGE, queue=(await producer.queues("topic"))[1])
    assert bad.sends == [1]


async def test_the_timeout_is_for_all_tries_together() -> None:
    silent = ScriptedBroker("silent", SILENT)
    async with producer_over(silent) as producer:
        await producer.queues("topic")
        start = time.monotonic()
        with pytest.raises(SendOutcomeUnknown):
            await producer.send(MESSAGE, timeout=0.5)
        assert time.monotonic() - start >= 0.45
    assert len(silent.sends) == 1


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ResponseCode.FLUSH_DISK_TIMEOUT, SendStatus.FLUSH_DISK_TIMEOUT),
        (ResponseCode.FLUSH_SLAVE_TIMEOUT, SendStatus.FLUSH_SLAVE_TIMEOUT),
        (ResponseCode.SLAVE_NOT_AVAILABLE, SendStatus.SLAVE_NOT_AVAILABLE),
    ],
)
async def test_a_stored_message_is_a_result_even_if_not_safe(code: ResponseCode, status: SendStatus) -> None:
    broker = ScriptedBroker("broker", code)
    async with producer_over(broker) as producer:
        assert (await producer.send(MESSAGE)).status == status
    assert len(broker.sends) == 1


async def test_an_unknown_topic_goes_to_the_brokers_that_create_topics() -> None:
    broker = ScriptedBroker("broker")
    name_server = ScriptedNameServer({})
    async with serving([name_server, broker]):
        name_server.routes["TBW102"] = route_over({"broker": broker.address}, queue_nums=8)
        async with Producer(name_server.address, "producers", default_topic_queue_nums=3) as producer:
            results = [await producer.send(MESSAGE) for _ in range(6)]
    assert {result.queue.queue_id for result in results} == {0, 1, 2}
    assert name_server.asked == ["topic", "TBW102"]


async def test_an_unknown_topic_that_nobody_creates_is_an_error() -> None:
    name_server = ScriptedNameServer({})
    async with serving([name_server]), Producer(name_server.address, "producers") as producer:
        with pytest.raises(NoRouteInfo, match="'topic'"):
            await producer.send(MESSAGE)


async def test_a_topic_without_a_writable_queue_is_an_error() -> None:
    route = route_over({"broker": "127.0.0.1:1"})
    route.queue_datas[0].perm = 4
    name_server = ScriptedNameServer({"topic": route})
    async with serving([name_server]), Producer(name_server.address, "producers") as producer:
        with pytest.raises(ClientError, match="no write permission"):
            await producer.send(MESSAGE)


async def test_a_topic_whose_broker_has_no_master_is_unavailable_for_a_while() -> None:
    """It must not be a ClientError, because the caller has nothing to correct."""
    broker = ScriptedBroker("broker")
    route = route_over({"broker": broker.address})
    name_server = ScriptedNameServer({"topic": route_over({"broker": broker.address})})
    name_server.routes["topic"].broker_datas[0].broker_addrs = {2: "127.0.0.1:1"}
    async with serving([name_server, broker]), Producer(name_server.address, "producers") as producer:
        # On a busy machine, the first request for the route can take longer than the timeout of the send.
        await producer.client.routes.refresh("topic")
        with pytest.raises(BrokerUnavailable, match="no writable queue on a broker with a master"):
            await producer.send(MESSAGE, timeout=0.3)
        for queue in (None, MessageQueue("topic", "broker", 0)):
            name_server.routes["topic"] = route_over({"broker": broker.address})
            name_server.routes["topic"].broker_datas[0].broker_addrs = {2: "127.0.0.1:1"}
            await producer.client.routes.refresh("topic")
            sending = asyncio.ensure_future(producer.send(MESSAGE, timeout=20, queue=queue))
            asked = len(name_server.asked)
            await until(lambda asked=asked: len(name_server.asked) > asked)
            name_server.routes["topic"] = route
            # The client requests the route until a broker is master.
            await asyncio.wait_for(sending, 5)
    assert len(broker.sends) == 2


async def test_no_name_server_is_an_error() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        async with Producer(f"127.0.0.1:{unused.getsockname()[1]}", "producers") as producer:
            with pytest.raises(ConnectFailed):
                await producer.send(MESSAGE)


async def test_a_producer_works_between_start_and_close() -> None:
    producer = Producer("127.0.0.1:1", "producers")
    with pytest.raises(ClientClosed):
        await producer.send(MESSAGE)
    await producer.start()
    await producer.close()
    with pytest.raises(ClientClosed):
        await producer.send(MESSAGE)


async def test_a_silent_name_server_takes_no_longer_than_the_timeout() -> None:
    async with silent_server() as address, Producer(address, "producers") as producer:
        start = time.monotonic()
        with pytest.raises(RequestTimeout, match="no route of topic"):
            await producer.send(MESSAGE, timeout=0.2)
        assert time.monotonic() - start < 2.5


@asynccontextmanager
async def silent_server() -> AsyncIterator[str]:
    server = RemotingServer(
        {RequestCode.GET_ROUTEINFO_BY_TOPIC: lambda connection, request: None}, ListenOptions("127.0.0.1")
    )
    await server.start()
    yield f"127.0.0.1:{server.port}"
    await server.stop()
