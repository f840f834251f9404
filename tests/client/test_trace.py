from __future__ import annotations

import asyncio

import pytest
from constants import change_constant
from facts import FACTS

from gantrymq.client import trace
from gantrymq.client.admin.trace import decode_trace
from gantrymq.client.trace import (
    BATCH,
    MessageType,
    TraceBean,
    TraceContext,
    TraceDispatcher,
    TraceType,
    encode_trace,
    trace_keys,
    trace_messages,
)
from gantrymq.errors import ClientClosed
from gantrymq.protocol.message import Message


def context_as_java_has_it(trace_type: TraceType) -> TraceContext:
    of_consumer = trace_type in (TraceType.SUB_BEFORE, TraceType.SUB_AFTER)
    ends = trace_type is TraceType.END_TRANSACTION
    beans = [
        TraceBean(
            topic="topic",
            msg_id=f"ID{n}",
            offset_msg_id="OFFSET",
            tags="tag",
            keys="k1 k2",
            store_host="127.0.0.1:10911",
            body_length=128,
            retry_times=n,
            message_type=MessageType.TRANSACTION_COMMIT if ends else MessageType.DELAY,
            transaction_id="TX",
            transaction_state="ROLLBACK_MESSAGE",
            from_transaction_check=True,
        )
        for n in range(2 if of_consumer else 1)
    ]
    return TraceContext(
        trace_type,
        "group",
        beans,
        timestamp=1700000000123,
        cost_time_ms=12,
        success=trace_type is not TraceType.SUB_AFTER,
        request_id="REQUEST",
        context_code=2,
    )


@pytest.mark.parametrize("trace_type", TraceType)
def test_text_and_keys_are_those_of_java(trace_type: TraceType) -> None:
    text, keys = FACTS["traces"][trace_type.value]
    context = context_as_java_has_it(trace_type)
    assert encode_trace(context) == text
    assert trace_keys(context) == set(keys)


def context(number: int, topic: str = "topic") -> TraceContext:
    return TraceContext(TraceType.PUB, "group", [TraceBean(topic, f"ID{number}")])


def test_every_message_of_a_batch_is_found_by_its_id() -> None:
    assert trace_keys(TraceContext(TraceType.PUB, "group", [TraceBean("topic", msg_id) for msg_id in "ABC"])) == set(
        "ABC"
    )


def test_long_traces_take_several_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    change_constant(monkeypatch, "trace.MAX_TEXT", 200)
    messages = list(trace_messages([context(n) for n in range(10)], "traces"))
    assert len(messages) > 1
    found = [view.msg_id for message in messages for view in decode_trace(message.body, "")]
    assert found == [f"ID{n}" for n in range(10)]
    assert sorted(key for message in messages for key in message.keys) == sorted(found)


async def test_contexts_go_together_and_by_topic() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    dispatcher = TraceDispatcher(send)
    for number in range(BATCH):
        assert dispatcher.append(context(number, "even" if number % 2 == 0 else "odd"))
    await dispatcher.close()
    assert [len(message.keys) for message in sent] == [BATCH // 2, BATCH // 2]
    assert {message.topic for message in sent} == {"RMQ_SYS_TRACE_TOPIC"}


async def test_too_many_contexts_are_dropped_and_the_others_sent(caplog: pytest.LogCaptureFixture) -> None:
    may_send = asyncio.Event()
    keys: set[str] = set()

    async def send(message: Message) -> None:
        await may_send.wait()
        keys.update(message.keys)

    dispatcher = TraceDispatcher(send)
    taken = {f"ID{n}" for n in range(trace.MAX_WAITING + 500) if dispatcher.append(context(n))}
    assert trace.MAX_WAITING <= len(taken) <= trace.MAX_WAITING + BATCH
    assert "were dropped" in caplog.text
    may_send.set()
    await dispatcher.close()
    assert keys == taken


async def test_a_failed_send_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)
        if len(sent) == 1:
            raise ClientClosed("as scripted")

    dispatcher = TraceDispatcher(send)
    for number in range(2 * BATCH):
        dispatcher.append(context(number))
    await dispatcher.close()
    assert len(sent) == 2
    assert "as scripted" in caplog.text


async def test_a_send_that_a_hook_breaks_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    sent: asyncio.Queue[Message] = asyncio.Queue()

    async def send(message: Message) -> None:
        await sent.put(message)
        raise ValueError("as scripted")

    dispatcher = TraceDispatcher(send)
    for _ in range(2):
        for number in range(BATCH):
            dispatcher.append(context(number))
        async with asyncio.timeout(10):
            await sent.get()
    await dispatcher.close()
    assert "ValueError: as scripted" in caplog.text


async def test_few_contexts_are_sent_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    change_constant(monkeypatch, "trace.FLUSH_INTERVAL_S", 0.01)
    sent: asyncio.Queue[Message] = asyncio.Queue()
    dispatcher = TraceDispatcher(sent.put)
    dispatcher.append(context(1))
    async with asyncio.timeout(10):
        assert (await sent.get()).keys == ["ID1"]


async def test_the_close_does_not_wait_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    change_constant(monkeypatch, "trace.CLOSE_TIMEOUT_S", 0.05)

    async def send(message: Message) -> None:
        await asyncio.Event().wait()

    dispatcher = TraceDispatcher(send)
    for number in range(25):
        dispatcher.append(context(number))
    await asyncio.wait_for(dispatcher.close(), 5)
    assert "25 traces were not sent" in caplog.text
