"""How bodies begin that Confluent's serializers wrote: a byte 0, the schema's id, and for protobuf which message it is.

Source: io.confluent.kafka.serializers.AbstractKafkaSchemaSerDe, .protobuf.MessageIndexes.
"""

from __future__ import annotations

from collections.abc import Sequence

from gantrymq.errors import CodecError

MAGIC = 0
_PREFIX = 5
#: Messages within messages; a descriptor set has a few levels.
_MOST_INDEXES = 100


def prefix(schema_id: int) -> bytes:
    """What stands before a body."""
    return bytes((MAGIC,)) + schema_id.to_bytes(_PREFIX - 1, "big")


def split(body: bytes) -> tuple[int, bytes]:
    """The schema's id and the rest. Raises CodecError."""
    if len(body) < _PREFIX or body[0] != MAGIC:
        raise CodecError(
            f"no byte 0 and id of a schema at the beginning, but {body[:_PREFIX].hex(' ')}: bodies without them are "
            "read without the option schema.registry.url"
        )
    return int.from_bytes(body[1:_PREFIX], "big"), body[_PREFIX:]


def encode_indexes(indexes: Sequence[int]) -> bytes:
    """The place of a message in its file: its number, then that of the one within it, and so on."""
    if list(indexes) == [0]:
        return b"\0"
    return b"".join(_zigzag(number) for number in (len(indexes), *indexes))


def split_indexes(data: bytes) -> tuple[tuple[int, ...], bytes]:
    """The place of the message and its bytes. Raises CodecError."""
    count, place = _read_zigzag(data, 0)
    if count == 0:
        return (0,), data[place:]
    if not 0 < count <= _MOST_INDEXES:
        raise CodecError(f"the body doesn't say which message it is: {count} indexes")
    indexes = []
    for _ in range(count):
        index, place = _read_zigzag(data, place)
        indexes.append(index)
    return tuple(indexes), data[place:]


def _zigzag(number: int) -> bytes:
    left = number << 1
    encoded = bytearray()
    while left > 0x7F:
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    encoded.append(left)
    return bytes(encoded)


def _read_zigzag(data: bytes, place: int) -> tuple[int, int]:
    """The number, and where the next one begins."""
    number = shift = 0
    while place < len(data) and shift < 35:
        byte = data[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), place
        shift += 7
    raise CodecError("the body ends, or goes on without end, where it should say which message it is")
