from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
from constants import change_constant
from scripted import ScriptedBroker, ScriptedGroupBroker, ScriptedNameServer, route_over, serving
from wait_until import until

from gantrymq.client.consuming.handler_pool import MessageHandler
from gantrymq.client.consuming.process_queue import FlowLimits
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.consuming.start_position import StartFrom
from gantrymq.protocol.bodies.heartbeat import (
    CONSUME_FROM_LAST_OFFSET,
)
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.message import MessageExt
from gantrymq.protocol.properties import decode_properties
from gantrymq.protocol.record import encode_host, encode_record
from gantrymq.remoting.connection import Connection

HOST = encode_host("127.0.0.1", 10911)


def record(queue_offset: int, body: bytes = b"body") -> bytes:
    return encode_record(0, 0, queue_offset, 5000 + queue_offset, 0, 1, HOST, 2, HOST, 0, 0, body, b"topic", b"")


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    change_constant(monkeypatch, "queue_puller.RETRY_DELAY_S", 0.01)
    change_constant(monkeypatch, "concurrently.RETRY_LOCALLY_S", 0.01)


class Handler:
    """A handler that fails the first `failures` times for every message."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.tries: list[tuple[int, int]] = []

    async def __call__(self, message: MessageExt) -> None:
        self.tries.append((message.queue_offset, message.reconsume_times))
        if len(self.tries) <= self.failures:
            raise ValueError("as scripted")


@asynccontextmanager
async def consuming(
    broker: ScriptedGroupBroker,
    handler: MessageHandler,
    start_from: StartFrom = "earliest",
    flow_limits: FlowLimits | None = None,
) -> AsyncIterator[PushConsumer]:
    """Starts a consumer of one queue. The retry topic has no route."""
    name_server = ScriptedNameServer({})
    async with serving([name_server, broker]):
        name_server.routes["topic"] = route_over({"broker": broker.address}, queue_nums=1)
        consumer = PushConsumer(
            name_server.address,
            "group",
            handler,
            start_from=start_from,
            flow_limits=flow_limits,
        )
        consumer.subscribe("topic")
        async with consumer:
            yield consumer


@pytest.mark.parametrize(
    ("start_from", "offset"),
    [
        ("earliest", 0),
        (CONSUME_FROM_LAST_OFFSET, ScriptedGroupBroker.MAX_OFFSET),
        (datetime(2026, 1, 2, tzinfo=UTC), ScriptedGroupBroker.OFFSET_BY_TIME),
    ],
)
async def test_where_a_new_group_begins(start_from: StartFrom, offset: int) -> None:
    broker = ScriptedGroupBroker()
    async with consuming(broker, Handler(), start_from):
        await until(lambda: broker.pulls)
    assert broker.pulls[0].queue_offset == offset
    assert broker.committed == {("topic", 0): offset}


@pytest.mark.parametrize(("max_messages", "asked_for"), [(1000, 256), (20, 20)])
async def test_how_many_are_pulled_at_once(max_messages: int, asked_for: int) -> None:
    broker = ScriptedGroupBroker()
    async with consuming(broker, Handler(), flow_limits=FlowLimits(max_messages)):
        await until(lambda: broker.pulls)
    pull = broker.pulls[0]
    assert pull.max_msg_nums == pull.bulk_msg_nums == asked_for
    assert pull.bulk_msg_bytes == 4 * 1024 * 1024


async def test_each_pull_goes_on_where_the_last_one_ended() -> None:
    broker = ScriptedGroupBroker(
        [
            (ResponseCode.PULL_NOT_FOUND, 0, b""),
            (ResponseCode.SUCCESS, 3, record(0) + record(2)),
            (ResponseCode.PULL_RETRY_IMMEDIATELY, 9, b""),
        ]
    )
    handler = Handler()
    async with consuming(broker, handler):
        await until(lambda: len(broker.pulls) == 4)
    assert [pull.queue_offset for pull in broker.pulls] == [0, 0, 3, 9]
    assert handler.tries == [(0, 0), (2, 0)]
    assert broker.committed == {("topic", 0): 9}


async def test_an_illegal_offset_is_corrected() -> None:
    broker = ScriptedGroupBroker([(ResponseCode.PULL_OFFSET_MOVED, 42, b"")])
    async with consuming(broker, Handler()):
        await until(lambda: len(broker.pulls) == 2)
    assert broker.pulls[1].queue_offset == 42
    assert broker.committed == {("topic", 0): 42}


async def test_what_a_queue_still_has_is_pulled_again_when_it_has_lost_its_end() -> None:
    """Unhandled messages are dropped with the rest, so they must be pulled again."""

    class Losing(ScriptedGroupBroker):
        def _pull(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
            if self.pulls:
                self.MAX_OFFSET = 5
            return super()._pull(connection, request)

    broker = Losing([(ResponseCode.SUCCESS, 8, record(3) + record(7)), (ResponseCode.PULL_OFFSET_MOVED, 5, b"")])
    go_on = asyncio.Event()

    async def handle(message: MessageExt) -> None:
        await go_on.wait()

    async with consuming(broker, handle):
        await until(lambda: len(broker.pulls) == 3)
        go_on.set()
    assert [pull.queue_offset for pull in broker.pulls] == [0, 8, 3]


async def test_what_was_pulled_before_the_correction_counts_no_more() -> None:
    """If offsets go back, late results of earlier messages must not be committed."""
    broker = ScriptedGroupBroker(
        [
            (ResponseCode.SUCCESS, 8, record(7)),
            (ResponseCode.PULL_OFFSET_MOVED, 2, b""),
            (ResponseCode.SUCCESS, 3, record(2)),
        ]
    )
    go_on = asyncio.Event()
    handled: list[int] = []

    async def handle(message: MessageExt) -> None:
        if message.queue_offset == 7:
            await go_on.wait()
        handled.append(message.queue_offset)

    async with consuming(broker, handle):
        await until(lambda: handled == [2])
        await until(lambda: len(broker.pulls) == 4)
        assert broker.committed == {("topic", 0): 2}
        go_on.set()
        await until(lambda: handled == [2, 7])
    assert broker.committed == {("topic", 0): 3}


@pytest.mark.parametrize("code", [ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST])
async def test_a_broker_that_forgot_the_group_is_told_again(code: ResponseCode) -> None:
    broker = ScriptedGroupBroker([(code, 0, b"")])
    async with consuming(broker, Handler()):
        await until(lambda: len(broker.pulls) == 2)
    assert broker.heartbeats >= 2


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_ERROR, ResponseCode.FLOW_CONTROL, ResponseCode.NO_PERMISSION])
async def test_a_failed_pull_is_repeated(code: ResponseCode) -> None:
    broker = ScriptedGroupBroker([(code, 0, b""), (ResponseCode.SUCCESS, 1, record(0))])
    handler = Handler()
    async with consuming(broker, handler):
        await until(lambda: handler.tries)
    assert [pull.queue_offset for pull in broker.pulls[:2]] == [0, 0]


async def test_a_damaged_answer_is_asked_for_again() -> None:
    broker = ScriptedGroupBroker([(ResponseCode.SUCCESS, 1, record(0)[:-3]), (ResponseCode.SUCCESS, 1, record(0))])
    handler = Handler()
    async with consuming(broker, handler):
        await until(lambda: handler.tries)
    assert handler.tries == [(0, 0)]


async def test_a_failed_message_is_sent_back_and_done_with() -> None:
    broker = ScriptedGroupBroker([(ResponseCode.SUCCESS, 2, record(0) + record(1))])
    async with consuming(broker, Handler(failures=1)):
        await until(lambda: broker.sent_back)
    (header,) = broker.sent_back
    assert (header.group, header.offset, header.origin_topic) == ("group", 5000, "topic")
    assert (header.delay_level, header.max_reconsume_times) == (0, 16)
    assert broker.committed == {("topic", 0): 2}


async def test_a_message_that_can_not_be_sent_back_is_tried_again_here() -> None:
    broker = ScriptedGroupBroker([(ResponseCode.SUCCESS, 1, record(0))])
    broker.send_back_code = ResponseCode.SYSTEM_ERROR
    handler = Handler(failures=2)
    async with consuming(broker, handler):
        await until(lambda: len(handler.tries) == 3)
    assert handler.tries == [(0, 0), (0, 1), (0, 2)]
    assert broker.committed == {("topic", 0): 1}


async def test_what_failed_and_could_not_be_sent_back_is_not_committed() -> None:
    broker = ScriptedGroupBroker([(ResponseCode.SUCCESS, 2, record(0) + record(1))])
    broker.send_back_code = ResponseCode.SYSTEM_ERROR
    handler = Handler(failures=1_000_000)
    async with consuming(broker, handler):
        await until(lambda: len(handler.tries) > 4)
    assert broker.committed == {("topic", 0): 0}


async def test_what_can_not_be_sent_back_is_sent_anew() -> None:
    broker = ScriptedGroupBroker([(ResponseCode.SUCCESS, 1, record(0))])
    broker.send_back_code = ResponseCode.SYSTEM_ERROR
    retries = ScriptedBroker("retries")
    name_server = ScriptedNameServer({})
    async with serving([name_server, broker, retries]):
        name_server.routes["topic"] = route_over({"broker": broker.address}, queue_nums=1)
        name_server.routes["%RETRY%group"] = route_over({"retries": retries.address}, queue_nums=1)
        consumer = PushConsumer(name_server.address, "group", Handler(failures=1), start_from="earliest")
        consumer.subscribe("topic")
        async with consumer:
            await until(lambda: retries.headers)
    (header,) = retries.headers
    assert (header.topic, header.reconsume_times, header.max_reconsume_times) == ("%RETRY%group", 1, 16)
    properties = decode_properties((header.properties or "").encode())
    assert (properties["RETRY_TOPIC"], properties["DELAY"]) == ("topic", "3")
    assert broker.committed == {("topic", 0): 1}


@pytest.mark.parametrize(
    ("sent_back", "sent_anew", "times_anew"),
    [
        (ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SUCCESS, 0),
        (ResponseCode.SYSTEM_ERROR, ResponseCode.FLUSH_SLAVE_TIMEOUT, 2),
    ],
)
async def test_what_a_master_alone_has_stored_again_is_kept(
    sent_back: ResponseCode, sent_anew: ResponseCode, times_anew: int
) -> None:
    """A change of master can cut off the copy on the old master. A new send could duplicate it."""
    broker = ScriptedGroupBroker([(ResponseCode.SUCCESS, 1, record(0))])
    broker.send_back_code = sent_back
    retries = ScriptedBroker("retries", sent_anew)
    name_server = ScriptedNameServer({})
    handler = Handler(failures=2)
    async with serving([name_server, broker, retries]):
        name_server.routes["topic"] = route_over({"broker": broker.address}, queue_nums=1)
        name_server.routes["%RETRY%group"] = route_over({"retries": retries.address}, queue_nums=1)
        consumer = PushConsumer(name_server.address, "group", handler, start_from="earliest")
        consumer.subscribe("topic")
        async with consumer:
            await until(lambda: len(handler.tries) == 3)
    assert (len(retries.headers), len(broker.sent_back)) == (times_anew, 2)
    assert broker.committed == {("topic", 0): 1}
