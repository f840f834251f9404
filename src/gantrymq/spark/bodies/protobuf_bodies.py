"""Protobuf bodies: messages of one type from a descriptor set. Requires the extra `gantrymq[protobuf]`.

`protoc --include_imports --descriptor_set_out=FILE` creates a descriptor set.

| protobuf | Spark |
|---|---|
| message | struct |
| google.protobuf.Timestamp | timestamp |
| repeated, map | array, map |
| int32, sint32, sfixed32 | int |
| int64, sint64, sfixed64, uint32, fixed32 | bigint |
| uint64, fixed64 | decimal(20, 0) |
| enum | string: the name, or the number of a value without a name |
| string, bytes, bool, float, double | string, binary, boolean, float, double |

An unset message, `optional` field or field of a oneof is null. Any other unset field has its default.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC
from decimal import Decimal
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from gantrymq.arrow.body_values import DecodeBody
from gantrymq.codecs.protobuf import ProtobufCodec
from gantrymq.codecs.registry.protobuf_files import find_message
from gantrymq.errors import CodecError, ConfigError
from gantrymq.extras import missing

try:
    from google.protobuf import descriptor_pb2, message_factory
    from google.protobuf.descriptor import FieldDescriptor
except ImportError as e:
    raise missing("protobuf", "gantrymq.spark.bodies.protobuf_bodies", e) from e

TIMESTAMP = "google.protobuf.Timestamp"

Convert = Callable[[Any], Any]


def protobuf_bodies(descriptors: bytes, message: str) -> tuple[DataType, DecodeBody]:
    """Returns the type of the column and the decoder for messages with this full name.

    Raises ConfigError for an invalid or incomplete descriptor set, and for a recursive message.
    """
    descriptor = find_message(descriptors, message)
    kind, convert = _struct(descriptor, "value", ())
    codec = ProtobufCodec(message_factory.GetMessageClass(descriptor))

    def decode(body: bytes) -> Any:
        found = codec.decode(body)
        try:
            return convert(found)
        except (ArithmeticError, ValueError) as e:
            # An example is a timestamp after the year 9999.
            raise CodecError(f"no protobuf {message}: {e}") from e

    return kind, decode


def _struct(descriptor: Any, path: str, within: tuple[str, ...]) -> tuple[DataType, Convert]:
    if descriptor.full_name in within:
        raise ConfigError(f"{path} is a {descriptor.full_name} within itself, for which Spark has no type")
    within = (*within, descriptor.full_name)
    repeated = repeated_fields(descriptor)
    fields, converts = [], []
    for field in descriptor.fields:
        is_repeated = field.name in repeated
        kind, convert = _field(field, is_repeated, f"{path}.{field.name}", within)
        fields.append(StructField(field.name, kind))
        converts.append((field.name, field.has_presence and not is_repeated, convert))

    def convert_all(message: Any) -> dict[str, Any]:
        return {
            name: None if has_presence and not message.HasField(name) else convert(getattr(message, name))
            for name, has_presence, convert in converts
        }

    return StructType(fields), convert_all


def repeated_fields(descriptor: Any) -> set[str]:
    """Returns the names of the repeated fields of a message, including maps."""
    # Neither `label` nor `is_repeated` of a descriptor exists in all versions of protobuf.
    proto = descriptor_pb2.DescriptorProto()
    descriptor.CopyToProto(proto)
    return {field.name for field in proto.field if field.label == descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED}


def _field(field: Any, is_repeated: bool, path: str, within: tuple[str, ...]) -> tuple[DataType, Convert]:
    if not is_repeated:
        return _single(field, path, within)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entry = field.message_type.fields_by_name
        key_kind, convert_key = _single(entry["key"], f"{path}[]", within)
        value_kind, convert_value = _single(entry["value"], f"{path}[]", within)
        return MapType(key_kind, value_kind), lambda found: [
            (convert_key(key), convert_value(value)) for key, value in found.items()
        ]
    kind, convert = _single(field, f"{path}[]", within)
    return ArrayType(kind), lambda found: [convert(value) for value in found]


def _single(field: Any, path: str, within: tuple[str, ...]) -> tuple[DataType, Convert]:
    if field.type in (FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_GROUP):
        if field.message_type.full_name == TIMESTAMP:
            return TimestampType(), lambda found: found.ToDatetime(tzinfo=UTC)
        return _struct(field.message_type, path, within)
    if field.type == FieldDescriptor.TYPE_ENUM:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return StringType(), lambda found: names.get(found, str(found))
    if field.type == FieldDescriptor.TYPE_BYTES:
        return BinaryType(), _as_it_is
    return _SIMPLE[field.cpp_type]


def _as_it_is(value: Any) -> Any:
    return value


_SIMPLE: dict[int, tuple[DataType, Convert]] = {
    FieldDescriptor.CPPTYPE_INT32: (IntegerType(), _as_it_is),
    FieldDescriptor.CPPTYPE_INT64: (LongType(), _as_it_is),
    FieldDescriptor.CPPTYPE_UINT32: (LongType(), _as_it_is),
    FieldDescriptor.CPPTYPE_UINT64: (DecimalType(20, 0), Decimal),
    FieldDescriptor.CPPTYPE_FLOAT: (FloatType(), _as_it_is),
    FieldDescriptor.CPPTYPE_DOUBLE: (DoubleType(), _as_it_is),
    FieldDescriptor.CPPTYPE_BOOL: (BooleanType(), _as_it_is),
    FieldDescriptor.CPPTYPE_STRING: (StringType(), _as_it_is),
}
