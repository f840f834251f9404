"""A failed message is sent back exactly once, regardless of other failures."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from constants import change_constant
from records import message_at
from wait_until import until

from gantrymq.client.consuming import concurrently
from gantrymq.client.consuming.concurrently import ConsumeConcurrently
from gantrymq.client.consuming.process_queue import FlowLimits, ProcessQueue
from gantrymq.client.consuming.send_back import SendBack
from gantrymq.errors import RequestTimeout
from gantrymq.protocol.message import MessageExt, MessageQueue

QUEUE = MessageQueue("t", "a", 0)


class Broker:
    """Destination of `send_back`. Responds after `held` is set, first with the `errors`."""

    def __init__(self) -> None:
        self.came: list[int] = []
        self.held: asyncio.Event | None = None
        self.errors: list[Exception] = []

    def following(self, message: MessageExt, delay_level: int = 0) -> str:
        return "as scripted"

    async def send_back(self, message: MessageExt, topic: str, delay_level: int = 0) -> None:
        self.came.append(message.queue_offset)
        if self.held is not None:
            await self.held.wait()
        if self.errors:
            raise self.errors.pop()


class Handler:
    """A handler that fails when `ended` is set."""

    def __init__(self) -> None:
        self.tries = 0
        self.ended = asyncio.Event()

    async def __call__(self, message: MessageExt) -> None:
        self.tries += 1
        await self.ended.wait()
        raise ValueError("as scripted")


def consumption(broker: Broker, handler: Handler, timeout_s: float = 60.0) -> tuple[ConsumeConcurrently, ProcessQueue]:
    made = ConsumeConcurrently(handler, 4, cast(SendBack, broker), timeout_s, lambda message: message.topic)
    process_queue = ProcessQueue(QUEUE, 0, FlowLimits())
    message = message_at(0)
    process_queue.put([message])
    made.submit(process_queue, [message])
    return made, process_queue


async def test_a_slow_handler_that_fails_while_its_message_goes_back() -> None:
    broker, handler = Broker(), Handler()
    broker.held = asyncio.Event()
    consuming, process_queue = consumption(broker, handler, timeout_s=0.01)
    await until(lambda: broker.came)
    handler.ended.set()
    await until(lambda: not consuming.pool.running())
    # Waits for the next check of slow handlers, too.
    await asyncio.sleep(0.03)
    broker.held.set()
    await until(lambda: not process_queue.first)
    await consuming.close(5)
    assert broker.came == [0]


async def test_it_is_sent_back_again_when_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler fails while the message is being sent back because of its timeout, and this request fails."""
    change_constant(monkeypatch, "concurrently.RETRY_LOCALLY_S", 0.01)
    broker, handler = Broker(), Handler()
    broker.held = asyncio.Event()
    broker.errors = [RequestTimeout("as scripted", "127.0.0.1:1")]
    consuming, process_queue = consumption(broker, handler, timeout_s=0.01)
    await until(lambda: broker.came)
    handler.ended.set()
    await until(lambda: not consuming.pool.running())
    broker.held.set()
    await until(lambda: not process_queue.first)
    await consuming.close(5)
    assert broker.came == [0, 0]
    assert handler.tries == 2


async def test_whatever_fails_in_sending_back_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    change_constant(monkeypatch, "concurrently.RETRY_LOCALLY_S", 0.01)
    broker, handler = Broker(), Handler()
    broker.errors = [ValueError("of a hook")]
    handler.ended.set()
    consuming, process_queue = consumption(broker, handler)
    await until(lambda: not process_queue.first)
    await consuming.close(5)
    assert broker.came == [0, 0]


async def test_the_close_waits_neither_for_the_next_try_nor_for_ever() -> None:
    broker, handler = Broker(), Handler()
    broker.errors = [RequestTimeout("as scripted", "127.0.0.1:1")]
    handler.ended.set()
    consuming, process_queue = consumption(broker, handler)
    await until(lambda: len(consuming._later))
    async with asyncio.timeout(concurrently.RETRY_LOCALLY_S / 2):
        await consuming.close(0.01)
    assert process_queue.first

    broker.held = asyncio.Event()
    consuming, process_queue = consumption(broker, handler)
    await until(lambda: broker.came == [0, 0])
    async with asyncio.timeout(5):
        await consuming.close(0.01)
    assert process_queue.first
