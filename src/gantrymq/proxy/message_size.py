"""The memory that a protobuf message takes, calculated from its encoding before the message is built.

Two bytes can encode an element that takes 80 bytes in memory, four bytes one of 310. `memory_of` reads the encoding
once, builds nothing, and stops at the limits of its rpc. Depth needs no limit of its own: no message of RocketMQ
contains itself, unknown fields are skipped, and groups, which can nest without end, are refused.

The figures are those of protobuf's C implementation (upb). A SendMessage of one message takes 5 us, so callers don't
scan a small message while there is plenty of memory: `most_memory_of` is its upper limit.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

#: The Python object of a message and the first block of its arena, bytes.
_BASE_BYTES = 1536
#: A message without its fields; the pointer to it in a repeated field, whose array grows by doubling.
_MESSAGE_BYTES = 40
_POINTER_BYTES = 24
#: An element of a repeated field of strings, and of one of numbers. A byte of a packed field is one number.
_STRING_BYTES = 40
_NUMBER_BYTES = 12
#: An entry of a map without its key and value.
_MAP_ENTRY_BYTES = 104
#: A field that the schema doesn't have is kept with its bytes.
_UNKNOWN_BYTES = 64
#: A message without messages in it that is no longer than this is not read: each of its bytes counts as so many.
_SHORT = 64
_SHORT_FACTOR = 4
#: No encoding takes more: a message with an empty `system_properties` is 4 bytes.
_WORST_FACTOR = 96

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
#: Tags and lengths are numbers of 32 bits.
_LONGEST_VARINT = 5


class NotAMessage(Exception):
    """Raised for bytes that encode no message."""


class MessageTooLarge(Exception):
    """Raised for a message beyond a limit."""


class SizeLimit(NamedTuple):
    """Limits of one message: bytes of its encoding, inflated; fields at any depth; bytes of memory."""

    encoded_bytes: int
    fields: int
    memory_bytes: int


class Shape:
    """The fields of a message type."""

    __slots__ = ("is_leaf", "own_bytes", "parts")

    def __init__(self, descriptor: Descriptor) -> None:
        self.own_bytes = _MESSAGE_BYTES + sum(16 if _is_text(field) else 8 for field in descriptor.fields)
        #: By tag.
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


#: The message that a field holds, if any; what an occurrence of it takes, and each of its bytes.
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
    """The bytes of memory that a message with so many bytes takes at most."""
    return _BASE_BYTES + size * _WORST_FACTOR


def memory_of_built(message: Message) -> int:
    """The bytes of memory that a built message takes."""
    data = message.SerializeToString()
    return memory_of(data, shape_of(type(message)), SizeLimit(len(data), len(data), 1 << 62))


def memory_of(data: bytes, shape: Shape, limit: SizeLimit) -> int:
    """The bytes of memory that a message takes. Raises NotAMessage or MessageTooLarge."""
    at, end = 0, len(data)
    memory, most_memory = _BASE_BYTES + end + shape.own_bytes, end + limit.memory_bytes
    left = limit.fields
    parts = shape.parts
    #: The messages around the one that is read: where each ends, and its fields.
    outer: list[tuple[int, dict[int, _Part]]] = []
    try:
        while True:
            while at < end:
                left -= 1
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


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A tag or a length, and where it ends."""
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
