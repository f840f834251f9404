"""Meaningless responses to pulls: the consumer neither commits their offsets nor repeats the pull too often."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
from constants import change_constant
from scripted import ScriptedGroupBroker, record, serving_routes
from wait_until import until

from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.consuming.start_position import StartFrom
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.protocol.bodies.heartbeat import (
    CONSUME_FROM_LAST_OFFSET,
)
from gantrymq.protocol.bodies.offset import ResetOffsetBody
from gantrymq.protocol.bodies.pop import (
    MODE_POP,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    QueueAssignment,
)
from gantrymq.protocol.bodies.queue_map import QueueObject
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.headers.group import GroupRequestHeader
from gantrymq.protocol.headers.offset import OffsetResponseHeader, ResetOffsetRequestHeader
from gantrymq.protocol.headers.pull import PullMessageRequestHeader
from gantrymq.protocol.message import MessageExt
from gantrymq.remoting.connection import Connection, RequestHandler


async def ignore(message: MessageExt) -> None:
    """Does nothing."""


@asynccontextmanager
async def consuming(broker: ScriptedGroupBroker, start_from: StartFrom = "earliest") -> AsyncIterator[PushConsumer]:
    async with serving_routes(broker) as address:
        consumer = PushConsumer(address, "group", ignore, start_from=start_from)
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
    change_constant(monkeypatch, "queue_puller.RETRY_DELAY_S", 0.01)
    broker = ScriptedGroupBroker([(ResponseCode.SUCCESS, 2, record(0) + record(1)), (code, offset, records)])
    broker.pull_answers.append((ResponseCode.PULL_NOT_FOUND, 2, b""))
    async with consuming(broker):
        await until(lambda: len(broker.pulls) == 4)
    assert [pull.queue_offset for pull in broker.pulls] == [0, 2, 2, 2]
    assert broker.committed == {("topic", 0): 2}
    assert "can't pull" in caplog.text


class ShortPolling(ScriptedGroupBroker):
    """Responds to each pull at once, without messages."""

    def _pull(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        if not self.pull_answers:
            self.pull_answers.append((ResponseCode.PULL_NOT_FOUND, 0, b""))
        return super()._pull(connection, request)


async def test_a_broker_that_holds_no_pulls_is_asked_less_and_less_often() -> None:
    broker = ShortPolling()
    async with consuming(broker):
        await until(lambda: broker.pulls)
        await asyncio.sleep(2)
    # The delays grow: 20, 40, 80 ms and so on, up to a second.
    assert len(broker.pulls) < 15


class Ping(ScriptedGroupBroker):
    """Responds to each pull with another offset."""

    def _pull(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        offset = request.read_header(PullMessageRequestHeader).queue_offset
        self.pull_answers = [(ResponseCode.PULL_OFFSET_MOVED, 5 if offset == 0 else 0, b"")]
        return super()._pull(connection, request)


async def test_offsets_that_move_to_and_fro_are_not_followed_a_thousand_times_a_second() -> None:
    broker = Ping()
    async with consuming(broker):
        await until(lambda: len(broker.pulls) >= 2)
        await asyncio.sleep(1.5)
    assert {pull.queue_offset for pull in broker.pulls} == {0, 5}
    assert len(broker.pulls) < 10


class OddOffsets(ScriptedGroupBroker):
    """Returns invalid offsets for the first two requests."""

    def __init__(self, code: RequestCode) -> None:
        self.code = code
        self.asked = 0
        super().__init__()

    def handlers(self) -> dict[int, RequestHandler]:
        return super().handlers() | {self.code: self._odd}

    def _odd(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        self.asked += 1
        return RemotingCommand.response(header=OffsetResponseHeader(offset=-5 if self.asked < 3 else 3))


@pytest.mark.parametrize(
    ("code", "start_from"),
    [
        (RequestCode.GET_MAX_OFFSET, CONSUME_FROM_LAST_OFFSET),
        (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, datetime(2026, 1, 2, tzinfo=UTC)),
    ],
)
async def test_a_negative_offset_is_asked_for_again(
    code: RequestCode, start_from: StartFrom, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    change_constant(monkeypatch, "rebalancer.RETRY_INTERVAL_S", 0.01)
    broker = OddOffsets(code)
    async with consuming(broker, start_from):
        await until(lambda: broker.pulls)
    assert broker.pulls[0].queue_offset == 3
    assert broker.asked == 3
    assert all(offset == 3 for offset in broker.committed.values())
    assert "-5" in caplog.text


async def test_a_negative_committed_offset_means_never_consumed() -> None:
    broker = OddOffsets(RequestCode.QUERY_CONSUMER_OFFSET)
    async with consuming(broker, "earliest"):
        await until(lambda: broker.pulls)
    assert (broker.pulls[0].queue_offset, broker.asked) == (0, 1)


async def test_an_operators_negative_offset_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    broker = ScriptedGroupBroker()
    async with consuming(broker) as consumer:
        await until(lambda: broker.pulls)
        header = ResetOffsetRequestHeader(topic="topic", group="group", timestamp=0, is_force=True)
        body = ResetOffsetBody(dict.fromkeys(consumer.assignment, -5)).encode()
        request = RemotingCommand.request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, body)
        for connection in list(broker.server.connections):
            connection.send_oneway(request)
        await until(lambda: "-5" in caplog.text)
    assert not any(offset < 0 for offset in broker.committed.values())


class PopsNothing(ScriptedGroupBroker):
    """Responds to each pop at once, without messages."""

    def __init__(self) -> None:
        self.pops = 0
        super().__init__()

    def handlers(self) -> dict[int, RequestHandler]:
        return super().handlers() | {
            RequestCode.POP_MESSAGE: self._pop,
            RequestCode.QUERY_ASSIGNMENT: self._assignment,
        }

    def _pop(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        self.pops += 1
        return RemotingCommand.response(ResponseCode.PULL_NOT_FOUND)

    def _assignment(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        topic = decode_json(request.body, QueryAssignmentRequestBody).topic
        if topic != "topic":
            return RemotingCommand.response(body=encode_json(QueryAssignmentResponseBody([])))
        assigned = QueueAssignment(QueueObject("broker", -1, "topic"), MODE_POP)
        return RemotingCommand.response(body=encode_json(QueryAssignmentResponseBody([assigned])))


async def test_a_broker_that_holds_no_pops_is_asked_less_and_less_often() -> None:
    broker = PopsNothing()
    async with serving_routes(broker) as address:
        consumer = PushConsumer(address, "group", ignore, client_rebalance=False)
        consumer.subscribe("topic")
        async with consumer:
            await until(lambda: broker.pops)
            await asyncio.sleep(1.5)
    assert broker.pops < 15


async def test_a_receive_asks_such_a_broker_few_times() -> None:
    broker = PopsNothing()
    async with serving_routes(broker) as address:
        consumer = SimpleConsumer(address, "group")
        consumer.subscribe("topic")
        async with consumer:
            assert await consumer.receive(timeout=1.5) == []
    assert broker.pops < 30


async def test_what_others_of_the_group_do_is_not_looked_at_a_thousand_times_a_second() -> None:
    broker = ScriptedGroupBroker()
    header = GroupRequestHeader(consumer_group="group")
    async with consuming(broker):
        await until(lambda: broker.pulls)
        asked = broker.asked_for_members
        began = time.monotonic()
        for _ in range(500):
            for connection in list(broker.server.connections):
                connection.send_oneway(RemotingCommand.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header))
            await asyncio.sleep(0.002)
        await until(lambda: broker.asked_for_members > asked)
        # Ten requests per second.
        assert broker.asked_for_members - asked < 20 * (time.monotonic() - began) + 5
