"""Runs the loads of `gantry bench`. Source: example/benchmark/Producer, BatchProducer, Consumer."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gantrymq.background.event_loop import new_event_loop
from gantrymq.cli.bench_figures import ResponseTimes, Stopwatch
from gantrymq.client.broker_api import SendResult
from gantrymq.client.consuming.consumer_base import MessageFilter
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import BrokerError, GantryError
from gantrymq.protocol.message import Message, MessageExt
from gantrymq.system import clock

#: The pause of a worker after a failed send, so that the worker doesn't overload a failing broker. Java: 3 s.
FAILURE_PAUSE_S = 3.0


@dataclass(slots=True, frozen=True)
class Sends:
    """The settings of a load of sends.

    `workers` send concurrently. A request has `batch` messages. The load ends after `quantity` messages or, if
    `quantity` is 0, on Ctrl-C. Sizes are in bytes.
    """

    topic: str
    size: int
    workers: int
    batch: int
    quantity: int
    keys: bool
    tag_count: int
    property_size: int
    delay_level: int

    def message(self, body: bytes) -> Message:
        message = Message(self.topic, body, delay_level=self.delay_level)
        if self.keys:
            message.properties["KEYS"] = str(clock.now_ms() // 1000)
        if self.tag_count:
            message.properties["TAGS"] = f"tag{clock.now_ms() % self.tag_count}"
        if self.property_size:
            message.properties["prop0"] = "v" * self.property_size
        return message


def run_sends(producer: Producer, sends: Sends, interval_s: float) -> dict[str, Any]:
    """Sends messages and returns the figures. Prints interim figures to standard error every `interval_s`."""
    return _run(_send(producer, sends, interval_s))


def run_reads(
    consumer: Callable[[Callable[[MessageExt], Awaitable[None]]], PushConsumer],
    topic: str,
    message_filter: MessageFilter,
    quantity: int,
    fail_rate: float,
    interval_s: float,
) -> dict[str, Any]:
    """Consumes messages, and returns the figures since the first message.

    The load ends after `quantity` messages or, if `quantity` is 0, on Ctrl-C. Prints interim figures to standard error
    every `interval_s`.
    """
    return _run(_read(consumer, topic, message_filter, quantity, fail_rate, interval_s))


def _run(load: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(load)


async def _send(producer: Producer, sends: Sends, interval_s: float) -> dict[str, Any]:
    times = ResponseTimes()
    sent = request_failures = response_failures = 0
    body = b"a" * sends.size
    left = sends.quantity or sys.maxsize
    clock = time.perf_counter

    async def request(count: int) -> SendResult:
        if sends.batch == 1:
            return await producer.send(sends.message(body))
        return await producer.send_batch([sends.message(body) for _ in range(count)])

    async def work() -> None:
        nonlocal left, sent, request_failures, response_failures
        while left > 0:
            count = min(sends.batch, left)
            left -= count
            began = clock()
            try:
                await request(count)
            except BrokerError as e:
                response_failures += count
                await _failed(e)
            except GantryError as e:
                request_failures += count
                await _failed(e)
            else:
                times.add(clock() - began)
                sent += count

    async with producer:
        await producer.queues(sends.topic)
        stopwatch = Stopwatch()
        await _until_done_or_interrupted(
            [work() for _ in range(sends.workers)],
            interval_s,
            lambda: (sent, f"Average RT {times.average_ms:.3f} ms, max {1000 * times.max_s:.3f} ms, "
                     f"failed {request_failures + response_failures:,}"),
        )  # fmt: skip
        figures = stopwatch.figures(sent)
    return {
        "sent": sent,
        "requestsFailed": request_failures,
        "responsesFailed": response_failures,
        **figures,
        **times.figures(),
    }


async def _failed(error: GantryError) -> None:
    print(f"gantry: {error}", file=sys.stderr)
    await asyncio.sleep(FAILURE_PAUSE_S)


async def _read(
    make: Callable[[Callable[[MessageExt], Awaitable[None]]], PushConsumer],
    topic: str,
    message_filter: MessageFilter,
    quantity: int,
    fail_rate: float,
    interval_s: float,
) -> dict[str, Any]:
    born, stored = ResponseTimes(), ResponseTimes()
    consumed = failed = 0
    stopwatch: Stopwatch | None = None
    complete = asyncio.Event()
    now = time.time

    async def handle(message: MessageExt) -> None:
        nonlocal consumed, failed, stopwatch
        if stopwatch is None:
            stopwatch = Stopwatch()
        now_s = now()
        born.add(now_s - message.born_timestamp / 1000)
        stored.add(now_s - message.store_timestamp / 1000)
        consumed += 1
        if consumed == quantity:
            complete.set()
        if fail_rate and random.random() < fail_rate:
            failed += 1
            raise _Refused

    async def wait() -> None:
        await complete.wait()

    consumer = make(handle)
    consumer.subscribe(topic, **message_filter)
    async with consumer:
        await _until_done_or_interrupted(
            [wait()],
            interval_s,
            lambda: (consumed, f"since born {born.average_ms:.3f} ms, max {1000 * born.max_s:.3f} ms, "
                     f"since stored {stored.average_ms:.3f} ms, max {1000 * stored.max_s:.3f} ms, failed {failed:,}"),
        )  # fmt: skip
        figures = (stopwatch or Stopwatch()).figures(consumed)
    return {
        "consumed": consumed,
        "failed": failed,
        **figures,
        **born.figures("sinceBorn"),
        **stored.figures("sinceStored"),
    }


class _Refused(GantryError):
    """Raised for a message that fails on purpose (`--failRate`)."""


async def _until_done_or_interrupted(
    work: list[Coroutine[Any, Any, None]], interval_s: float, state: Callable[[], tuple[int, str]]
) -> None:
    """Runs `work` until it ends or SIGINT. Prints the rate and `state` every `interval_s` (0: never)."""
    loop = asyncio.get_running_loop()
    tasks = asyncio.gather(*work)
    loop.add_signal_handler(signal.SIGINT, tasks.cancel)
    reporter = asyncio.create_task(_report(interval_s, state)) if interval_s else None
    try:
        with suppress(asyncio.CancelledError):
            await tasks
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        if reporter is not None:
            reporter.cancel()


async def _report(interval_s: float, state: Callable[[], tuple[int, str]]) -> None:
    before, at = state()[0], time.perf_counter()
    while True:
        await asyncio.sleep(interval_s)
        count, text = state()
        now = time.perf_counter()
        print(f"{time.strftime('%H:%M:%S')}  {(count - before) / (now - at):,.0f}/s  {text}", file=sys.stderr)
        before, at = count, now
