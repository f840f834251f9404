"""Hooks around a producer's sends: tracing, metrics, OpenTelemetry (client/hook/SendMessageHook)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gantrymq.client.broker_api import SendResult
from gantrymq.clock import now_ms
from gantrymq.logs import peer_log
from gantrymq.protocol.message import Message

log = peer_log(__name__)


@dataclass(slots=True)
class SendContext:
    """One send of one message, or of a batch.

    `properties` are those that go out with each of `messages`; a hook may add to them before the send. After it,
    either `result` or `error` is set; `address` is the broker that was sent to last, host:port, empty when there was
    none. All tries of a send are one: `began_ms` is when the first began, ms since the epoch. `attributes` are free for
    the hooks.
    """

    group: str
    messages: Sequence[Message]
    properties: list[dict[str, str]]
    result: SendResult | None = None
    error: BaseException | None = None
    address: str = ""
    began_ms: int = field(default_factory=now_ms)
    attributes: dict[str, Any] = field(default_factory=dict)


class SendHook(Protocol):
    """Called around every send of a producer, in its event loop; what a hook raises is logged and changes nothing."""

    def before_send(self, context: SendContext) -> None:
        """Called before the message is encoded."""

    def after_send(self, context: SendContext) -> None:
        """Called when the message is stored, or is given up."""


def run_hooks(hooks: Sequence[Callable[[SendContext], None]], context: SendContext) -> None:
    """Calls `hooks`; a failure is logged, as Java does."""
    for hook in hooks:
        try:
            hook(context)
        except Exception:
            log.exception("send hook %s failed", hook)
