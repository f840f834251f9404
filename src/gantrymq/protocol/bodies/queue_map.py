"""Encodes and decodes maps with MessageQueue objects as keys, in fastjson's form.

    {{"brokerName":"b","queueId":0,"topic":"t"}:{...}}

This is not valid JSON, but Java accepts no other form: it rejects quoted keys (fastjson2 2.0.59). A body to encode
contains such a map as `msgspec.Raw`. In a decoded body, the keys are strings with the object's text.
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

# As in `fastjson`, this also matches an unterminated string, so that no quote is tried twice.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[{}\[\],:]', re.DOTALL)
#: The next expected token in an open bracket.
_ARRAY, _KEY_NEXT, _VALUE_NEXT = range(3)
#: Number of entries encoded per step.
_STEP = 500
#: Deepest accepted nesting. RocketMQ's bodies have less.
_MAX_DEPTH = 100


class QueueObject(msgspec.Struct, rename="camel", frozen=True):
    """A MessageQueue as a JSON object, with the fields in Java's order."""

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
    """Returns the encoded map, as it appears in a body."""
    return finish(encode_queue_map_in_steps(table))


def encode_queue_map_in_steps(table: Mapping[MessageQueue, Any]) -> Generator[None, None, msgspec.Raw]:
    """Works like `encode_queue_map`, but in steps, because the 65,536 queues of a large topic take 60 ms."""
    items = []
    for number, (queue, value) in enumerate(table.items(), 1):
        items.append(encode_json(QueueObject.of(queue)) + b":" + encode_json(value))
        if not number % _STEP:
            yield
    return msgspec.Raw(b"{" + b",".join(items) + b"}")


def decode_with_queue_maps(data: bytes, json_type: type[T]) -> T:
    """Decodes a body with such maps. In `json_type`, they have the type `dict[str, ...]`. Raises BodyError."""
    return decode_json(quote_object_keys(data), json_type)


def by_queue(table: Mapping[str, T]) -> dict[MessageQueue, T]:
    """Converts the keys of a map of `decode_with_queue_maps` to MessageQueue objects. Raises BodyError."""
    return {decode_json(key.encode(), QueueObject).queue: value for key, value in table.items()}


def quote_object_keys(data: bytes) -> bytes:
    """Converts to standard JSON: keys that are objects become strings with the object's text. Raises BodyError."""
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
