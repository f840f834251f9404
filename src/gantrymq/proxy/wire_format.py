"""Protobuf's wire format, for responses that are encoded without building each message."""

from __future__ import annotations

_U64 = (1 << 64) - 1


def varint(number: int) -> bytes:
    """A number, or a length. A negative one takes ten bytes."""
    number &= _U64
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def number_tag(field_number: int) -> bytes:
    """Of a field with an integer."""
    return varint(field_number << 3)


def message_tag(field_number: int) -> bytes:
    """Of a field with a message."""
    return varint(field_number << 3 | 2)
