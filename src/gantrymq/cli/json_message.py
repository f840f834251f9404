"""Encodes and decodes a message as one line of JSON, for `gantry consume --json` and `gantry produce --json`."""

from __future__ import annotations

from typing import Annotated

import msgspec

from gantrymq.errors import BodyError
from gantrymq.protocol.message import Message, MessageExt
from gantrymq.protocol.properties import KEYS, TAGS
from gantrymq.times import MAX_MS


class JsonMessage(msgspec.Struct, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """The fields of a message in JSON. Text bodies are in `body`, others in `bodyBase64`.

    The second group of fields comes from the broker, and `value` from `--decode` or `--registry`. `gantry produce`
    ignores them.
    """

    body: str | None = None
    body_base64: bytes | None = None
    keys: str | list[str] | None = None
    tags: str | None = None
    sharding_key: str | None = None
    properties: dict[str, str] = {}
    flag: int = 0
    delay_level: int = 0
    delay_ms: Annotated[int, msgspec.Meta(ge=0, le=MAX_MS)] | None = None
    deliver_at_ms: int | None = None

    topic: str | None = None
    broker_name: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    msg_id: str | None = None
    offset_msg_id: str | None = None
    born_timestamp: int | None = None
    born_host: str | None = None
    store_timestamp: int | None = None
    reconsume_times: int | None = None
    value: object = None


_decode = msgspec.json.Decoder(JsonMessage).decode
_encode = msgspec.json.Encoder().encode


def decode(line: bytes) -> JsonMessage:
    """Decodes a line. Raises BodyError unless the line is such a JSON object with exactly one body."""
    try:
        message = _decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise BodyError(str(e)) from e
    if (message.body is None) == (message.body_base64 is None):
        raise BodyError("one of body and bodyBase64 is needed")
    return message


def encode(message: MessageExt, value: bytes | None = None) -> bytes:
    """Encodes a message as a line, without a line end. `value` is the decoded body as JSON."""
    properties = dict(message.properties)
    line = JsonMessage(
        keys=properties.pop(KEYS, None),
        tags=properties.pop(TAGS, None),
        properties=properties,
        flag=message.flag,
        topic=message.topic,
        broker_name=message.broker_name,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        msg_id=message.msg_id,
        offset_msg_id=message.offset_msg_id,
        born_timestamp=message.born_timestamp,
        born_host=message.born_host,
        store_timestamp=message.store_timestamp,
        reconsume_times=message.reconsume_times,
        value=None if value is None else msgspec.Raw(value),
    )
    try:
        line.body = message.body.decode()
    except UnicodeDecodeError:
        line.body_base64 = message.body
    return _encode(line)


def json_line(message: MessageExt, value: bytes | None = None) -> bytes:
    """Encodes a message as a line, with a line end. `value` is the decoded body as JSON."""
    return encode(message, value) + b"\n"


def to_send(line: JsonMessage, topic: str, defaults: Message) -> Message:
    """Returns the message for `topic`. `defaults` supplies properties that the line lacks."""
    body = line.body.encode() if line.body is not None else line.body_base64
    assert body is not None
    return Message(
        topic,
        body,
        tags=line.tags,
        keys=line.keys,
        sharding_key=line.sharding_key,
        delay_level=line.delay_level,
        delay=None if line.delay_ms is None else line.delay_ms / 1000,
        deliver_at=line.deliver_at_ms,
        flag=line.flag,
        properties=defaults.properties | line.properties,
    )
