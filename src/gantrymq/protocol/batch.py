"""Encodes and decodes the body of SEND_BATCH_MESSAGE: several messages of a topic (`MessageDecoder.encodeMessage`).

Each message: int32 size | int32 0 | int32 0 | int32 flag | int32 length + body | int16 length + properties
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from struct import error as StructError

from gantrymq.errors import BodyError
from gantrymq.protocol.properties import MAX_PROPERTIES_LENGTH

#: Largest number of messages in a batch. Java's broker counts them in an int16.
MAX_BATCH_MESSAGES = (1 << 15) - 1

_HEAD = Struct(">iiiii")
_HEAD_SIZE = _HEAD.size
_I16 = Struct(">h")
_LENGTH = Struct(">i")


def encode_batch(messages: Iterable[tuple[int, bytes, bytes]]) -> bytes:
    """Encodes (flag, body, properties bytes) of each message. Raises BodyError if properties exceed 32,767 bytes."""
    parts: list[bytes] = []
    for flag, body, properties in messages:
        if len(properties) > MAX_PROPERTIES_LENGTH:
            raise BodyError(f"properties of {len(properties)} bytes: at most {MAX_PROPERTIES_LENGTH} fit a message")
        size = _HEAD_SIZE + len(body) + 2 + len(properties)
        parts += (_HEAD.pack(size, 0, 0, flag, len(body)), body, _I16.pack(len(properties)), properties)
    return b"".join(parts)


def decode_batch(batch: bytes, start: int = 0) -> Iterator[tuple[int, bytes, bytes]]:
    """Yields (flag, body, properties bytes) of each message from `start` on. Raises BodyError for invalid lengths."""
    pos, end = start, len(batch)
    try:
        while pos < end:
            size, _, _, flag, body_length = _HEAD.unpack_from(batch, pos)
            body_start = pos + _HEAD_SIZE
            body_end = body_start + body_length
            properties_start = body_end + 2
            message_end = pos + size
            if body_length < 0 or properties_start > message_end or message_end > end:
                raise BodyError(f"message of {size} bytes with a body of {body_length} at {pos} of a batch of {end}")
            (properties_length,) = _I16.unpack_from(batch, body_end)
            if properties_length < 0 or properties_start + properties_length != message_end:
                raise BodyError(f"properties of {properties_length} bytes don't end the message at {pos} of the batch")
            yield flag, batch[body_start:body_end], batch[properties_start:message_end]
            pos = message_end
    except StructError as e:
        raise BodyError(f"batch of {end} bytes is cut off at {pos}") from e


def count_messages(batch: bytes) -> int:
    """Returns the number of messages in the body of a batch, at most MAX_BATCH_MESSAGES. The body may be illegal."""
    count = pos = 0
    while count < MAX_BATCH_MESSAGES and pos + _LENGTH.size <= len(batch):
        (size,) = _LENGTH.unpack_from(batch, pos)
        count += 1
        if size <= 0:
            break
        pos += size
    return count
