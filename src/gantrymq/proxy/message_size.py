"""Calculates the memory of a protobuf message from its encoding, before the message is parsed.

Two encoded bytes can become an element of 80 bytes in memory, and four bytes an element of 310. `memory_scan` reads the
encoding once, creates no message, and stops at the limits of its rpc. Depth needs no limit of its own: no message of
RocketMQ contains itself, unknown fields are skipped, and groups, which can nest without end, are refused.

The figures are from protobuf's C implementation (upb). The scan of a SendMessage with one message takes 5 us. While
much memory is free, callers therefore use the upper limit `most_memory_of` of a small message instead of a scan.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple, TypeAlias, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

#: Size of a message's Python object and the first block of its arena, bytes.
_BASE_BYTES = 1536
#: Size of a message without its fields, bytes, and of a pointer to it in a repeated field. The array grows by doubling.
_MESSAGE_BYTES = 40
_POINTER_BYTES = 24
#: Size of an element of a repeated field, bytes: of strings, and of numbers. In a packed field, each byte is a number.
_STRING_BYTES = 40
_NUMBER_BYTES = 12
#: Size of a map entry without its key and value, bytes.
_MAP_ENTRY_BYTES = 104
#: Size of a field that is not in the schema, bytes, in addition to its encoding.
_UNKNOWN_BYTES = 64
#: A message of at most _SHORT bytes without nested messages is not scanned. Each byte then counts as _SHORT_FACTOR
#: bytes of memory.
_SHORT = 64
_SHORT_FACTOR = 4
#: Largest memory for each encoded byte, reached by a message with an empty `system_properties`, which has 4 bytes.
_WORST_FACTOR = 96

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
#: Longest tag or length, bytes. Both are 32-bit numbers.
_LONGEST_VARINT = 5
#: Fields in one step of a scan; a power of two. A step takes 0.6 ms.
_STEP_FIELDS = 2048


class NotAMessage(Exception):
    """Raised for bytes that are not an encoded message."""


class MessageTooLarge(Exception):
    """Raised for a message that exceeds a limit."""


class SizeLimit(NamedTuple):
    """Limits of one message: bytes of its decompressed encoding, fields at any depth, bytes of memory."""

    encoded_bytes: int
    fields: int
    memory_bytes: int


class Shape:
    """The fields of a message type with their memory costs."""

    __slots__ = ("is_leaf", "own_bytes", "parts")

    def __init__(self, descriptor: Descriptor) -> None:
        self.own_bytes = _MESSAGE_BYTES + sum(16 if _is_text(field) else 8 for field in descriptor.fields)
        #: Fields by protobuf tag.
        self.parts: dict[int, _Part] = {}
        for field in descriptor.fields:
            self._add(field)
        self.is_leaf = not any(shape for shape, _, _ in self.parts.values())

    def _add(self, field: FieldDescriptor) -> None:
        number = field.number << 3
        if field.message_type is not None:
            shape = Shape(field.message_type)
            if field.message_type.GetOptions().map_entry:
                cost = _MAP_ENTRY_BYTES
            else:
                cost = shape.own_bytes + (_POINTER_BYTES if field.is_repeated else 0)
            self.parts[number | _LENGTH] = shape, cost, 0
        elif _is_text(field):
            self.parts[number | _LENGTH] = None, _STRING_BYTES if field.is_repeated else 0, 0
        else:
            cost = _NUMBER_BYTES if field.is_repeated else 0
            for wire_type in (_VARINT, _FIXED64, _FIXED32):
                self.parts[number | wire_type] = None, cost, 0
            if field.is_repeated:
                self.parts[number | _LENGTH] = None, 0, _NUMBER_BYTES


#: A field: its message type or None, the memory of each occurrence, and the memory of each byte of the field.
_Part: TypeAlias = "tuple[Shape | None, int, int]"
_UNKNOWN: _Part = (None, _UNKNOWN_BYTES, 0)


def _is_text(field: FieldDescriptor) -> bool:
    return field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)


_shapes: dict[type[Message], Shape] = {}


def shape_of(message_type: type[Message]) -> Shape:
    shape = _shapes.get(message_type)
    if shape is None:
        shape = _shapes[message_type] = Shape(cast(Descriptor, message_type.DESCRIPTOR))
    return shape


def most_memory_of(size: int) -> int:
    """Returns the most memory that a message of `size` bytes can take, bytes."""
    return _BASE_BYTES + size * _WORST_FACTOR


def memory_of_built(message: Message) -> int:
    """Returns the memory of a message that exists as an object, bytes."""
    data = message.SerializeToString()
    return memory_of(data, shape_of(type(message)), SizeLimit(len(data), len(data), 1 << 62))


def memory_of(data: bytes | bytearray, shape: Shape, limit: SizeLimit) -> int:
    """Returns the memory of an encoded message, bytes. Raises NotAMessage or MessageTooLarge."""
    scan = memory_scan(data, shape, limit)
    while True:
        try:
            next(scan)
        except StopIteration as e:
            return cast(int, e.value)


def memory_scan(data: bytes | bytearray, shape: Shape, limit: SizeLimit) -> Generator[None, None, int]:
    """Calculates like `memory_of`, as a generator that yields after each step."""
    at, end = 0, len(data)
    memory, most_memory = _BASE_BYTES + end + shape.own_bytes, end + limit.memory_bytes
    left = limit.fields
    parts = shape.parts
    #: Enclosing messages: the end and the fields of each.
    outer: list[tuple[int, dict[int, _Part]]] = []
    try:
        while True:
            while at < end:
                left -= 1
                if not left & (_STEP_FIELDS - 1):
                    yield
                tag = data[at]
                if tag > 127:
                    tag, at = _varint(data, at)
                else:
                    at += 1
                inner, cost, byte_cost = parts.get(tag, _UNKNOWN)
                memory += cost
                wire_type = tag & 7
                if wire_type == _LENGTH:
                    length = data[at]
                    if length > 127:
                        length, at = _varint(data, at)
                    else:
                        at += 1
                    if inner is None:
                        at += length
                        memory += length * byte_cost
                    elif length <= _SHORT and inner.is_leaf:
                        at += length
                        memory += length * _SHORT_FACTOR
                    else:
                        if length > end - at:
                            raise NotAMessage
                        outer.append((end, parts))
                        end, parts = at + length, inner.parts
                elif wire_type == _VARINT:
                    while data[at] > 127:
                        at += 1
                    at += 1
                elif wire_type == _FIXED64:
                    at += 8
                elif wire_type == _FIXED32:
                    at += 4
                else:
                    raise NotAMessage
                if left < 0 or memory > most_memory:
                    raise MessageTooLarge(_beyond(limit, is_fields=left < 0))
            if at > end:
                raise NotAMessage
            if not outer:
                return memory
            end, parts = outer.pop()
    except IndexError:
        raise NotAMessage from None


def _beyond(limit: SizeLimit, *, is_fields: bool) -> str:
    if is_fields:
        return f"the message has more than {limit.fields} fields"
    return f"the message takes more than {limit.memory_bytes} bytes of memory beside its own"


def _varint(data: bytes | bytearray, at: int) -> tuple[int, int]:
    """Returns a tag or a length, and the position after it."""
    number = 0
    for shift in range(0, 7 * _LONGEST_VARINT, 7):
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number >> 32:
                break
            return number, at
    raise NotAMessage
