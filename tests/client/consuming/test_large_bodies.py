"""Bodies that are large when decompressed: few are in memory at once, and none is decompressed on the event loop."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import tracemalloc
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from broken_records import ZLIB, LogBroker, good, serving_topic
from constants import change_constant
from step_timer import StepTimer
from wait_until import until

from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.protocol.message import MessageExt
from gantrymq.protocol.record import decode_record

BOMBS = 60
SIZE = 4 * 1024 * 1024
BUDGET = 2 * SIZE
#: Memory limit: the budget, one excess body, one in the making, and the rest of the program. All bodies are 240 MiB.
MOST_BYTES = BUDGET + 4 * SIZE
LONGEST_S = 0.1


@pytest.fixture(autouse=True)
def _small_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    change_constant(monkeypatch, "large_bodies.BUDGET_BYTES", BUDGET)


@asynccontextmanager
async def watched() -> AsyncIterator[None]:
    """Asserts that each event-loop iteration in the block is short, and that memory use is small.

    Only the CPU time of the thread counts, so other programs have no effect.
    """
    timer = StepTimer()

    async def measure() -> None:
        while True:
            with timer.step():
                await asyncio.sleep(0.001)

    # A garbage collection over all loaded modules of the test process must not count.
    gc.collect()
    gc.freeze()
    watching = asyncio.ensure_future(measure())
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield
        most = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
        gc.unfreeze()
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
    print(f"longest turn {1000 * timer.longest:.0f} ms, most memory {most / 1024 / 1024:.0f} MiB")
    assert timer.longest < LONGEST_S
    assert most < MOST_BYTES


def bombs(size: int = SIZE, count: int = BOMBS) -> LogBroker:
    body = zlib.compress(bytes(size), 9)
    return LogBroker([good(n, body, ZLIB) for n in range(count)])


def pushing(address: str, handler: object, orderly: bool = False) -> PushConsumer:
    consumer = PushConsumer(
        address,
        "group",
        handler,  # type: ignore[arg-type]
        orderly=orderly,
        start_from="earliest",
    )
    consumer.subscribe("topic")
    return consumer


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrently", "orderly"])
async def test_tasks(orderly: bool) -> None:
    sizes: list[int] = []

    async def handle(message: MessageExt) -> None:
        body = message.body
        await asyncio.sleep(0.005)
        sizes.append(len(body))

    async with serving_topic(bombs()) as address, pushing(address, handle, orderly), watched():
        await until(lambda: len(sizes) == BOMBS)
    assert sizes == [SIZE] * BOMBS


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrently", "orderly"])
async def test_threads(orderly: bool) -> None:
    sizes: list[int] = []

    def handle(message: MessageExt) -> None:
        body = message.body
        time.sleep(0.005)
        sizes.append(len(body))

    async with serving_topic(bombs()) as address, pushing(address, handle, orderly), watched():
        await until(lambda: len(sizes) == BOMBS)
    assert sizes == [SIZE] * BOMBS


async def test_handlers_that_keep_their_messages() -> None:
    """Handlers may keep many messages, but not their bodies, which are decompressed again when they are read."""
    kept: list[MessageExt] = []

    async def handle(message: MessageExt) -> None:
        assert len(message.body) == SIZE
        kept.append(message)
        raise ValueError

    async with serving_topic(bombs()) as address, pushing(address, handle), watched():
        await until(lambda: len(kept) == BOMBS)
    assert len(kept[0].body) == SIZE


async def test_a_lite_pull_consumer_hands_out_what_has_room() -> None:
    async with serving_topic(bombs()) as address:
        consumer = LitePullConsumer(address, "group", start_from="earliest")
        consumer.subscribe("topic")
        offsets: list[int] = []
        async with consumer, watched():
            while len(offsets) < BOMBS:
                messages = await consumer.poll()
                assert messages
                for message in messages:
                    assert len(message.body) == SIZE
                    offsets.append(message.queue_offset)
                    await asyncio.sleep(0)
                del messages, message
    assert offsets == list(range(BOMBS))


async def test_a_poll_that_is_cancelled_meanwhile_hands_out_nothing() -> None:
    async with serving_topic(bombs(count=6)) as address:
        consumer = LitePullConsumer(address, "group", start_from="earliest")
        consumer.subscribe("topic")
        async with consumer:
            await until(lambda: consumer._ready)
            offsets: list[int] = []
            for turns in range(1, 6):
                polling = asyncio.ensure_future(consumer.poll())
                for _ in range(turns):
                    await asyncio.sleep(0)
                if polling.cancel():
                    with pytest.raises(asyncio.CancelledError):
                        await polling
                else:
                    # The decompressing thread was faster.
                    assert turns > 1
                    offsets += [message.queue_offset for message in polling.result()]
            while len(offsets) < 6:
                offsets += [message.queue_offset for message in await consumer.poll()]
    assert offsets == list(range(6))


async def test_a_simple_consumer_makes_ready_what_has_room() -> None:
    async with serving_topic(bombs(count=32)) as address:
        consumer = SimpleConsumer(address, "group")
        consumer.subscribe("topic")
        async with consumer, watched():
            messages = await consumer.receive()
            assert [message.is_packed for message in messages] == [False] * 2 + [True] * 30
            for message in messages:
                assert len(message.body) == SIZE
                await asyncio.sleep(0)


async def test_thousands_of_small_ones() -> None:
    """Each body is small, but their total is large."""
    async with serving_topic(bombs(200_000, 1000)) as address:
        consumer = LitePullConsumer(address, "group", start_from="earliest")
        consumer.subscribe("topic")
        count = 0
        async with consumer, watched():
            while count < 1000:
                count += len(await consumer.poll())


async def test_threads_that_wait_for_room_end_with_their_pool() -> None:
    """The messages of these threads are not handled."""
    begun, release, handled = threading.Semaphore(0), threading.Event(), []

    def handle(message: MessageExt) -> None:
        handled.append(message.queue_offset)
        begun.release()
        release.wait(20)

    async with serving_topic(bombs(count=10)) as address:
        consumer = pushing(address, handle)
        await consumer.start()
        await until(lambda: len(handled) == 2)
        closing = asyncio.ensure_future(consumer.close(timeout=0.2))
        await closing
        release.set()
        await until(lambda: not [t for t in threading.enumerate() if t.name.startswith("gantrymq-handler")])
    assert len(handled) == 2


def test_a_body_that_was_set_stays() -> None:
    message = MessageExt(decode_record(good(0, zlib.compress(b"x" * 1000), ZLIB)), "broker")
    message.body = b"mine"
    message.pack()
    assert message.body == message.stored_body == b"mine"
    assert message.compression_flags == 0
