"""Traces: middleware and a handler wrapper (`SendMessageTraceHookImpl`, `ConsumeMessageTraceHookImpl`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from typing import cast

from gantrymq.client.broker_api import SendResult, SendStatus
from gantrymq.client.consuming.handler_pool import MessageHandler, call_plainly, is_coroutine_handler
from gantrymq.client.middleware import Middleware, SendCall, SendContext
from gantrymq.client.producing.message_encoder import DELAYS
from gantrymq.client.trace import DEFAULT_REGION, MessageType, TraceBean, TraceContext, TraceDispatcher, TraceType
from gantrymq.protocol import properties as names
from gantrymq.protocol.message import MessageExt
from gantrymq.system import clock
from gantrymq.system.clock import now_ms


class SendTraces(Middleware):
    """Passes each stored message to `dispatcher`. Failed messages have no trace, as in Java.

    A one-way send counts as stored, although its result is unknown. Java does not trace one-way sends.
    """

    def __init__(self, dispatcher: TraceDispatcher) -> None:
        self._dispatcher = dispatcher

    async def around_send(self, call: SendCall, context: SendContext) -> SendResult | None:
        began_ms = now_ms()
        result = await call(context)
        if context.messages[0].topic != self._dispatcher.topic and (result is None or result.trace_on):
            self._append(context, result, began_ms)
        return result

    def _append(self, context: SendContext, result: SendResult | None, began_ms: int) -> None:
        ids, offset_ids = [context.msg_id], [""]
        if result is not None:
            ids, offset_ids = result.msg_id.split(","), result.offset_msg_id.split(",")
        if len(offset_ids) != len(ids):
            # If a queue stores a batch as one record (BatchCQ), all messages have the same id.
            offset_ids = [result.offset_msg_id if result is not None else ""] * len(ids)
        # One line for each message of a batch. Java's producer writes one line for all messages. Java's reader then
        # finds none of them, because it compares a single id with the whole list.
        beans = [
            TraceBean(
                topic=message.topic,
                msg_id=msg_id,
                offset_msg_id=offset_id,
                tags=message.tags or "",
                keys=message.properties.get(names.KEYS, ""),
                store_host=context.address,
                body_length=len(message.body),
                message_type=message_type(message.properties),
            )
            for message, msg_id, offset_id in zip(context.messages, ids, offset_ids, strict=False)
        ]
        self._dispatcher.append(
            TraceContext(
                TraceType.PUB,
                context.group,
                beans,
                timestamp=began_ms,
                region_id=(result.region_id if result is not None else "") or DEFAULT_REGION,
                cost_time_ms=max(0, now_ms() - began_ms),
                success=result is None or result.status is SendStatus.SEND_OK,
            )
        )


class _ReturnType(IntEnum):
    """Result of a handler (`ConsumeReturnType`, by ordinal). Java's results null and failed do not occur."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2


def traced_handler(
    handler: MessageHandler, dispatcher: TraceDispatcher, group: str, timeout_s: float
) -> MessageHandler:
    """Returns a handler of the same kind that passes a trace of each message to `dispatcher`, before and after it.

    A call that takes longer than `timeout_s` has the result TIME_OUT. Call this in the event loop of the dispatcher.
    """
    if is_coroutine_handler(handler):
        traces = _ConsumeTraces(dispatcher.append, group, timeout_s)

        async def handle_in_task(message: MessageExt) -> None:
            with traces.around(message):
                await cast(Callable[[MessageExt], Awaitable[object]], handler)(message)

        return handle_in_task
    loop = asyncio.get_running_loop()

    def append(trace: TraceContext) -> None:
        # The handler can run in a thread that outlives the event loop.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(dispatcher.append, trace)

    traces_of_threads = _ConsumeTraces(append, group, timeout_s)

    def handle_in_thread(message: MessageExt) -> None:
        with traces_of_threads.around(message):
            call_plainly(handler, message)

    return handle_in_thread


class _ConsumeTraces:
    """Passes the traces of a handler to `append`."""

    def __init__(self, append: Callable[[TraceContext], object], group: str, timeout_s: float) -> None:
        self._append = append
        self._group = group
        self._timeout_s = timeout_s

    @contextmanager
    def around(self, message: MessageExt) -> Iterator[None]:
        if message.properties.get(names.TRACE_SWITCH) == "false":
            yield
            return
        bean = TraceBean(
            message.topic,
            message.msg_id,
            tags=message.tags or "",
            keys=message.properties.get(names.KEYS, ""),
            body_length=message.store_size,
            retry_times=message.reconsume_times,
        )
        region = message.properties.get(names.MSG_REGION, DEFAULT_REGION)
        begun = TraceContext(TraceType.SUB_BEFORE, self._group, [bean], region_id=region)
        self._append(begun)
        began, result = clock.monotonic(), _ReturnType.EXCEPTION
        try:
            yield
            result = _ReturnType.SUCCESS if clock.monotonic() - began < self._timeout_s else _ReturnType.TIME_OUT
        finally:
            self._append(_ended(begun, result))


def _ended(begun: TraceContext, result: _ReturnType) -> TraceContext:
    trace = TraceContext(
        TraceType.SUB_AFTER,
        begun.group,
        begun.beans,
        region_id=begun.region_id,
        success=result is not _ReturnType.EXCEPTION,
        request_id=begun.request_id,
        context_code=int(result),
    )
    trace.cost_time_ms = trace.timestamp - begun.timestamp
    return trace


def message_type(properties: dict[str, str]) -> MessageType:
    """Returns the kind of a message, derived from its properties."""
    if any(name in properties for name in DELAYS):
        return MessageType.DELAY
    if properties.get(names.TRANSACTION_PREPARED) == "true":
        return MessageType.TRANSACTION_HALF
    return MessageType.NORMAL
