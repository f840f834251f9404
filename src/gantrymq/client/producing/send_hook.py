"""Hooks around a producer's sends: tracing, metrics, OpenTelemetry (client/hook/SendMessageHook)."""

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
    """One send of one message, or of a batch, by a producer of `group` with the id `client_id`.

    `properties` are those that go out with each of `messages`; a hook may add to them before the send. After it,
    either `result` or `error` is set; `address` is the broker that was sent to last, host:port, empty when there was
    none. All tries of a send are one: `began_ms` is when the first began, ms since the epoch. After a send that is
    one-way (`oneway`) neither is set, as nobody knows what became of it; `msg_id` is its message's. `attributes` are
    free for the hooks.
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
    """Called around every send of a producer, in its event loop; what a hook raises is logged and changes nothing."""

    def before_send(self, context: SendContext) -> None:
        """Called before the message is encoded."""

    def after_send(self, context: SendContext) -> None:
        """Called when the message is stored, or is given up."""


class HookedSends:
    """The hooks of one producer, which are told when a send begins and ends, if there are `any`."""

    def __init__(self, group: str, hooks: Sequence[SendHook]) -> None:
        self._group = group
        self._hooks = list(hooks)
        #: The producer's own, when it traces, and what knows its id and brokers; both once it is started.
        self._trace_hook: SendHook | None = None
        self.client: ClientInstance | None = None
        self.any = bool(hooks)

    def trace_by(self, hook: SendHook | None) -> None:
        """Has the producer's own `hook` called after the user's, or no more."""
        self._trace_hook = hook
        self.any = bool(self._hooks) or hook is not None

    def begin(self, messages: Sequence[Message]) -> SendContext:
        """A send of `messages`, of which the hooks have heard."""
        context = SendContext(self._group, messages, [dict(message.properties) for message in messages])
        if self.client is not None:
            context.client_id = self.client.client_id
        _run([hook.before_send for hook in self._all], context)
        return context

    def end(self, context: SendContext) -> None:
        if context.result is not None and self.client is not None:
            context.address = self.client.routes.master_address(context.result.queue.broker_name) or ""
        elif isinstance(context.error, RemotingError | BrokerError):
            context.address = context.error.address
        _run([hook.after_send for hook in self._all], context)

    def end_with(self, context: SendContext, done: asyncio.Future[SendResult]) -> None:
        """As `end`, with what a future says."""
        if done.cancelled():
            context.error = asyncio.CancelledError()
        elif (error := done.exception()) is not None:
            context.error = error
        else:
            context.result = done.result()
        self.end(context)

    @property
    def _all(self) -> list[SendHook]:
        return self._hooks if self._trace_hook is None else [*self._hooks, self._trace_hook]


def _run(hooks: Sequence[Callable[[SendContext], None]], context: SendContext) -> None:
    """Calls `hooks`; a failure is logged, as Java does."""
    for hook in hooks:
        try:
            hook(context)
        except Exception:
            log.exception("send hook %s failed", hook)
