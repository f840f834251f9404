"""Middleware around handlers."""

from __future__ import annotations

import asyncio
import threading

import pytest

from gantrymq.client.middleware import ConsumeCall, ConsumeContext, Middleware, around_handler
from gantrymq.errors import RecordError
from gantrymq.protocol.message import MessageExt, MessageQueue

MESSAGE = MessageExt.damaged(MessageQueue("topic", "broker-a", 0), 0, None, RecordError("as scripted"))


class Outcomes(Middleware):
    def __init__(self) -> None:
        self.found: list[str] = []

    async def around_consume(self, call: ConsumeCall, context: ConsumeContext) -> None:
        assert threading.current_thread() is threading.main_thread()
        try:
            await call(context)
        except Exception as e:
            self.found.append(repr(e))
            raise
        self.found.append("consumed")


async def test_a_plain_function_stays_in_its_thread() -> None:
    outcomes, called_in = Outcomes(), []

    def handle(message: MessageExt) -> None:
        assert message is MESSAGE
        called_in.append(threading.current_thread())

    handler = around_handler(handle, [outcomes], "group", "client")
    await asyncio.to_thread(handler, MESSAGE)
    assert outcomes.found == ["consumed"]
    assert called_in != [threading.main_thread()]


@pytest.mark.parametrize("error", [StopIteration("x"), SystemExit(1), KeyboardInterrupt()], ids=repr)
async def test_a_plain_function_ends_neither_the_event_loop_nor_its_thread(error: BaseException) -> None:
    outcomes = Outcomes()

    def handle(message: MessageExt) -> None:
        raise error

    handler = around_handler(handle, [outcomes], "group", "client")
    async with asyncio.timeout(10):
        with pytest.raises(RuntimeError, match="the handler raised"):
            await asyncio.to_thread(handler, MESSAGE)
    assert outcomes.found == [f"RuntimeError({f'the handler raised {error!r}'!r})"]


async def test_a_coroutine_of_a_plain_function() -> None:
    async def work() -> None: ...

    handler = around_handler(lambda message: work(), [Outcomes()], "group", "client")
    with pytest.raises(TypeError, match="make it `async def`"):
        await asyncio.to_thread(handler, MESSAGE)


def test_without_middleware_the_handler_is_itself() -> None:
    assert around_handler(print, [], "group", "client") is print
    assert around_handler(print, [Middleware()], "group", "client") is print


async def test_a_middleware_that_skips_the_handler() -> None:
    class Skips(Middleware):
        async def around_consume(self, call: ConsumeCall, context: ConsumeContext) -> None:
            """Does not await `call`."""

    called: list[MessageExt] = []
    await asyncio.to_thread(around_handler(called.append, [Skips()], "group", "client"), MESSAGE)
    assert called == []
