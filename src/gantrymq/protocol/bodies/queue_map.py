"""Maps whose keys are MessageQueue objects, as fastjson writes them.

    {{"brokerName":"b","queueId":0,"topic":"t"}:{...}}

That is no JSON. Java reads it and nothing else in its place: keys that are quoted it refuses (fastjson2 2.0.59). A body
with such a map holds it as `msgspec.Raw` on the way out, and as a dictionary by the keys' text on the way in.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from typing import Any, TypeVar

import msgspec

from gantrymq.errors import BodyError
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.java import Int32
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.steps import finish

T = TypeVar("T")

# As in fastjson: a string without an end is one, too, so that no quote is tried twice.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[{}\[\],:]', re.DOTALL)
#: What an open bracket waits for.
_ARRAY, _KEY_NEXT, _VALUE_NEXT = range(3)
#: Entries that are encoded in a step.
_STEP = 500
#: Deeper nesting is no body of RocketMQ's.
_MAX_DEPTH = 100


class QueueObject(msgspec.Struct, rename="camel", frozen=True):
    """A MessageQueue as an object; fields in Java's order."""

    broker_name: str
    queue_id: Int32
    topic: str

    @classmethod
    def of(cls, queue: MessageQueue) -> QueueObject:
        return cls(queue.broker_name, queue.queue_id, queue.topic)

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker_name, self.queue_id)


def encode_queue_map(table: Mapping[MessageQueue, Any]) -> msgspec.Raw:
    """The map as it stands in a body."""
    return finish(encode_queue_map_in_steps(table))


def encode_queue_map_in_steps(table: Mapping[MessageQueue, Any]) -> Generator[None, None, msgspec.Raw]:
    """As `encode_queue_map`: a topic may have 65,536 queues, which take 60 ms."""
    items = []
    for number, (queue, value) in enumerate(table.items(), 1):
        items.append(encode_json(QueueObject.of(queue)) + b":" + encode_json(value))
        if not number % _STEP:
            yield
    return msgspec.Raw(b"{" + b",".join(items) + b"}")


def decode_with_queue_maps(data: bytes, json_type: type[T]) -> T:
    """A body in which some maps have objects as keys: these are `dict[str, ...]` of `json_type`. Raises BodyError."""
    return decode_json(quote_object_keys(data), json_type)


def by_queue(table: Mapping[str, T]) -> dict[MessageQueue, T]:
    """A map of `decode_with_queue_maps` by its queues. Raises BodyError."""
    return {decode_json(key.encode(), QueueObject).queue: value for key, value in table.items()}


def quote_object_keys(data: bytes) -> bytes:
    """JSON in which keys that are objects have become strings with the object's text. Raises BodyError."""
    pieces: list[bytes] = []
    open_brackets: list[int] = []
    copied = 0
    key_start = key_depth = -1
    for match in _TOKEN.finditer(data):
        token = match.group()
        if token in (b"{", b"["):
            if token == b"{" and key_start < 0 and open_brackets and open_brackets[-1] == _KEY_NEXT:
                key_start, key_depth = match.start(), len(open_brackets)
            if len(open_brackets) >= _MAX_DEPTH:
                raise BodyError(f"body of {len(data)} bytes is nested more than {_MAX_DEPTH} deep")
            open_brackets.append(_KEY_NEXT if token == b"{" else _ARRAY)
        elif not open_brackets:
            continue
        elif token in (b"}", b"]"):
            open_brackets.pop()
            if key_start >= 0 and len(open_brackets) == key_depth:
                pieces += (data[copied:key_start], _quoted(data[key_start : match.end()]))
                copied, key_start = match.end(), -1
        elif token == b":" and open_brackets[-1] == _KEY_NEXT:
            open_brackets[-1] = _VALUE_NEXT
        elif token == b"," and open_brackets[-1] == _VALUE_NEXT:
            open_brackets[-1] = _KEY_NEXT
    return b"".join((*pieces, data[copied:])) if pieces else data


def _quoted(key: bytes) -> bytes:
    try:
        return encode_json(key.decode())
    except UnicodeDecodeError as e:
        raise BodyError(f"a key of {len(key)} bytes is no text: {e}") from e
