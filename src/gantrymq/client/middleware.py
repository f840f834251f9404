"""Middleware: code of the application around sends, handlers and calls for messages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar, cast

from gantrymq.client.broker_api import SendResult
from gantrymq.client.consuming.handler_pool import MessageHandler, call_plainly, is_coroutine_handler
from gantrymq.errors import ClientError
from gantrymq.protocol.message import Message, MessageExt
from gantrymq.system import threads

ContextT = TypeVar("ContextT", contravariant=True)
ResultT = TypeVar("ResultT", covariant=True)


class Call(Protocol[ContextT, ResultT]):
    """The rest of a call: the next middleware, and after the last one the client."""

    def __call__(self, context: ContextT, /) -> Awaitable[ResultT]: ...


@dataclass(slots=True, kw_only=True)
class SendContext:
    """One send of a message or a batch. All attempts of a call are one send.

    Attributes:
        group: Producer group.
        client_id: Id of the producer.
        messages: Copies of the messages. A middleware can change their properties and bodies before the send.
        oneway: Whether the send is one-way.
        address: HOST:PORT of the last broker, set by the send; empty if there was none.
        msg_id: Id of the message of a one-way send, set by the send.
    """

    group: str
    client_id: str
    messages: tuple[Message, ...]
    oneway: bool = False
    address: str = ""
    msg_id: str = ""


@dataclass(slots=True, kw_only=True)
class ConsumeContext:
    """One call of the handler of a push consumer.

    Attributes:
        group: Consumer group.
        client_id: Id of the consumer.
        message: The message.
    """

    group: str
    client_id: str
    message: MessageExt


@dataclass(slots=True, kw_only=True)
class ReceiveContext:
    """One call for messages: `poll` of a LitePullConsumer, or `receive` of a SimpleConsumer.

    Attributes:
        group: Consumer group.
        client_id: Id of the consumer.
        topics: Requested topics.
    """

    group: str
    client_id: str
    topics: Sequence[str]


@dataclass(slots=True, kw_only=True)
class Send(SendContext):
    """A context whose `send` makes the real send, after all middleware."""

    send: Callable[[SendContext], Awaitable[SendResult | None]]


SendCall = Call[SendContext, SendResult | None]
ConsumeCall = Call[ConsumeContext, None]
ReceiveCall = Call[ReceiveContext, list[MessageExt]]


class Middleware:
    """Base class of middleware: code around the calls of a client. A subclass overrides the methods that it needs.

    To continue, each method awaits `call` with the `context` that it received, and returns the result. The first
    middleware of a client is the outermost one. The methods run in the event loop of the client.

    Example:
        class Tenant(Middleware):
            async def around_send(self, call, context):
                for message in context.messages:
                    message.properties["tenant"] = "acme"
                return await call(context)

        Producer("127.0.0.1:9876", "orders", middleware=[Tenant()])
    """

    async def around_send(self, call: SendCall, context: SendContext) -> SendResult | None:
        """Runs around each send of a producer, also of one-way sends, whose result is None.

        The send raises the errors of this method. If the method raises before `call`, the message is not sent. If the
        method returns None, a send that is not one-way raises ClientError.
        """
        return await call(context)

    async def around_consume(self, call: ConsumeCall, context: ConsumeContext) -> None:
        """Runs around the handler of a push consumer, for each message.

        If this method raises, the message has failed and is redelivered, as if the handler had raised. If this method
        does not await `call`, the message is consumed without the handler.
        """
        await call(context)

    async def around_receive(self, call: ReceiveCall, context: ReceiveContext) -> list[MessageExt]:
        """Runs around each `poll` of a LitePullConsumer and each `receive` of a SimpleConsumer.

        The call raises the errors of this method. Messages received before the error are not consumed: the next `poll`
        returns them again; for `receive`, the broker redelivers them after their invisible duration. In a `poll`, a
        second `call` raises ClientError if an earlier one has returned messages.
        """
        return await call(context)


def _chain(middleware: Sequence[Middleware], name: str, last: Any) -> Any:
    """Chains the overrides of method `name`: each gets the next one as its `call`. None if nothing overrides it."""
    call = last
    for one in reversed(middleware):
        if getattr(type(one), name) is not getattr(Middleware, name):
            call = partial(getattr(one, name), call)
    return None if call is last else call


def around_sends(middleware: Sequence[Middleware]) -> SendCall | None:
    """Returns the middleware around sends, or None if there is none."""
    call: SendCall | None = None
    for one in reversed(middleware):
        if type(one).around_send is not Middleware.around_send:
            call = partial(_checked_send, one, call or _finish_send)
    return call


async def _checked_send(one: Middleware, call: SendCall, context: SendContext) -> SendResult | None:
    """Runs a middleware. Raises ClientError if the middleware does not return the result of its `call`."""
    result = await one.around_send(call, context)
    if result is None and not context.oneway:
        name = type(one).__name__
        raise ClientError(f"{name}.around_send returned None: it must return the result of `call`, a SendResult")
    return result


async def _finish_send(context: SendContext) -> SendResult | None:
    if not isinstance(context, Send):
        raise ClientError(
            "a middleware passed a SendContext of its own to `call`: pass on the context of `around_send`, whose "
            "`messages` can be changed"
        )
    return await context.send(context)


def around_receives(
    middleware: Sequence[Middleware], receive: Callable[[ReceiveContext], Awaitable[list[MessageExt]]]
) -> ReceiveCall | None:
    """Returns the middleware around `receive`, or None if there is none."""
    return cast(ReceiveCall | None, _chain(middleware, "around_receive", receive))


def around_handler(
    handler: MessageHandler, middleware: Sequence[Middleware], group: str, client_id: str
) -> MessageHandler:
    """Returns a handler of the same kind with the middleware around it; without middleware, `handler` itself."""
    if is_coroutine_handler(handler):

        async def consume(context: ConsumeContext) -> None:
            await cast(Callable[[MessageExt], Awaitable[object]], handler)(context.message)

        call: ConsumeCall | None = _chain(middleware, "around_consume", consume)
        if call is None:
            return handler

        async def handle(message: MessageExt) -> None:
            await call(ConsumeContext(group=group, client_id=client_id, message=message))

        return handle
    if _chain(middleware, "around_consume", None) is None:
        return handler
    loop = asyncio.get_running_loop()

    def handle_in_thread(message: MessageExt) -> None:
        # The middleware runs in the event loop. Its `call` passes the message back to this thread.
        work: threads.SimpleQueue[tuple[Context, ConsumeContext, asyncio.Future[None]] | None] = threads.SimpleQueue()

        async def consume(context: ConsumeContext) -> None:
            handled = loop.create_future()
            work.put((copy_context(), context, handled))
            await handled

        call: ConsumeCall = _chain(middleware, "around_consume", consume)
        begun = ConsumeContext(group=group, client_id=client_id, message=message)
        done = asyncio.run_coroutine_threadsafe(_awaited(call, begun), loop)
        done.add_done_callback(lambda _: work.put(None))
        while (item := work.get()) is not None:
            variables, context, handled = item
            error: BaseException | None = None
            try:
                variables.run(call_plainly, handler, context.message)
            except (StopIteration, SystemExit, KeyboardInterrupt) as e:
                # A future cannot contain StopIteration, and the other two would end the event loop.
                error = RuntimeError(f"the handler raised {e!r}")
            except BaseException as e:
                error = e
            loop.call_soon_threadsafe(_end, handled, error)
        done.result()

    return handle_in_thread


async def _awaited(call: ConsumeCall, context: ConsumeContext) -> None:
    await call(context)


def _end(handled: asyncio.Future[None], error: BaseException | None) -> None:
    if handled.done():
        return  # The middleware was cancelled.
    if error is None:
        handled.set_result(None)
    else:
        handled.set_exception(error)
