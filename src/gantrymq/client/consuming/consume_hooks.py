"""Hooks around a push consumer's handler, and the one that traces (client/hook/ConsumeMessageHook)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Protocol, cast

from gantrymq.client.consuming.handler_pool import MessageHandler, is_coroutine_handler
from gantrymq.client.trace import DEFAULT_REGION, TraceBean, TraceContext, TraceDispatcher, TraceType
from gantrymq.protocol import properties as names
from gantrymq.protocol.message import MessageExt


class ConsumeReturnType(IntEnum):
    """How a handler ended (`ConsumeReturnType`, by ordinal; a handler here has no null and no failed)."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2


@dataclass(slots=True)
class ConsumeContext:
    """One message in its handler. `return_type` and `error` are set after it; `attributes` are free for the hooks."""

    group: str
    message: MessageExt
    return_type: ConsumeReturnType = ConsumeReturnType.SUCCESS
    error: BaseException | None = None
    attributes: dict[str, Any] = field(default_factory=dict)


class ConsumeHook(Protocol):
    """Called where the handler is called: in its task, or in its thread. What a hook raises fails the message."""

    def before(self, context: ConsumeContext) -> None: ...

    def after(self, context: ConsumeContext) -> None: ...


def with_hooks(handler: MessageHandler, hooks: Sequence[ConsumeHook], group: str, timeout_s: float) -> MessageHandler:
    """A handler of the same kind that calls the hooks; with none, the handler itself.

    One that takes more than `timeout_s` has ended as TIME_OUT.
    """
    if not hooks:
        return handler

    def before(message: MessageExt) -> tuple[ConsumeContext, float]:
        context = ConsumeContext(group, message)
        for hook in hooks:
            hook.before(context)
        return context, time.monotonic()

    def after(context: ConsumeContext, started: float, error: BaseException | None) -> None:
        context.error = error
        if error is not None:
            context.return_type = ConsumeReturnType.EXCEPTION
        elif time.monotonic() - started >= timeout_s:
            context.return_type = ConsumeReturnType.TIME_OUT
        for hook in hooks:
            hook.after(context)

    async def handle_in_task(message: MessageExt) -> None:
        context, started = before(message)
        try:
            await cast(Callable[[MessageExt], Awaitable[object]], handler)(message)
        except BaseException as e:
            after(context, started, e)
            raise
        after(context, started, None)

    def handle_in_thread(message: MessageExt) -> object:
        context, started = before(message)
        try:
            result = handler(message)
        except BaseException as e:
            after(context, started, e)
            raise
        after(context, started, None)
        return result

    return handle_in_task if is_coroutine_handler(handler) else handle_in_thread


class TraceHook:
    """Tells the trace topic of each message before and after its handler (`ConsumeMessageTraceHookImpl`).

    To be made in the event loop of the dispatcher.
    """

    def __init__(self, dispatcher: TraceDispatcher) -> None:
        self._dispatcher = dispatcher
        self._loop = asyncio.get_running_loop()

    def before(self, context: ConsumeContext) -> None:
        message = context.message
        if message.properties.get(names.TRACE_SWITCH) == "false":
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
        trace = TraceContext(TraceType.SUB_BEFORE, context.group, [bean], region_id=region)
        context.attributes["trace"] = trace
        self._append(trace)

    def after(self, context: ConsumeContext) -> None:
        begun: TraceContext | None = context.attributes.get("trace")
        if begun is None:
            return
        trace = TraceContext(
            TraceType.SUB_AFTER,
            context.group,
            begun.beans,
            region_id=begun.region_id,
            success=context.error is None,
            request_id=begun.request_id,
            context_code=int(context.return_type),
        )
        trace.cost_time_ms = trace.timestamp - begun.timestamp
        self._append(trace)

    def _append(self, trace: TraceContext) -> None:
        # The handler may be in a thread, and outlive the loop.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._dispatcher.append, trace)
