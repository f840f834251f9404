"""Consumers that cannot work report it: at the start, to callbacks, and in `health`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from broken_records import LogBroker, good, serving_topic
from constants import change_constant
from inbox import Inbox
from leftovers import nothing_left
from scripted import ScriptedGroupBroker, ScriptedNameServer, route_over, serving
from wait_until import until

from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import BrokerError, ClientClosed, ClientError, NoRouteInfo, RemotingError
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.message import Message, MessageExt, MessageQueue
from gantrymq.remoting.connection import Connection, RequestHandler
from gantrymq.remoting.listener import ListenOptions
from gantrymq.remoting.server import RemotingServer


async def handle(message: MessageExt) -> None:
    """Does nothing."""


KINDS: dict[str, Callable[..., Any]] = {
    "push": lambda to, **options: PushConsumer(to, "group", handle, **options),
    "orderly": lambda to, **options: PushConsumer(to, "group", handle, orderly=True, **options),
    "lite": lambda to, **options: LitePullConsumer(to, "group", **options),
    "simple": lambda to, **options: SimpleConsumer(to, "group", **options),
}


def subscribed(kind: str, to: str, sql: str | None = None, topic: str = "topic", **options: object) -> Any:
    consumer = KINDS[kind](to, **options)
    consumer.subscribe(topic, sql=sql)
    return consumer


@pytest.fixture
def _short_start(monkeypatch: pytest.MonkeyPatch) -> None:
    change_constant(monkeypatch, "introduction.START_S", 0.4)


@pytest.mark.usefixtures("_short_start")
@pytest.mark.parametrize("kind", KINDS)
async def test_no_name_server_is_an_error_of_the_start(kind: str) -> None:
    async with nothing_left():
        with pytest.raises(RemotingError):
            await subscribed(kind, "127.0.0.1:1").start()


@pytest.mark.usefixtures("_short_start")
async def test_a_name_server_that_is_silent() -> None:
    silent = RemotingServer(
        {RequestCode.GET_ROUTEINFO_BY_TOPIC: lambda connection, request: None}, ListenOptions("127.0.0.1")
    )
    await silent.start()
    try:
        async with nothing_left():
            with pytest.raises(RemotingError, match="no NameServer has answered"):
                await subscribed("push", f"127.0.0.1:{silent.port}").start()
    finally:
        await silent.stop()


async def test_a_name_server_that_comes_a_moment_later() -> None:
    name_server, broker = ScriptedNameServer({}), ScriptedGroupBroker()
    port = name_server.server.port
    consumer = subscribed("push", f"127.0.0.1:{port}")
    starting = asyncio.ensure_future(consumer.start())
    await asyncio.sleep(0)
    async with serving([name_server, broker]):
        name_server.routes["topic"] = route_over({"broker": broker.address})
        await starting
        await until(lambda: broker.pulls)
        await consumer.close()


class Refusing(ScriptedGroupBroker):
    def __init__(self, code: RequestCode, answer: ResponseCode) -> None:
        self.refused, self.refusal = code, answer
        super().__init__()

    def handlers(self) -> dict[int, RequestHandler]:
        return super().handlers() | {self.refused: self._refuse}

    def _refuse(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response(self.refusal, "as scripted")


@pytest.mark.parametrize("kind", KINDS)
async def test_who_may_not_join_is_told_at_the_start(kind: str) -> None:
    name_server, broker = ScriptedNameServer({}), Refusing(RequestCode.HEART_BEAT, ResponseCode.NO_PERMISSION)
    async with serving([name_server, broker]), nothing_left():
        name_server.routes["topic"] = route_over({"broker": broker.address})
        with pytest.raises(BrokerError, match="code 16: as scripted"):
            await subscribed(kind, name_server.address).start()
    # The servers notice the closed connections a moment later.


@pytest.mark.parametrize("kind", KINDS)
async def test_a_wrong_filter_is_told_at_the_start(kind: str, name_server: str, topic: str) -> None:
    consumer = subscribed(kind, name_server, "a = (", topic=topic)
    with pytest.raises(BrokerError, match="a = \\("):
        await consumer.start()


async def test_a_wrong_filter_of_queues_that_are_assigned(name_server: str, topic: str, unique: str) -> None:
    async with LitePullConsumer(name_server, unique) as consumer:
        with pytest.raises(BrokerError, match="a = \\("):
            await consumer.assign(await consumer.queues(topic), sql="a = (")


async def test_a_topic_that_comes_later_is_waited_for(name_server: str, producer: Producer, unique: str) -> None:
    errors: list[Exception] = []
    inbox = Inbox()
    consumer = PushConsumer(name_server, unique, inbox, on_error=errors.append, start_from="earliest")
    consumer.subscribe(unique)
    async with consumer:
        assert isinstance(errors[0], NoRouteInfo)
        assert not consumer.health().is_ready
        with pytest.raises(ClientError, match="the last error was: no route info"):
            await consumer.wait_assigned(timeout=0.05)
        await producer.send(Message(unique, b"x"))
        queues = await consumer.wait_assigned()
        assert {queue.topic for queue in queues} == {unique}
        await until(lambda: inbox.messages)


@pytest.mark.parametrize("kind", ["push", "lite"])
async def test_the_close_ends_the_wait_for_queues(kind: str, name_server: str, unique: str) -> None:
    """The wait must not continue for its 30 s."""
    consumer = subscribed(kind, name_server, topic=unique)
    with pytest.raises(ClientClosed):
        await consumer.wait_assigned()
    async with consumer:
        waiting = [asyncio.ensure_future(consumer.wait_assigned()) for _ in range(2)]
        await asyncio.sleep(0)
    async with asyncio.timeout(5):
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ClientClosed, ClientClosed]


@pytest.mark.parametrize("kind", ["push", "lite"])
def test_waits_for_queues_in_each_life(kind: str, name_server: str, unique: str) -> None:
    """The second start uses another event loop."""

    async def live() -> None:
        async with consumer:
            for _ in range(2):
                with pytest.raises(ClientError, match=r"no queue in 0\.05 s"):
                    await consumer.wait_assigned(timeout=0.05)

    consumer = subscribed(kind, name_server, topic=unique)
    for _ in range(2):
        asyncio.run(live())


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize("kind", ["push", "lite"])
async def test_callbacks_are_told_of_queues(kind: str, is_async: bool, name_server: str, topic: str) -> None:
    told: list[tuple[str, set[MessageQueue]]] = []

    def callback(name: str) -> Callable[[set[MessageQueue]], object]:
        def plain(queues: set[MessageQueue]) -> None:
            told.append((name, queues))
            raise ValueError("of the user")

        async def waits(queues: set[MessageQueue]) -> None:
            await asyncio.sleep(0)
            plain(queues)

        return waits if is_async else plain

    def make() -> Any:
        return subscribed(
            kind, name_server, topic=topic, on_assigned=callback("assigned"), on_revoked=callback("revoked")
        )

    first, second = make(), make()
    async with first:
        everything = await first.wait_assigned()
        await until(lambda: len(told) == 1)
        assert told == [("assigned", everything)]
        assert len(everything) == 4
        told.clear()
        async with second:
            mine = await second.wait_assigned()
            await until(lambda: len(first.assignment & everything) == 2)
            await until(lambda: len(told) >= 2)
            assert sorted(told) == [("assigned", mine), ("revoked", mine)]
            told.clear()
        assert told[0] == ("revoked", mine)
        await until(lambda: told[-1] == ("assigned", mine))
    assert told[-1] == ("revoked", everything)


async def test_who_is_told_of_queues_may_seek(name_server: str, producer: Producer, topic: str, unique: str) -> None:
    for number in range(8):
        await producer.send(Message(topic, b"%d" % number))

    async def to_begin(queues: set[MessageQueue]) -> None:
        for queue in queues:
            await consumer.seek_to_begin(queue)

    consumer = LitePullConsumer(name_server, unique, on_assigned=to_begin, start_from="latest")
    consumer.subscribe(topic)
    found: set[bytes] = set()

    async def all_there() -> bool:
        found.update(message.body for message in await consumer.poll(timeout=0.2))
        return len(found) == 8

    async with consumer:
        await until(all_there)


async def test_health_tells_of_queues_and_errors() -> None:
    errors: list[Exception] = []
    broker = LogBroker([good(0), good(1)])
    async with serving_topic(broker) as address:
        consumer = subscribed("push", address, on_error=errors.append, start_from="earliest")
        assert not consumer.health().is_open
        async with consumer:
            (queue,) = await consumer.wait_assigned()
            await until(lambda: consumer.health().queues[queue].lag == 0)
            health = consumer.health()
            assert health.is_ready
            assert list(health.queues) == [queue]
            assert abs(health.queues[queue].last_pull - time.time()) < 20
            assert health.last_error is None
            await broker.server.stop()
            await until(lambda: consumer.health().queues[queue].error)
            health = consumer.health()
            assert not health.is_ready
            assert isinstance(health.last_error, RemotingError)
            assert health.last_error_time > time.time() - 20
            assert errors
            assert len(errors) < 5
            await consumer.close(timeout=0.1)
    assert not consumer.health().is_open


async def test_a_callback_that_fails_ends_nothing(
    name_server: str, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(error: Exception) -> None:
        raise ValueError

    consumer = subscribed("push", name_server, topic=unique, on_error=fail)
    async with consumer:
        assert "fail failed" in caplog.text
