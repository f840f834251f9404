"""Hooks around the handler of a push consumer, and the hook for traces (`ConsumeMessageHook`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Protocol, cast

from gantrymq.client.consuming.handler_pool import MessageHandler, is_coroutine_handler
from gantrymq.client.trace import DEFAULT_REGION, TraceBean, TraceContext, TraceDispatcher, TraceType
from gantrymq.logs import peer_log
from gantrymq.protocol import properties as names
from gantrymq.protocol.message import MessageExt
from gantrymq.system import clock

log = peer_log(__name__)


class ConsumeReturnType(IntEnum):
    """Result of a handler (`ConsumeReturnType`, by ordinal). Handlers here never return Java's null or failed."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2


@dataclass(slots=True)
class ConsumeContext:
    """One call of a handler.

    Attributes:
        group: Consumer group.
        message: The message.
        client_id: Id of the consumer.
        return_type: Outcome, set after the handler.
        error: Error of the handler, set after it; None if there was none.
        attributes: Data of the hooks.
    """

    group: str
    message: MessageExt
    client_id: str = ""
    return_type: ConsumeReturnType = ConsumeReturnType.SUCCESS
    error: BaseException | None = None
    attributes: dict[str, Any] = field(default_factory=dict)


class ConsumeHook(Protocol):
    """Called in the task or thread of the handler. If a hook raises, the message has failed."""

    def before(self, context: ConsumeContext) -> None:
        """Called before the handler."""

    def after(self, context: ConsumeContext) -> None:
        """Called after the handler, also if it raised."""


@dataclass(slots=True, frozen=True)
class ReceiveContext:
    """One call for messages: `poll` or `receive`.

    Attributes:
        group: Consumer group.
        client_id: Id of the consumer.
        topics: Requested topics.
        messages: Received messages.
        began_ns: Start, ns since the epoch.
        duration_s: Duration, s.
        error: Error of the call, or None.
    """

    group: str
    client_id: str
    topics: Sequence[str]
    messages: Sequence[MessageExt]
    began_ns: int
    duration_s: float
    error: BaseException | None = None


class ReceiveHook(Protocol):
    """Called after each `poll` or `receive`. Errors of a hook are only logged."""

    def received(self, context: ReceiveContext) -> None: ...


@asynccontextmanager
async def receiving(
    hooks: Sequence[ReceiveHook], group: str, client_id: str, topics: Callable[[], Sequence[str]]
) -> AsyncIterator[list[MessageExt]]:
    """Calls the hooks after the block, with the messages that the block put into the list, or with its error."""
    messages: list[MessageExt] = []
    began_ns, began = clock.time_ns(), clock.monotonic()
    error: BaseException | None = None
    try:
        yield messages
    except BaseException as e:
        error = e
        raise
    finally:
        took_s = clock.monotonic() - began
        context = ReceiveContext(group, client_id, topics(), messages, began_ns, took_s, error)
        for hook in hooks:
            try:
                hook.received(context)
            except Exception:
                log.exception("receive hook %s failed", hook)


def with_hooks(
    handler: MessageHandler, hooks: Sequence[ConsumeHook], group: str, client_id: str, timeout_s: float
) -> MessageHandler:
    """Returns a handler of the same kind that calls the hooks. Without hooks, returns `handler`.

    A call that takes longer than `timeout_s` has the result TIME_OUT.
    """
    if not hooks:
        return handler

    def before(message: MessageExt) -> tuple[ConsumeContext, float]:
        context = ConsumeContext(group, message, client_id)
        for hook in hooks:
            hook.before(context)
        return context, clock.monotonic()

    def after(context: ConsumeContext, started: float, error: BaseException | None) -> None:
        context.error = error
        if error is not None:
            context.return_type = ConsumeReturnType.EXCEPTION
        elif clock.monotonic() - started >= timeout_s:
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
    """Writes a trace of each message before and after its handler (`ConsumeMessageTraceHookImpl`).

    Create it in the event loop of the dispatcher.
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
        # The handler may run in a thread that outlives the event loop.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._dispatcher.append, trace)
