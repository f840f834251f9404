"""Handlers: signatures that are rejected at once, and the context of their calls."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest
from records import message_at
from wait_until import until

from gantrymq.client.consuming.handler_pool import handler_pool
from gantrymq.client.consuming.process_queue import FlowLimits, ProcessQueue
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.errors import BrokerError, ClientError, RefusalReason
from gantrymq.protocol.message import MessageExt, MessageQueue

QUEUE = MessageQueue("t", "a", 0)


async def one(message: MessageExt) -> None: ...
async def none() -> None: ...
async def two(message: MessageExt, other: object) -> None: ...
async def named(*, message: MessageExt) -> None: ...
async def with_default(message: MessageExt, other: int = 1) -> None: ...
def plain(message: MessageExt) -> None: ...
def plain_none() -> None: ...


class Called:
    async def __call__(self, message: MessageExt) -> None: ...

    def method(self, message: MessageExt) -> None: ...

    def no_argument(self) -> None: ...


class CalledWithTwo:
    def __call__(self, message: MessageExt, other: object) -> None: ...


@pytest.mark.parametrize(
    "handler",
    [
        none,
        two,
        named,
        plain_none,
        partial(two, other=1, more=2),
        partial(one, 1),
        CalledWithTwo(),
        Called().no_argument,
    ],
)
def test_those_that_no_message_can_be_given_to(handler: Any) -> None:
    with pytest.raises(ClientError, match="can't be called with a message"):
        PushConsumer("127.0.0.1:1", "group", handler)


@pytest.mark.parametrize("handler", [5, "handle", object()])
def test_those_that_are_none(handler: Any) -> None:
    with pytest.raises(ClientError, match="is no function"):
        PushConsumer("127.0.0.1:1", "group", handler)


@pytest.mark.parametrize(
    "handler",
    [
        one,
        with_default,
        plain,
        lambda message: None,
        partial(two, other=1),
        Called(),
        Called().method,
        print,
        [].append,
    ],
)
def test_those_that_can_be_called(handler: Any) -> None:
    PushConsumer("127.0.0.1:1", "group", handler)


variable: ContextVar[str] = ContextVar("variable", default="nothing")


@pytest.mark.parametrize("kind", ["task", "thread"])
async def test_the_context_of_the_start_is_there(kind: str) -> None:
    """Also in threads. A context variable that a handler sets is not visible elsewhere."""
    found: list[str] = []

    def take(message: MessageExt) -> None:
        found.append(variable.get())
        variable.set("another's")

    async def take_in_task(message: MessageExt) -> None:
        found.append(variable.get())

    token = variable.set("the caller's")
    pool = handler_pool(take if kind == "thread" else take_in_task, 1, lambda *told: None)
    variable.reset(token)
    source = ProcessQueue(QUEUE, 0, FlowLimits())
    token = variable.set("the caller's")
    pool.submit(source, [message_at(0), message_at(1)])
    variable.reset(token)
    await until(lambda: len(found) == 2)
    await pool.close(5)
    assert found == ["the caller's"] * 2


@pytest.mark.parametrize("kind", ["task", "thread"])
@pytest.mark.parametrize(("reason", "is_done"), [(RefusalReason.REQUESTER_GONE, True), (None, False)])
async def test_a_reply_that_nobody_takes_is_done(
    kind: str, reason: RefusalReason | None, is_done: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise the request would be consumed again, and get another reply, 16 times."""
    outcomes: list[BaseException | None] = []
    error = BrokerError(1, "refused", "127.0.0.1:1", reason)

    def fail(message: MessageExt) -> None:
        raise error

    async def fail_in_task(message: MessageExt) -> None:
        await asyncio.sleep(0)
        raise error

    pool = handler_pool(
        fail if kind == "thread" else fail_in_task, 1, lambda source, message, error: outcomes.append(error)
    )
    source = ProcessQueue(QUEUE, 0, FlowLimits())
    pool.submit(source, [message_at(0)])
    await until(lambda: outcomes)
    await pool.close(5)
    assert outcomes == [None if is_done else error]
    assert source.counters.failed == (0 if is_done else 1)
    lines = [record.getMessage() for record in caplog.records if "is disconnected" in record.getMessage()]
    assert len(lines) == is_done
