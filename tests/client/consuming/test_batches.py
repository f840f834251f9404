"""Handlers for batches of messages, and the consumption rates of a consumer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from constants import change_constant
from inbox import send_all
from leftovers import nothing_left
from wait_until import until

from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import ClientError
from gantrymq.protocol.bodies.consumer import ConsumeStatus
from gantrymq.protocol.message import MessageExt

BODIES = [b"%d" % number for number in range(20)]


def consuming(name_server: str, group: str, topic: str, handler: Any, **options: Any) -> PushConsumer:
    consumer = PushConsumer(name_server, group, handler, start_from="earliest", **options)
    consumer.subscribe(topic)
    return consumer


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_full_batches_and_the_rest(
    kind: str, name_server: str, producer: Producer, topic: str, unique: str
) -> None:
    batches: list[list[bytes]] = []

    def plain(messages: list[MessageExt]) -> None:
        batches.append([message.body for message in messages])

    async def handle(messages: list[MessageExt]) -> None:
        await asyncio.sleep(0)
        plain(messages)

    await send_all(producer, topic, BODIES)
    consumer = consuming(
        name_server,
        unique,
        topic,
        handle if kind == "async" else plain,
        consume_batch_size=8,
        consume_batch_wait=1,
    )
    async with nothing_left(), consumer:
        await until(lambda: sum(map(len, batches)) == len(BODIES))
        await until(lambda: not any(consumer.lag().values()))
    assert sorted(body for batch in batches for body in batch) == sorted(BODIES)
    assert max(map(len, batches)) == 8
    assert len(batches) <= 5


Outcome = Callable[[list[MessageExt]], object]


def raised(messages: list[MessageExt]) -> object:
    if any(message.body == b"3" and not message.reconsume_times for message in messages):
        raise ValueError("all of them")
    return None


OUTCOMES: dict[str, tuple[Outcome, int]] = {
    "False": (lambda messages: [m.body != b"3" or m.reconsume_times > 0 for m in messages], 1),
    "an exception": (
        lambda messages: [ValueError() if m.body == b"3" and not m.reconsume_times else None for m in messages],
        1,
    ),
    "raised": (raised, len(BODIES)),
}


@pytest.mark.parametrize("name", OUTCOMES)
async def test_each_message_has_its_outcome(
    name: str, name_server: str, producer: Producer, topic: str, unique: str
) -> None:
    outcome, again = OUTCOMES[name]
    got: list[MessageExt] = []

    async def handle(messages: list[MessageExt]) -> object:
        got.extend(messages)
        return outcome(messages)

    await send_all(producer, topic, BODIES)
    size = len(BODIES)
    async with consuming(name_server, unique, topic, handle, consume_batch_size=size, consume_batch_wait=1.5):
        await until(lambda: sum(message.reconsume_times == 1 for message in got) == again)
    if again == 1:
        assert [message.body for message in got if message.reconsume_times] == [b"3"]


async def test_outcomes_of_another_number_are_none(
    name_server: str, producer: Producer, topic: str, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    await send_all(producer, topic, [b"1"])
    async with consuming(
        name_server, unique, topic, lambda messages: [], consume_batch_size=2, consume_batch_wait=0.001
    ):
        await until(lambda: "or a sequence of 1 outcomes, not []" in caplog.text)


async def test_so_many_batches_at_a_time(name_server: str, producer: Producer, topic: str, unique: str) -> None:
    now = most = count = 0
    go_on = asyncio.Event()

    async def handle(messages: list[MessageExt]) -> None:
        nonlocal now, most, count
        now += 1
        most = max(most, now)
        await go_on.wait()
        await asyncio.sleep(0)
        now -= 1
        count += len(messages)

    await send_all(producer, topic, BODIES)
    async with consuming(
        name_server, unique, topic, handle, consume_batch_size=2, consume_batch_wait=0.01, concurrency=3
    ):
        await until(lambda: now == 3)
        go_on.set()
        await until(lambda: count == len(BODIES))
    assert most == 3


async def test_a_close_cancels_a_batch_that_hangs(
    name_server: str, producer: Producer, topic: str, unique: str
) -> None:
    begun, cancelled = asyncio.Event(), threading.Event()

    async def handle(messages: list[MessageExt]) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    await send_all(producer, topic, [b"1"])
    async with nothing_left():
        consumer = consuming(name_server, unique, topic, handle, consume_batch_size=1)
        await consumer.start()
        await begun.wait()
        await consumer.close(timeout=0.1)
        assert cancelled.is_set()


@pytest.mark.parametrize("options", [{"consume_batch_size": 0}, {"consume_batch_size": 2, "orderly": True}])
def test_batches_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(ClientError, match="consume_batch_size"):
        PushConsumer("127.0.0.1:1", "group", lambda messages: None, **options)


async def test_statistics_are_told(
    name_server: str, producer: Producer, topic: str, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_constant(monkeypatch, "consumer_relay.SAMPLE_INTERVAL_S", 0.05)
    told: list[dict[str, ConsumeStatus]] = []
    await send_all(producer, topic, BODIES)
    async with consuming(name_server, unique, topic, lambda message: None, on_statistics=told.append):
        await until(lambda: told and told[-1][topic].consume_ok_tps > 0)
        assert list(told[-1]) == [topic]
