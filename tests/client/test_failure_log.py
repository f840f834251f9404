"""An unreachable server causes only a few log lines."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest
from constants import change_constant
from ports import free_port
from scripted import ScriptedGroupBroker, ScriptedNameServer, route_over, serving
from wait_until import until

from gantrymq.client import failure_log as failure_log_module
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.failure_log import LOG_INTERVAL_S, FailureLog
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import BrokerError, ConnectFailed, GantryError, RequestTimeout
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.message import MessageExt
from gantrymq.remoting.listener import ListenOptions
from gantrymq.remoting.server import RemotingServer


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Returns the lines of this thread's clients. Another test's client may still run in its own thread."""
    own = threading.get_ident()
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == failure_log_module.__name__ and record.thread == own
    ]


def test_one_line_a_minute_and_one_when_it_is_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    now = 1000.0
    monkeypatch.setattr(failure_log_module, "monotonic", lambda: now)
    failure_log = FailureLog()
    for _ in range(100):
        failure_log.report("can't pull", ConnectFailed("nobody listens", "a:1"))
        failure_log.report("can't commit", RequestTimeout("no answer", "a:1"))
    assert lines(caplog) == ["can't pull: nobody listens"]
    now += LOG_INTERVAL_S
    failure_log.report("can't pull", ConnectFailed("nobody listens", "a:1"))
    assert lines(caplog)[1:] == ["can't pull: nobody listens (201 failures like it in 60 s)"]
    failure_log.recovered("another:1")
    failure_log.recovered("a:1")
    failure_log.recovered("a:1")
    assert lines(caplog)[2:] == ["a:1 works again, after 201 failures in 60 s"]


def test_other_servers_and_other_failures_are_told(caplog: pytest.LogCaptureFixture) -> None:
    failure_log = FailureLog()
    for error in (
        ConnectFailed("nobody listens", "a:1"),
        ConnectFailed("nobody listens", "b:1"),
        BrokerError(17, "no topic", "a:1"),
        BrokerError(16, "no permission", "a:1"),
        ValueError("of a hook"),
    ):
        failure_log.report("can't pull", error)
        failure_log.report("can't pull", error)
    assert len(lines(caplog)) == 5


async def test_a_broker_that_is_away_and_comes_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gantrymq")
    change_constant(monkeypatch, "queue_puller.RETRY_DELAY_S", 0.01)

    async def handle(message: MessageExt) -> None:
        """Does nothing."""

    port = free_port()
    broker, name_server = ScriptedGroupBroker(port=port), ScriptedNameServer({})
    async with serving([name_server]):
        await broker.server.start()
        name_server.routes["topic"] = route_over({"broker": broker.address}, queue_nums=8)
        consumer = PushConsumer(name_server.address, "group", handle)
        consumer.subscribe("topic")
        async with consumer:
            await until(lambda: len(broker.pulls) == 8)
            await broker.server.stop()
            await asyncio.sleep(1)
            back = ScriptedGroupBroker(port=port)
            async with serving([back]):
                await until(lambda: any("works again" in line for line in lines(caplog)))
                await consumer.close()
    told = lines(caplog)
    assert len([line for line in told if "works again" not in line]) <= 2
    assert len(told) <= 4


async def test_a_close_is_no_trouble(caplog: pytest.LogCaptureFixture) -> None:
    """A pending route request must not cause a warning about the closed connection."""
    server = RemotingServer(
        {RequestCode.GET_ROUTEINFO_BY_TOPIC: lambda connection, request: None}, ListenOptions("127.0.0.1")
    )
    await server.start()
    try:
        producer = Producer(f"127.0.0.1:{server.port}", "producers")
        await producer.start()
        asking = asyncio.ensure_future(producer.queues("topic"))
        await until(lambda: producer.client.remoting._connections)
        await producer.close()
        with pytest.raises(GantryError):
            await asking
    finally:
        await server.stop()
    assert lines(caplog) == []
