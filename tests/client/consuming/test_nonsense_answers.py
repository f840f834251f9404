"""Answers to pulls that make no sense: neither committed, nor asked for a thousand times a second."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from scripted import ScriptedGroupBroker, ScriptedNameServer, route_over, serving
from waiting import until

from gantrymq.client.consuming import queue_puller
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.protocol.bodies.heartbeat import CONSUME_FROM_FIRST_OFFSET
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.message import MessageExt
from gantrymq.protocol.record import encode_host, encode_record
from gantrymq.remoting.connection import Connection

HOST = encode_host("127.0.0.1", 10911)


def record(offset: int) -> bytes:
    return encode_record(0, 0, offset, 5000 + offset, 0, 1, HOST, 2, HOST, 0, 0, b"body", b"topic", b"")


async def ignore(message: MessageExt) -> None:
    """A handler."""


@asynccontextmanager
async def consuming(broker: ScriptedGroupBroker) -> AsyncIterator[PushConsumer]:
    name_server = ScriptedNameServer({})
    async with serving([name_server, broker]):
        name_server.routes["topic"] = route_over({"broker": broker.address}, queue_nums=1)
        consumer = PushConsumer(name_server.address, "group", ignore, consume_from_where=CONSUME_FROM_FIRST_OFFSET)
        consumer.subscribe("topic")
        async with consumer:
            yield consumer


@pytest.mark.parametrize("offset", [-5, 1, 2**62])
@pytest.mark.parametrize(
    ("code", "records"),
    [
        (ResponseCode.SUCCESS, record(2)),
        (ResponseCode.SUCCESS, b""),
        (ResponseCode.PULL_NOT_FOUND, b""),
        (ResponseCode.PULL_RETRY_IMMEDIATELY, b""),
        (ResponseCode.PULL_OFFSET_MOVED, b""),
    ],
)
async def test_an_impossible_offset_is_not_believed(
    code: ResponseCode, records: bytes, offset: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if code is ResponseCode.PULL_OFFSET_MOVED and offset == 1:
        pytest.skip("the broker may know better")
    monkeypatch.setattr(queue_puller, "RETRY_DELAY_S", 0.01)
    broker = ScriptedGroupBroker([(ResponseCode.SUCCESS, 2, record(0) + record(1)), (code, offset, records)])
    broker.pull_answers.append((ResponseCode.PULL_NOT_FOUND, 2, b""))
    async with consuming(broker):
        await until(lambda: len(broker.pulls) == 4)
    assert [pull.queue_offset for pull in broker.pulls] == [0, 2, 2, 2]
    assert broker.committed == {("topic", 0): 2}
    assert "can't pull" in caplog.text


class ShortPolling(ScriptedGroupBroker):
    """Answers each pull at once: there is nothing new."""

    def _pull(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        if not self.pull_answers:
            self.pull_answers.append((ResponseCode.PULL_NOT_FOUND, 0, b""))
        return super()._pull(connection, request)


async def test_a_broker_that_holds_no_pulls_is_asked_less_and_less_often() -> None:
    broker = ShortPolling()
    async with consuming(broker):
        await until(lambda: broker.pulls)
        await asyncio.sleep(2)
    # After 20, 40, 80 ... ms; once a second in the end.
    assert len(broker.pulls) < 15
