"""Tests of Protobuf bodies: Spark types of a message, and decoded values."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from pyspark.sql.types import StructType

from gantrymq.arrow.body_values import ValueDecoder
from gantrymq.errors import ConfigError
from gantrymq.spark.bodies.protobuf_bodies import protobuf_bodies
from gantrymq.spark.versions import to_arrow_schema

_Field = descriptor_pb2.FieldDescriptorProto
_ONE, _MANY = _Field.LABEL_OPTIONAL, _Field.LABEL_REPEATED


def descriptors() -> bytes:
    """Returns the descriptor set that protoc writes for shop.proto, which imports timestamp.proto."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    kind = file.enum_type.add(name="Kind")
    for number, name in enumerate(("NEW", "OLD")):
        kind.value.add(name=name, number=number)
    item = file.message_type.add(name="Item")
    item.field.add(name="count", number=1, type=_Field.TYPE_INT32, label=_ONE)
    order = file.message_type.add(name="Order")
    entry = order.nested_type.add(name="LabelsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=_Field.TYPE_STRING, label=_ONE)
    entry.field.add(name="value", number=2, type=_Field.TYPE_DOUBLE, label=_ONE)
    order.oneof_decl.add(name="_note")
    for number, (name, field_type, label, type_name) in enumerate(
        [
            ("id", _Field.TYPE_INT64, _ONE, ""),
            ("note", _Field.TYPE_STRING, _ONE, ""),
            ("kind", _Field.TYPE_ENUM, _ONE, ".shop.Kind"),
            ("at", _Field.TYPE_MESSAGE, _ONE, ".google.protobuf.Timestamp"),
            ("size", _Field.TYPE_UINT32, _ONE, ""),
            ("serial", _Field.TYPE_UINT64, _ONE, ""),
            ("data", _Field.TYPE_BYTES, _ONE, ""),
            ("items", _Field.TYPE_MESSAGE, _MANY, ".shop.Item"),
            ("labels", _Field.TYPE_MESSAGE, _MANY, ".shop.Order.LabelsEntry"),
            ("first", _Field.TYPE_MESSAGE, _ONE, ".shop.Item"),
            ("kinds", _Field.TYPE_ENUM, _MANY, ".shop.Kind"),
        ],
        1,
    ):
        field = order.field.add(name=name, number=number, type=field_type, label=label, type_name=type_name or None)
        if name == "note":
            field.proto3_optional = True
            field.oneof_index = 0
    tree = file.message_type.add(name="Tree")
    tree.field.add(name="left", number=1, type=_Field.TYPE_MESSAGE, label=_ONE, type_name=".shop.Tree")
    whole = descriptor_pb2.FileDescriptorSet(file=[file])
    timestamp_pb2.DESCRIPTOR.CopyToProto(whole.file.add())
    whole.file.reverse()
    return whole.SerializeToString()


def message_class(name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors()).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def decoded(*bodies: bytes) -> tuple[list[Any], dict[int, str]]:
    kind, decode = protobuf_bodies(descriptors(), "shop.Order")
    (field,) = to_arrow_schema(StructType().add("value", kind))
    values, errors = ValueDecoder(decode, field.type).decode(bodies)
    return values.to_pylist(), errors


def test_every_type() -> None:
    order = message_class("shop.Order")(
        id=-(2**40), note="", kind=1, size=2**32 - 1, serial=2**64 - 1, data=b"\0", labels={"a": 0.5}, kinds=[0, 1, 7]
    )
    order.at.FromDatetime(datetime(2026, 1, 31, 12))
    order.items.add(count=2)
    order.items.add()
    (found, empty), errors = decoded(order.SerializeToString(), b"")
    assert not errors
    assert found == {
        "id": -(2**40),
        "note": "",
        "kind": "OLD",
        "at": datetime(2026, 1, 31, 12, tzinfo=UTC),
        "size": 2**32 - 1,
        "serial": Decimal(2**64 - 1),
        "data": b"\0",
        "items": [{"count": 2}, {"count": 0}],
        "labels": [("a", 0.5)],
        "first": None,
        "kinds": ["NEW", "OLD", "7"],
    }
    assert (empty["id"], empty["note"], empty["at"], empty["items"]) == (0, None, None, [])


def test_a_bad_body_among_others() -> None:
    good = message_class("shop.Order")(id=1).SerializeToString()
    late = message_class("shop.Order")(id=2)
    late.at.seconds = 2**60
    values, errors = decoded(good, b"\xff", late.SerializeToString())
    assert [value and value["id"] for value in values] == [1, None, None]
    assert list(errors) == [1, 2]


def test_what_is_no_message() -> None:
    with pytest.raises(ConfigError, match=r"no message shop\.Basket"):
        protobuf_bodies(descriptors(), "shop.Basket")
    with pytest.raises(ConfigError, match="no descriptor set"):
        protobuf_bodies(b"\xff", "shop.Order")
    with pytest.raises(ConfigError, match=r"value\.left is a shop\.Tree within itself"):
        protobuf_bodies(descriptors(), "shop.Tree")
