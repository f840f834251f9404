"""Protobuf bodies: messages of one type of a descriptor set (protoc --include_imports --descriptor_set_out=FILE).

    message                         struct; google.protobuf.Timestamp a timestamp
    repeated, map                   array, map
    int32, sint32, sfixed32         int
    int64 ..., uint32, fixed32      bigint
    uint64, fixed64                 decimal(20, 0)
    enum                            string: its name, or the number of one that the descriptor hasn't got
    string, bytes, bool, float, double

A field that knows whether it is there (messages, `optional`, oneof) is null when it isn't; another has its default. The
extra `gantrymq[protobuf]`.
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

from gantrymq.codecs.protobuf import ProtobufCodec
from gantrymq.errors import CodecError, ConfigError
from gantrymq.extras import missing
from gantrymq.spark.bodies.decoding import DecodeBody

try:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.descriptor import FieldDescriptor
except ImportError as e:
    raise missing("protobuf", "gantrymq.spark.bodies.protobuf_bodies", e) from e

TIMESTAMP = "google.protobuf.Timestamp"

Convert = Callable[[Any], Any]


def protobuf_bodies(descriptors: bytes, message: str) -> tuple[DataType, DecodeBody]:
    """The column's type and the decoder for messages of that full name.

    Raises ConfigError where the descriptor set isn't one or lacks something, and for a message within itself.
    """
    descriptor = find_message(descriptors, message)
    kind, convert = _struct(descriptor, "value", ())
    codec = ProtobufCodec(message_factory.GetMessageClass(descriptor))

    def decode(body: bytes) -> Any:
        found = codec.decode(body)
        try:
            return convert(found)
        except (ArithmeticError, ValueError) as e:
            # A timestamp beyond the year 9999.
            raise CodecError(f"no protobuf {message}: {e}") from e

    return kind, decode


def find_message(descriptors: bytes, message: str) -> Any:
    """The descriptor of a message of a descriptor set. Raises ConfigError where it isn't one, or hasn't got it."""
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
            pool.Add(file)
        return pool.FindMessageTypeByName(message)
    except KeyError as e:
        raise ConfigError(f"the descriptor set has no message {message}: name it with its package") from e
    except Exception as e:
        raise ConfigError(f"no descriptor set (protoc --include_imports --descriptor_set_out): {e}") from e


def _struct(descriptor: Any, place: str, within: tuple[str, ...]) -> tuple[DataType, Convert]:
    if descriptor.full_name in within:
        raise ConfigError(f"{place} is a {descriptor.full_name} within itself, for which Spark has no type")
    within = (*within, descriptor.full_name)
    repeated = repeated_fields(descriptor)
    fields, converts = [], []
    for field in descriptor.fields:
        is_repeated = field.name in repeated
        kind, convert = _field(field, is_repeated, f"{place}.{field.name}", within)
        fields.append(StructField(field.name, kind))
        converts.append((field.name, field.has_presence and not is_repeated, convert))

    def convert_all(message: Any) -> dict[str, Any]:
        return {
            name: None if has_presence and not message.HasField(name) else convert(getattr(message, name))
            for name, has_presence, convert in converts
        }

    return StructType(fields), convert_all


def repeated_fields(descriptor: Any) -> set[str]:
    """The names of a message's arrays and maps."""
    # `label` and `is_repeated` of a descriptor are there in some versions each.
    proto = descriptor_pb2.DescriptorProto()
    descriptor.CopyToProto(proto)
    return {field.name for field in proto.field if field.label == descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED}


def _field(field: Any, is_repeated: bool, place: str, within: tuple[str, ...]) -> tuple[DataType, Convert]:
    if not is_repeated:
        return _single(field, place, within)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entry = field.message_type.fields_by_name
        key_kind, convert_key = _single(entry["key"], f"{place}[]", within)
        value_kind, convert_value = _single(entry["value"], f"{place}[]", within)
        return MapType(key_kind, value_kind), lambda found: [
            (convert_key(key), convert_value(value)) for key, value in found.items()
        ]
    kind, convert = _single(field, f"{place}[]", within)
    return ArrayType(kind), lambda found: [convert(value) for value in found]


def _single(field: Any, place: str, within: tuple[str, ...]) -> tuple[DataType, Convert]:
    if field.type in (FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_GROUP):
        if field.message_type.full_name == TIMESTAMP:
            return TimestampType(), lambda found: found.ToDatetime(tzinfo=UTC)
        return _struct(field.message_type, place, within)
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
