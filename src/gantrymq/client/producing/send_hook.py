"""Hooks around the sends of a producer, for traces, metrics and OpenTelemetry (`SendMessageHook`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gantrymq.client.broker_api import SendResult
from gantrymq.client.client_instance import ClientInstance
from gantrymq.errors import BrokerError, RemotingError
from gantrymq.logs import peer_log
from gantrymq.protocol.message import Message
from gantrymq.system.clock import now_ms

log = peer_log(__name__)


@dataclass(slots=True)
class SendContext:
    """One send of a message or a batch. All attempts of a call are one send.

    After the send, either `result` or `error` is set; after a one-way send, neither, because the result is unknown.

    Attributes:
        group: Producer group.
        messages: The messages.
        properties: Properties of each message. A hook can add to them before the send.
        result: Result of a successful send.
        error: Error of a failed send.
        address: HOST:PORT of the last broker; empty if there was none.
        began_ms: Start of the first attempt, ms since the epoch.
        client_id: Id of the producer.
        oneway: Whether the send is one-way.
        msg_id: Id of the message of a one-way send.
        attributes: Data of the hooks.
    """

    group: str
    messages: Sequence[Message]
    properties: list[dict[str, str]]
    result: SendResult | None = None
    error: BaseException | None = None
    address: str = ""
    began_ms: int = field(default_factory=now_ms)
    client_id: str = ""
    oneway: bool = False
    msg_id: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)


class SendHook(Protocol):
    """Called before and after each send of a producer, in its event loop. Errors of a hook are only logged."""

    def before_send(self, context: SendContext) -> None:
        """Called before the message is encoded."""

    def after_send(self, context: SendContext) -> None:
        """Called when the message is stored, or the send has failed."""


class HookedSends:
    """Calls the hooks of one producer at the start and the end of a send. `any` is false without hooks.

    `client` is None before the producer's start.
    """

    def __init__(self, group: str, hooks: Sequence[SendHook], client: ClientInstance | None = None) -> None:
        self._group = group
        self._hooks = list(hooks)
        self._client = client
        self.any = bool(hooks)

    def begin(self, messages: Sequence[Message]) -> SendContext:
        """Calls `before_send` of the hooks and returns the context of the send."""
        context = SendContext(self._group, messages, [dict(message.properties) for message in messages])
        if self._client is not None:
            context.client_id = self._client.client_id
        _run([hook.before_send for hook in self._hooks], context)
        return context

    def end(self, context: SendContext) -> None:
        if context.result is not None and self._client is not None:
            context.address = self._client.routes.master_address(context.result.queue.broker_name) or ""
        elif isinstance(context.error, RemotingError | BrokerError):
            context.address = context.error.address
        _run([hook.after_send for hook in self._hooks], context)

    def end_with(self, context: SendContext, done: asyncio.Future[SendResult]) -> None:
        """Calls `end` with the result of a future."""
        if done.cancelled():
            context.error = asyncio.CancelledError()
        elif (error := done.exception()) is not None:
            context.error = error
        else:
            context.result = done.result()
        self.end(context)


def _run(hooks: Sequence[Callable[[SendContext], None]], context: SendContext) -> None:
    """Calls `hooks` and logs their failures, as Java does."""
    for hook in hooks:
        try:
            hook(context)
        except Exception:
            log.exception("send hook %s failed", hook)
