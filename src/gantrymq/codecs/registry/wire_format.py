"""The prefix of bodies from Confluent's serializers: a byte 0, the id of the schema, and for protobuf the message path.

Source: io.confluent.kafka.serializers.AbstractKafkaSchemaSerDe, .protobuf.MessageIndexes.
"""

from __future__ import annotations

from collections.abc import Sequence

from gantrymq.codecs.registry.settings import OptionNames
from gantrymq.errors import CodecError

MAGIC = 0
_PREFIX = 5
#: The deepest accepted nesting of messages. Files usually have a few levels.
_MAX_INDEXES = 100


def prefix(schema_id: int) -> bytes:
    """Returns the prefix of a body: the byte 0 and the id of its schema."""
    return bytes((MAGIC,)) + schema_id.to_bytes(_PREFIX - 1, "big")


def split(body: bytes, names: OptionNames) -> tuple[int, bytes]:
    """Returns the id of the schema and the rest of the body. Raises CodecError if the prefix is missing."""
    if len(body) < _PREFIX or body[0] != MAGIC:
        raise CodecError(
            f"no byte 0 and id of a schema at the beginning, but {body[:_PREFIX].hex(' ')}: {names.no_prefix}"
        )
    return int.from_bytes(body[1:_PREFIX], "big"), body[_PREFIX:]


def encode_indexes(indexes: Sequence[int]) -> bytes:
    """Encodes the path of a message in its file: its index, then the index of the message nested in it, and so on."""
    if list(indexes) == [0]:
        return b"\0"
    return b"".join(_zigzag(number) for number in (len(indexes), *indexes))


def split_indexes(data: bytes) -> tuple[tuple[int, ...], bytes]:
    """Decodes the path of a message in its file. Returns the path and the bytes of the message. Raises CodecError."""
    count, position = _read_zigzag(data, 0)
    if count == 0:
        return (0,), data[position:]
    if not 0 < count <= _MAX_INDEXES:
        raise CodecError(f"the body doesn't say which message it is: {count} indexes")
    indexes = []
    for _ in range(count):
        index, position = _read_zigzag(data, position)
        indexes.append(index)
    return tuple(indexes), data[position:]


def _zigzag(number: int) -> bytes:
    left = number << 1
    encoded = bytearray()
    while left > 0x7F:
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    encoded.append(left)
    return bytes(encoded)


def _read_zigzag(data: bytes, position: int) -> tuple[int, int]:
    """Returns the number at `position`, and the position after it. Raises CodecError for an incomplete number."""
    number = shift = 0
    while position < len(data) and shift < 35:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), position
        shift += 7
    raise CodecError("the message indexes at the start of the body are incomplete or too long")
