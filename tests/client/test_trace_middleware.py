"""Traces of handlers."""

from __future__ import annotations

import asyncio
import threading

import pytest

from gantrymq.client.trace import TraceDispatcher
from gantrymq.client.trace_middleware import traced_handler
from gantrymq.errors import RecordError
from gantrymq.protocol.message import Message, MessageExt, MessageQueue

MESSAGE = MessageExt.damaged(MessageQueue("topic", "broker-a", 0), 0, None, RecordError("as scripted"))


class Traces:
    """A dispatcher, and the text of the traces that it sent."""

    def __init__(self) -> None:
        self.text = ""
        self.dispatcher = TraceDispatcher(self._send)

    async def _send(self, message: Message) -> None:
        self.text += message.body.decode()

    async def read(self) -> list[str]:
        """Returns the traces without their time, client and group."""
        await self.dispatcher.close()
        return [line.split("\x01")[0] for line in self.text.split("\x02")[:-1]]


async def test_a_traced_plain_function_does_not_wait_for_the_event_loop() -> None:
    traces, handled = Traces(), list[MessageExt]()
    handler = traced_handler(handled.append, traces.dispatcher, "group", 10.0)
    thread = threading.Thread(target=handler, args=[MESSAGE], daemon=True)
    thread.start()
    # Blocks the event loop.
    thread.join(20)
    assert handled == [MESSAGE]
    assert not thread.is_alive()
    # The traces were passed to the event loop before this.
    await asyncio.sleep(0)
    assert await traces.read() == ["SubBefore", "SubAfter"]


@pytest.mark.parametrize("error", [StopIteration("x"), SystemExit(1), ValueError("x")], ids=repr)
async def test_the_error_of_a_plain_function_is_traced(error: BaseException) -> None:
    traces = Traces()

    def handle(message: MessageExt) -> None:
        raise error

    handler = traced_handler(handle, traces.dispatcher, "group", 10.0)
    raised: list[BaseException] = []

    def call() -> None:
        try:
            handler(MESSAGE)
        except BaseException as e:
            raised.append(e)

    await asyncio.to_thread(call)
    assert raised == [error]
    # The thread has passed the traces to the event loop, which has not run since if the thread was fast (Python 3.14).
    await asyncio.sleep(0)
    assert await traces.read() == ["SubBefore", "SubAfter"]
    assert traces.text.split("\x02")[1].split("\x01")[4] == "false"


async def test_a_plain_function_that_ends_after_the_event_loop() -> None:
    traces, handled = Traces(), list[MessageExt]()

    async def make() -> object:
        return traced_handler(handled.append, traces.dispatcher, "group", 10.0)

    handler = await asyncio.to_thread(asyncio.run, make())
    assert callable(handler)
    handler(MESSAGE)
    assert handled == [MESSAGE]
