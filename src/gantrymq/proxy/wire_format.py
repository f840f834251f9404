"""Protobuf's wire format, to encode large responses without an object for each message."""

from __future__ import annotations

_U64 = (1 << 64) - 1


def varint(number: int) -> bytes:
    """Encodes a number or length. A negative number takes ten bytes."""
    number &= _U64
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def number_tag(field_number: int) -> bytes:
    """Returns the tag of an integer field."""
    return varint(field_number << 3)


def message_tag(field_number: int) -> bytes:
    """Returns the tag of a message field."""
    return varint(field_number << 3 | 2)
