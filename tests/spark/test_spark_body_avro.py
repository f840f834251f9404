"""Tests of Avro bodies: Spark types of a schema, and decoded values."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from fastavro import parse_schema, schemaless_writer
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StructType

from gantrymq.arrow.body_values import ValueDecoder
from gantrymq.errors import CodecError, ConfigError
from gantrymq.spark.bodies.avro_bodies import avro_bodies
from gantrymq.spark.versions import to_arrow_schema

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}},
        {"name": "before", "type": ["Kind", "null"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "time", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
        {
            "name": "items",
            "type": {
                "type": "array",
                "items": {"type": "record", "name": "Item", "fields": [{"name": "count", "type": "int"}]},
            },
        },
        {"name": "labels", "type": {"type": "map", "values": ["null", "double"]}},
        {"name": "first", "type": ["null", "shop.Item"]},
    ],
}
VALUE = {
    "id": 2**40,
    "note": None,
    "kind": "OLD",
    "before": "NEW",
    "at": datetime(2026, 1, 31, 12, tzinfo=UTC),
    "local": datetime(2026, 1, 31, 12, 0, 0, 1),
    "day": date(2026, 1, 31),
    "time": 3,
    "total": Decimal("12.50"),
    "uuid": "2f4cbbd4-4d4c-4bb7-a0b9-1d6f0d4fd3a8",
    "hash": b"\0\1",
    "items": [{"count": 1}, {"count": 2}],
    "labels": {"a": 0.5, "b": None},
    "first": {"count": 3},
}


def encoded(schema: Any, value: Any) -> bytes:
    data = io.BytesIO()
    schemaless_writer(data, parse_schema(json.loads(json.dumps(schema))), value)
    return data.getvalue()


def decoded(schema: Any, *bodies: bytes) -> tuple[list[Any], dict[int, str]]:
    values, errors = decoder_of(schema).decode(bodies)
    return values.to_pylist(), errors


def decoder_of(schema: Any) -> ValueDecoder:
    kind, decode = avro_bodies(json.dumps(schema))
    (field,) = to_arrow_schema(StructType().add("value", kind))
    return ValueDecoder(decode, field.type)


DECODER = decoder_of(ORDER)


def test_every_type() -> None:
    written = VALUE | {"time": datetime(2026, 1, 1, 0, 0, 0, 3000).time(), "uuid": UUID(str(VALUE["uuid"]))}
    (found,), errors = decoded(ORDER, encoded(ORDER, written))
    assert not errors
    assert found == VALUE | {"labels": [("a", 0.5), ("b", None)]}


def test_types_in_words() -> None:
    kind, _ = avro_bodies(json.dumps(ORDER))
    assert kind.simpleString() == (
        "struct<id:bigint,note:string,kind:string,before:string,at:timestamp,local:timestamp_ntz,day:date,time:int,"
        "total:decimal(9,2),uuid:string,hash:binary,items:array<struct<count:int>>,labels:map<string,double>,"
        "first:struct<count:int>>"
    )
    assert avro_bodies('"long"')[0] == LongType()


def test_a_precision_that_is_no_number() -> None:
    schema = {"type": "bytes", "logicalType": "decimal", "precision": "9"}
    assert decoded(schema, b"\2\7") == ([b"\7"], {})


def test_a_bad_body_among_others() -> None:
    good = encoded("string", "tea")
    values, errors = decoded("string", good, b"", b"\x08te", good + b"\0")
    assert values == ["tea", None, None, None]
    assert list(errors) == [1, 2, 3]
    assert "1 of 5 bytes are left over" in errors[3]


ENUM = {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}


@pytest.mark.parametrize(
    ("schema", "body", "problem"),
    [
        # -1 and -2 in Avro's encoding. Python lists would accept these indexes.
        (ENUM, b"\1", "-1 of the 2 symbols of Kind"),
        (ENUM, b"\3", "-2 of the 2 symbols of Kind"),
        (ENUM, b"\4", "2 of the 2 symbols of Kind"),
        (["null", "string"], b"\1\2a", "-1 of the 2 types of a union"),
        (["null", "string"], b"\3", "-2 of the 2 types of a union"),
        # 2**64 in ten bytes. Its low 64 bits are 0.
        (["null", "string"], b"\x80" * 9 + b"\4", "of the 2 types of a union"),
        (["null", "string"], b"\x80" * 4_000_000, "longer than ten bytes"),
        ({"type": "array", "items": ["null", "long"]}, b"\2\1\2\0", "-1 of the 2 types"),
        # A block with its size in bytes.
        ({"type": "array", "items": ENUM}, b"\1\2\1\0", "-1 of the 2 symbols"),
        ({"type": "map", "values": ENUM}, b"\2\2a\1\0", "-1 of the 2 symbols"),
        ({"type": "array", "items": "string"}, b"\xfe\xff\xff\xff\x0f\2a", "ends too early"),
        ("string", b"\1", "a length of -1"),
        ("bytes", b"\x80" * 9 + b"\1", "ends too early"),
    ],
)
def test_hostile_indexes_and_lengths(schema: Any, body: bytes, problem: str) -> None:
    for written, data in [
        (schema, body),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": schema}]},
         b"\2" + body),
    ]:  # fmt: skip
        values, errors = decoded(written, data)
        assert values == [None]
        assert problem in errors[0]


def test_blocks_with_their_sizes() -> None:
    schema = {"type": "array", "items": ["null", ENUM]}
    assert decoded(schema, b"\3\6\2\0\0\2\2\2\0") == ([["NEW", None, "OLD"]], {})


@pytest.mark.parametrize("items", ["null", {"type": "record", "name": "Empty", "fields": []}])
def test_arrays_of_nothing(items: Any) -> None:
    # b"\xfe\xff\xff\xff\x0f\0" would encode two billion of them.
    with pytest.raises(CodecError, match="an array whose items take no bytes"):
        avro_bodies(json.dumps({"type": "array", "items": items}))


@given(st.binary(max_size=80))
def test_any_bytes_are_a_value_or_an_error(data: bytes) -> None:
    values, errors = DECODER.decode([data])
    assert values.is_valid()[0].as_py() != (0 in errors)


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ("{", "is no JSON"),
        ('["int", "string"]', "value is a union"),
        (
            '{"type": "record", "name": "Tree", "fields": [{"name": "left", "type": ["null", "Tree"]}]}',
            r"value\.left is a Tree within itself",
        ),
    ],
)
def test_schemas_without_a_type(schema: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        avro_bodies(schema)


@pytest.mark.parametrize("schema", ['"strin"', '{"type": []}', "{}", "[[]]"])
def test_no_schema(schema: str) -> None:
    with pytest.raises((CodecError, ConfigError)):
        avro_bodies(schema)
