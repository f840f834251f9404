"""Unreadable records do not prevent the consumption of others."""

from __future__ import annotations

import asyncio

import pytest
from broken_records import BAD_BODIES, BAD_RECORDS, MAX_BODY_SIZE, LogBroker, good, serving_topic
from constants import change_constant
from wait_until import until

from gantrymq.client.consuming.handler_pool import MessageHandler
from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.errors import CompressionError, ProtocolError, RecordError
from gantrymq.protocol.message import MessageExt
from gantrymq.protocol.record import decode_record

BROKEN = BAD_BODIES | BAD_RECORDS


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    change_constant(monkeypatch, "queue_puller.RETRY_DELAY_S", 0.01)


class Reader:
    """A handler that reads bodies. Stores them, and the queue offsets of unreadable ones."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.errors: dict[int, ProtocolError] = {}

    def __call__(self, message: MessageExt) -> None:
        try:
            self.bodies.append(message.body)
        except ProtocolError as e:
            self.errors[message.queue_offset] = e
            raise


def pusher(address: str, handler: MessageHandler, orderly: bool = False) -> PushConsumer:
    consumer = PushConsumer(
        address,
        "group",
        handler,
        orderly=orderly,
        start_from="earliest",
        max_body_size=MAX_BODY_SIZE,
    )
    consumer.subscribe("topic")
    return consumer


def in_task(reader: Reader) -> MessageHandler:
    async def handle(message: MessageExt) -> None:
        reader(message)

    return handle


@pytest.mark.parametrize("kind", ["tasks", "threads", "orderly"])
@pytest.mark.parametrize("name", BROKEN)
async def test_push_consumers_go_on(name: str, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    reader = Reader()
    broker = LogBroker([good(0), BROKEN[name](1), good(2), BROKEN[name](3), good(4)])
    handler = reader if kind == "threads" else in_task(reader)
    async with serving_topic(broker) as address, pusher(address, handler, kind == "orderly"):
        await until(lambda: len(reader.bodies) == 3)
        await until(lambda: len(reader.errors) == 2)
        if name in BAD_BODIES:
            await until(lambda: len(broker.sent_back) + len(broker.sent_anew) == 2)
    assert sorted(reader.bodies) == [b"good 0", b"good 2", b"good 4"]
    assert sorted(reader.errors) == [1, 3]
    assert broker.committed["topic", 0] == 5
    if name in BAD_BODIES:
        assert isinstance(reader.errors[1], CompressionError)
        assert "offset 1 of queue 0 of topic on broker" in str(reader.errors[1])
        if kind == "orderly":
            assert [header.sys_flag for header, _ in broker.sent_anew] == [
                decode_record(BROKEN[name](1)).sys_flag for _ in range(2)
            ]
            assert [body for _, body in broker.sent_anew] == [decode_record(BROKEN[name](n)).body for n in (1, 3)]
    else:
        assert isinstance(reader.errors[1], RecordError)
        # The record is unreadable, so it cannot be sent back.
        assert not broker.sent_back
        assert not broker.sent_anew
        assert "the record at offset 1 of" in caplog.text


@pytest.mark.parametrize("size", [0, 5, 50, -1])
async def test_a_record_whose_size_makes_no_sense_hides_what_follows_in_its_pull_alone(size: int) -> None:
    reader = Reader()
    bad = size.to_bytes(4, "big", signed=True) + good(1)[4:]
    broker = LogBroker([good(0), bad, good(2)])
    async with serving_topic(broker) as address, pusher(address, in_task(reader)):
        await until(lambda: len(reader.bodies) == 2)
    assert sorted(reader.bodies) == [b"good 0", b"good 2"]
    assert list(reader.errors) == [1]


async def test_what_only_the_connection_damaged_is_pulled_again() -> None:
    reader = Reader()
    broker = LogBroker([good(0), BAD_RECORDS["another CRC"](1), good(2)])
    async with serving_topic(broker) as address, pusher(address, in_task(reader)):
        await until(lambda: broker.pulls)
        broker.records[1] = good(1)
        await until(lambda: len(reader.bodies) == 3)
    assert sorted(reader.bodies) == [b"good 0", b"good 1", b"good 2"]
    assert not reader.errors


@pytest.mark.parametrize("name", BROKEN)
async def test_lite_pull_consumers_hand_out_all(name: str) -> None:
    broker = LogBroker([good(0), BROKEN[name](1), good(2)])
    async with serving_topic(broker) as address:
        consumer = LitePullConsumer(address, "group", start_from="earliest", max_body_size=MAX_BODY_SIZE)
        consumer.subscribe("topic")
        async with consumer:
            messages: list[MessageExt] = []
            async with asyncio.timeout(20):
                while len(messages) < 3:
                    messages += await consumer.poll()
            assert [message.queue_offset for message in messages] == [0, 1, 2]
            assert messages[2].body == b"good 2"
            for _ in range(2):
                with pytest.raises(ProtocolError):
                    _ = messages[1].body
            assert "topic" in repr(messages[1])


@pytest.mark.parametrize("name", BROKEN)
async def test_simple_consumers_get_the_others(name: str) -> None:
    broker = LogBroker([good(0), BROKEN[name](1), good(2)])
    async with serving_topic(broker) as address:
        consumer = SimpleConsumer(address, "group", max_body_size=MAX_BODY_SIZE)
        consumer.subscribe("topic")
        async with consumer:
            messages = await consumer.receive()
    readable = [message for message in messages if message.queue_offset != 1]
    if name not in ("lengths that don't add up", "record of another queue"):
        assert [message.body for message in readable] == [b"good 0", b"good 2"]
    for message in messages:
        if message.queue_offset == 1 and name in BAD_BODIES:
            with pytest.raises(CompressionError):
                _ = message.body
