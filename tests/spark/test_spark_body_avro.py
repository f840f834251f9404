"""Avro bodies: Spark's types of a schema, and their values."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from fastavro import parse_schema, schemaless_writer
from pyspark.sql.types import LongType, StructType

from gantrymq.errors import CodecError, ConfigError
from gantrymq.spark.bodies.avro_bodies import avro_bodies
from gantrymq.spark.bodies.decoding import ValueDecoder
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
    kind, decode = avro_bodies(json.dumps(schema))
    (field,) = to_arrow_schema(StructType().add("value", kind))
    values, errors = ValueDecoder(decode, field.type).decode(bodies)
    return values.to_pylist(), errors


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


def test_a_bad_body_among_others() -> None:
    good = encoded("string", "tea")
    values, errors = decoded("string", good, b"", b"\x08te", good + b"\0")
    assert values == ["tea", None, None, None]
    assert list(errors) == [1, 2, 3]
    assert "1 of 5 bytes are left over" in errors[3]


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


def test_no_schema() -> None:
    with pytest.raises(CodecError, match="no Avro schema"):
        avro_bodies('"strin"')
