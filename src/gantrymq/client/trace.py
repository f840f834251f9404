"""Message traces: producers and consumers record sends and consumptions in a separate topic.

    dispatcher = TraceDispatcher(producer.send)
    dispatcher.append(TraceContext(TraceType.SUB_AFTER, group, [TraceBean(topic, msg_id)], cost_time_ms=12))

The format is the same as in Java (client/trace/TraceDataEncoder). `client.admin.trace` decodes it. Source of the
dispatcher: client/trace/AsyncTraceDispatcher.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from functools import cache

from gantrymq.background.repeating import Repeating
from gantrymq.logs import peer_log
from gantrymq.protocol.message import Message
from gantrymq.protocol.message_id import UniqueKeys
from gantrymq.protocol.properties import KEY_SEPARATOR, split_keys
from gantrymq.protocol.topic_name import TRACE_TOPIC
from gantrymq.system.clock import now_ms

log = peer_log(__name__)

#: Region of a broker whose configuration has none (`MixAll.DEFAULT_TRACE_REGION_ID`).
DEFAULT_REGION = "DefaultRegion"
#: Largest number of pending contexts. Further contexts are dropped, because traces must not block messages.
MAX_WAITING = 2048
#: Largest number of contexts in one send (traceMsgBatchNum).
BATCH = 10
#: A smaller batch is sent after this time, s.
FLUSH_INTERVAL_S = 5.0
#: The longest time for which a closing client waits for its traces, s.
CLOSE_TIMEOUT_S = 3.0
#: Largest text of a trace message, and largest property with its keys, in characters.
MAX_TEXT = 128_000
MAX_KEYS = 10_000
#: Prefix of the producer group that sends a consumer's traces (`TraceConstants`).
TRACE_GROUP_PREFIX = "_INNER_TRACE_PRODUCER"

_FIELD_END = "\x01"
_LINE_END = "\x02"


@cache
def _request_ids() -> UniqueKeys:
    return UniqueKeys()


class TraceType(Enum):
    """Event of a trace (`TraceType`)."""

    PUB = "Pub"
    RECALL = "Recall"
    SUB_BEFORE = "SubBefore"
    SUB_AFTER = "SubAfter"
    END_TRANSACTION = "EndTransaction"


class MessageType(IntEnum):
    """Kind of a message (`MessageType`, by ordinal)."""

    NORMAL = 0
    TRANSACTION_HALF = 1
    TRANSACTION_COMMIT = 2
    DELAY = 3
    ORDER = 4


@dataclass(slots=True)
class TraceBean:
    """One message in a trace. `store_host` is its broker's HOST:PORT; `transaction_state` is Java's name."""

    topic: str
    msg_id: str
    offset_msg_id: str = ""
    tags: str = ""
    keys: str = ""
    store_host: str = ""
    body_length: int = 0
    retry_times: int = 0
    message_type: MessageType = MessageType.NORMAL
    transaction_id: str = ""
    transaction_state: str = ""
    from_transaction_check: bool = False


@dataclass(slots=True)
class TraceContext:
    """One event of the messages `beans` in a group; times in ms.

    `request_id` links a SUB_BEFORE to its SUB_AFTER. `context_code` is the result of a handler (`ConsumeReturnType`:
    0 success, 1 timeout, 2 exception, 3 null, 4 failed).
    """

    trace_type: TraceType
    group: str
    beans: Sequence[TraceBean]
    timestamp: int = field(default_factory=now_ms)
    region_id: str = DEFAULT_REGION
    cost_time_ms: int = 0
    success: bool = True
    request_id: str = field(default_factory=lambda: _request_ids().next())
    context_code: int = 0


def encode_trace(context: TraceContext) -> str:
    """Encodes a context, one line for each of its messages."""
    return "".join(_line(context, bean) for bean in context.beans)


def trace_keys(context: TraceContext) -> set[str]:
    """Returns the search keys of a trace message: ids and keys of its messages."""
    return set().union(*map(_keys, context.beans))


def _line(context: TraceContext, bean: TraceBean) -> str:
    fields = _FIELDS[context.trace_type](context, bean)
    return f"{context.trace_type.value}{_FIELD_END}{_FIELD_END.join(map(_text, fields))}{_LINE_END}"


def _keys(bean: TraceBean) -> set[str]:
    """Returns id and keys of a message. Leaves out keys that are too long for a property."""
    keys = set(split_keys(bean.keys)) if len(bean.keys) <= MAX_KEYS else set()
    return (keys | {bean.msg_id}) - {""}


def _text(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _head(context: TraceContext) -> tuple[object, ...]:
    return context.timestamp, context.region_id, context.group


def _pub(context: TraceContext, bean: TraceBean) -> tuple[object, ...]:
    return (
        *_head(context),
        *(bean.topic, bean.msg_id, bean.tags, bean.keys, bean.store_host, bean.body_length),
        *(context.cost_time_ms, int(bean.message_type), bean.offset_msg_id, context.success),
    )


def _recall(context: TraceContext, bean: TraceBean) -> tuple[object, ...]:
    return (*_head(context), bean.topic, bean.msg_id, context.success)


def _sub_before(context: TraceContext, bean: TraceBean) -> tuple[object, ...]:
    return (*_head(context), context.request_id, bean.msg_id, bean.retry_times, bean.keys)


def _sub_after(context: TraceContext, bean: TraceBean) -> tuple[object, ...]:
    return (
        *(context.request_id, bean.msg_id, context.cost_time_ms, context.success, bean.keys),
        *(context.context_code, context.timestamp, context.group),
    )


def _end_transaction(context: TraceContext, bean: TraceBean) -> tuple[object, ...]:
    return (
        *_head(context),
        *(bean.topic, bean.msg_id, bean.tags, bean.keys, bean.store_host, int(bean.message_type)),
        *(bean.transaction_id, bean.transaction_state, bean.from_transaction_check),
    )


_FIELDS: dict[TraceType, Callable[[TraceContext, TraceBean], tuple[object, ...]]] = {
    TraceType.PUB: _pub,
    TraceType.RECALL: _recall,
    TraceType.SUB_BEFORE: _sub_before,
    TraceType.SUB_AFTER: _sub_after,
    TraceType.END_TRANSACTION: _end_transaction,
}


class TraceDispatcher:
    """Sends contexts to the trace topic, several in one message. Failed sends are logged and not repeated.

    `send` is a producer's method. That producer must not trace the messages that it sends to `topic`.
    """

    def __init__(self, send: Callable[[Message], Awaitable[object]], topic: str = TRACE_TOPIC) -> None:
        self.topic = topic
        self._send = send
        self._waiting: deque[TraceContext] = deque()
        self._dropped = 0
        self._under_way = 0
        #: Locked during a send, by the job or by `close`.
        self._sending = asyncio.Lock()
        self._job = Repeating("the sending of traces", self._send_waiting, after_error_s=FLUSH_INTERVAL_S)

    def append(self, context: TraceContext) -> bool:
        """Adds a context, in the event loop. If too many are pending, drops the context and returns False."""
        if len(self._waiting) >= MAX_WAITING:
            self._dropped += 1
            if self._dropped & (self._dropped - 1) == 0:
                log.warning("%d traces were dropped: more come than %s takes", self._dropped, self.topic)
            return False
        self._waiting.append(context)
        self._job.start()
        self._job.wake(0.0 if len(self._waiting) >= BATCH else FLUSH_INTERVAL_S)
        return True

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Sends the pending contexts, for at most `timeout_s` seconds (default: CLOSE_TIMEOUT_S). Drops the rest."""
        try:
            async with asyncio.timeout(min(timeout_s, CLOSE_TIMEOUT_S)):
                await self._send_waiting()
        except TimeoutError:
            log.warning(
                "%d traces were not sent: %s did not take them in time",
                self._under_way + len(self._waiting),
                self.topic,
            )
            self._waiting.clear()
        finally:
            await self._job.stop()

    async def _send_waiting(self) -> None:
        async with self._sending:
            while self._waiting:
                contexts = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
                self._under_way = len(contexts)
                by_topic: dict[str, list[TraceContext]] = {}
                for context in contexts:
                    by_topic.setdefault(context.beans[0].topic, []).append(context)
                for message in (message for same in by_topic.values() for message in trace_messages(same, self.topic)):
                    try:
                        await self._send(message)
                    except Exception as e:
                        # Any error, because hooks are user code. The other traces are still sent.
                        log.warning("a trace was not sent: %s: %s", type(e).__name__, e)
                self._under_way = 0


def trace_messages(contexts: Iterable[TraceContext], topic: str) -> Iterable[Message]:
    """Returns the trace messages for `contexts`: one, or several if text or keys are long."""
    text, keys, keys_length = "", set[str](), 0
    for context in contexts:
        for bean in context.beans:
            text += _line(context, bean)
            new = _keys(bean) - keys
            keys |= new
            keys_length += sum(len(key) + len(KEY_SEPARATOR) for key in new)
            if len(text) >= MAX_TEXT or keys_length >= MAX_KEYS:
                yield Message(topic, text.encode(), keys=sorted(keys))
                text, keys, keys_length = "", set(), 0
    if text:
        yield Message(topic, text.encode(), keys=sorted(keys))
