"""Encodes the values of a column as protobuf messages, with the types and rules of `protobuf_bodies`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor

from gantrymq.codecs.registry.protobuf_files import find_message
from gantrymq.errors import CodecError
from gantrymq.spark.bodies.protobuf_bodies import TIMESTAMP, Convert, repeated_fields


def protobuf_encoder(descriptors: bytes, message: str) -> Callable[[Any], bytes]:
    """Returns an encoder for pyarrow's Python values of a struct.

    The encoder raises CodecError for a value that doesn't fit the message.
    """
    make = _message(find_message(descriptors, message))

    def encode(value: Any) -> bytes:
        try:
            return bytes(make(value).SerializeToString())
        except (ArithmeticError, TypeError, ValueError) as e:
            raise CodecError(f"no protobuf {message}: {e}") from e

    return encode


def _message(descriptor: Any) -> Convert:
    message_class = message_factory.GetMessageClass(descriptor)
    repeated = repeated_fields(descriptor)
    converts = {field.name: _field(field, field.name in repeated) for field in descriptor.fields}
    choices = [[field.name for field in choice.fields] for choice in descriptor.oneofs]

    def make(value: Any) -> Any:
        given = {name: found for name, found in value.items() if found is not None}
        for names in choices:
            if len(several := [name for name in names if name in given]) > 1:
                raise ValueError(f"{' and '.join(several)} exclude each other")
        return message_class(**{name: converts[name](found) for name, found in given.items()})

    return make


def _field(field: Any, is_repeated: bool) -> Convert:
    if not is_repeated:
        return _single(field)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entry = field.message_type.fields_by_name
        of_key, of_value = _single(entry["key"]), _single(entry["value"])
        return lambda found: {of_key(key): of_value(value) for key, value in found}
    of_item = _single(field)
    return lambda found: [of_item(item) for item in found]


def _single(field: Any) -> Convert:
    convert = _convert(field)

    def checked(value: Any) -> Any:
        # A null occurs only in arrays and maps, because null fields are omitted.
        if value is None:
            raise ValueError(f"a null in {field.name}, which protobuf has nothing for")
        return convert(value)

    return checked


def _convert(field: Any) -> Convert:
    if field.type in (FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_GROUP):
        if field.message_type.full_name == TIMESTAMP:
            timestamp_class = message_factory.GetMessageClass(field.message_type)
            return lambda value: _timestamp(timestamp_class(), value)
        return _message(field.message_type)
    if field.type == FieldDescriptor.TYPE_ENUM:
        numbers = {value.name: number for number, value in field.enum_type.values_by_number.items()}
        return lambda value: numbers[value] if value in numbers else _number(value, field)
    if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64:
        return int
    return lambda value: value


def _timestamp(made: Any, value: Any) -> Any:
    made.FromDatetime(value)
    return made


def _number(value: str, field: Any) -> int:
    """Returns the number of an enum value without a name, which a read returns as digits."""
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"{field.enum_type.name} has no {value!r}") from None
