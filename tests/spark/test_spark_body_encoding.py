"""Tests that a write encodes the column `value` into bodies, and that a read decodes the same values."""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)
from registry_server import Registry, running_registry

from gantrymq.arrow.row_messages import RowEncoder
from gantrymq.codecs.registry import client as registry_module
from gantrymq.errors import ConfigError, IllegalMessage
from gantrymq.protocol.batch import decode_batch
from gantrymq.spark.options import ReadOptions, WriteOptions
from gantrymq.spark.versions import to_arrow_schema
from gantrymq.spark.write_schema import check_columns
from gantrymq.testing.embedded import EmbeddedCluster

NewTopic = Callable[..., str]
_Field = descriptor_pb2.FieldDescriptorProto

ORDER = StructType(
    [
        StructField("id", LongType()),
        StructField("note", StringType()),
        StructField("at", TimestampType()),
        StructField("day", DateType()),
        StructField("total", DecimalType(9, 2)),
        StructField("hash", BinaryType()),
        StructField("items", ArrayType(StructType([StructField("count", IntegerType())]))),
        StructField("labels", MapType(StringType(), DoubleType())),
    ]
)
VALUE = {
    "id": 2**40,
    "note": "tea",
    "at": datetime(2026, 1, 31, 12, tzinfo=UTC),
    "day": date(2026, 1, 31),
    "total": Decimal("12.50"),
    "hash": b"\0\1",
    "items": [{"count": 1}, {"count": None}],
    "labels": [("a", 0.5), ("b", None)],
}
NOTHING = dict.fromkeys(VALUE)
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": ["null", "long"]},
        {"name": "note", "type": ["null", "string"]},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
        {"name": "total", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}]},
        {"name": "hash", "type": ["null", "bytes"]},
        {
            "name": "items",
            "type": [
                "null",
                {
                    "type": "array",
                    "items": {
                        "type": "record",
                        "name": "Item",
                        "fields": [{"name": "count", "type": ["null", "int"]}],
                    },
                },
            ],
        },
        {"name": "labels", "type": ["null", {"type": "map", "values": ["null", "double"]}]},
        {"name": "version", "type": "int", "default": 7},
    ],
}


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setattr(registry_module, "_cache", {})
    with running_registry() as running:
        yield running


def written(kind: DataType, *values: Any, topic: str = "orders", **options: str) -> list[bytes]:
    """Returns the bodies of rows with this `value` column."""
    given = {"nameserver": "127.0.0.1:9876", "topic": topic, "retrytimeoutms": "0"} | options
    schema = StructType([StructField("value", kind)])
    parsed = pickle.loads(pickle.dumps(WriteOptions.parse(given)))
    check_columns(schema, parsed)
    arrow = to_arrow_schema(schema)
    rows = pa.RecordBatch.from_arrays([pa.array(values, arrow.field("value").type)], schema=arrow)
    batches = RowEncoder(parsed, "write-0").encode(rows)[topic].free
    return [body for batch in batches for _, body, _ in decode_batch(batch.body)]


def read_back(kind: DataType | None, *bodies: bytes, **options: str) -> list[Any]:
    body = ReadOptions.parse({"nameserver": "127.0.0.1:9876", "subscribe": "orders"} | options).body
    assert body is not None
    (field,) = to_arrow_schema(StructType().add("value", body.type_of(kind)))
    values, errors = body.decoder(field.type).decode(bodies)
    assert not errors
    return list(values.to_pylist())


def test_json() -> None:
    bodies = written(ORDER, VALUE, NOTHING, bodyformat="json")
    assert json.loads(bodies[0]) == {
        "id": 2**40,
        "note": "tea",
        "at": "2026-01-31T12:00:00Z",
        "day": "2026-01-31",
        "total": 12.5,
        "hash": base64.b64encode(b"\0\1").decode(),
        "items": [{"count": 1}, {}],
        "labels": {"a": 0.5, "b": None},
    }
    # A decimal is encoded as a number, because a read expects one.
    assert b'"total":12.50' in bodies[0]
    assert bodies[1] == b"{}"
    assert read_back(ORDER, *bodies, bodyformat="json") == [VALUE, NOTHING]
    assert written(ArrayType(LongType()), [1, None], bodyformat="json") == [b"[1,null]"]


def test_string() -> None:
    assert written(StringType(), "Tee für zwei", bodyformat="string") == ["Tee für zwei".encode()]


def test_avro() -> None:
    schema = {"bodyformat": "avro", "bodyschema": json.dumps(AVRO)}
    bodies = written(ORDER, VALUE, NOTHING, **schema)
    assert read_back(None, *bodies, **schema) == [VALUE | {"version": 7}, NOTHING | {"version": 7}]
    # Narrower number types are accepted, and fields can have any order.
    kind = StructType([StructField("version", ByteType()), StructField("id", IntegerType())])
    (body,) = written(kind, {"version": 3, "id": 1}, **schema)
    assert read_back(None, body, **schema) == [NOTHING | {"version": 3, "id": 1}]


def shop() -> descriptor_pb2.FileDescriptorProto:
    """Returns a file descriptor. `Order` is its second message and has a oneof of two fields."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    file.enum_type.add(name="Kind").value.add(name="NEW", number=0)
    file.enum_type[0].value.add(name="OLD", number=1)
    item = file.message_type.add(name="Item")
    item.field.add(name="count", number=1, type=_Field.TYPE_INT32, label=1)
    order = file.message_type.add(name="Order")
    entry = order.nested_type.add(name="LabelsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=_Field.TYPE_STRING, label=1)
    entry.field.add(name="value", number=2, type=_Field.TYPE_MESSAGE, type_name=".shop.Item", label=1)
    order.oneof_decl.add(name="payment")
    for number, (name, kind, label, type_name) in enumerate(
        [
            ("id", _Field.TYPE_INT64, 1, None),
            ("kind", _Field.TYPE_ENUM, 1, ".shop.Kind"),
            ("at", _Field.TYPE_MESSAGE, 1, ".google.protobuf.Timestamp"),
            ("serial", _Field.TYPE_UINT64, 1, None),
            ("data", _Field.TYPE_BYTES, 1, None),
            ("items", _Field.TYPE_MESSAGE, 3, ".shop.Item"),
            ("labels", _Field.TYPE_MESSAGE, 3, ".shop.Order.LabelsEntry"),
            ("first", _Field.TYPE_MESSAGE, 1, ".shop.Item"),
            ("kinds", _Field.TYPE_ENUM, 3, ".shop.Kind"),
            ("card", _Field.TYPE_STRING, 1, None),
            ("cash", _Field.TYPE_BOOL, 1, None),
        ],
        1,
    ):
        field = order.field.add(name=name, number=number, type=kind, label=label, type_name=type_name)
        if name in ("card", "cash"):
            field.oneof_index = 0
    return file


def descriptor_set(directory: Path) -> dict[str, str]:
    """Writes the descriptor set to a file and returns the options that refer to it."""
    whole = descriptor_pb2.FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(whole.file.add())
    whole.file.append(shop())
    path = directory / "shop.desc"
    path.write_bytes(whole.SerializeToString())
    return {"bodyformat": "protobuf", "bodyschemafile": str(path), "bodymessage": "shop.Order"}


ITEM = StructType([StructField("count", IntegerType())])
SHOP_ORDER = StructType(
    [
        StructField("id", LongType()),
        StructField("kind", StringType()),
        StructField("at", TimestampType()),
        StructField("serial", DecimalType(20, 0)),
        StructField("data", BinaryType()),
        StructField("items", ArrayType(ITEM)),
        StructField("labels", MapType(StringType(), ITEM)),
        StructField("first", ITEM),
        StructField("kinds", ArrayType(StringType())),
        StructField("card", StringType()),
    ]
)
SHOP_VALUE = {
    "id": -3,
    "kind": "OLD",
    "at": datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=UTC),
    "serial": Decimal(2**63),
    "data": b"\xff",
    "items": [{"count": 1}, {"count": 0}],
    "labels": [("a", {"count": 5})],
    "first": {"count": 3},
    "kinds": ["OLD", "7", "NEW"],
    "card": "visa",
}


def test_protobuf(tmp_path: Path) -> None:
    schema = descriptor_set(tmp_path)
    (body,) = written(SHOP_ORDER, SHOP_VALUE, **schema)
    assert read_back(None, body, **schema) == [SHOP_VALUE | {"cash": None}]
    (body,) = written(SHOP_ORDER, dict.fromkeys(SHOP_VALUE) | {"id": 1}, **schema)
    assert body == b"\x08\x01"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"kind": "GONE"}, "Kind has no 'GONE'"),
        ({"items": [None]}, "a null in items"),
        ({"serial": Decimal(-1)}, "no protobuf shop.Order"),
        ({"cash": True}, "card and cash exclude each other"),
    ],
)
def test_values_that_no_message_has(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    kind = StructType([*SHOP_ORDER.fields, StructField("cash", BooleanType())])
    with pytest.raises(IllegalMessage, match=f"column value: no protobuf.*{problem}|{problem}") as caught:
        written(kind, SHOP_VALUE | {"cash": None}, SHOP_VALUE | {"cash": None} | change, **descriptor_set(tmp_path))
    assert caught.value.__notes__ == ["row 1 of the partition (write-0)"]


def test_values_that_are_none() -> None:
    with pytest.raises(IllegalMessage, match="the column value is null") as caught:
        written(ORDER, VALUE, None, bodyformat="json")
    assert caught.value.__notes__ == ["row 1 of the partition (write-0)"]
    with pytest.raises(IllegalMessage, match="body is null or empty"):
        written(StringType(), "", bodyformat="string")
    needed = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    kind = StructType([StructField("id", LongType())])
    with pytest.raises(IllegalMessage, match=r"column value: dict can't be written as Avro's Order"):
        written(kind, {"id": None}, bodyformat="avro", bodyschema=json.dumps(needed))


def test_with_a_registry(registry: Registry, tmp_path: Path) -> None:
    of_registry = {"schema.registry.url": registry.url}
    avro = {"bodyformat": "avro", "bodyschema": json.dumps(AVRO)} | of_registry
    # The write registers its own schema, once.
    for _ in range(2):
        bodies = written(ORDER, VALUE, **avro)
    assert registry.subjects == {"orders-value": [1]}
    assert bodies[0][:5] == b"\0\0\0\0\1"
    # Without a schema of its own, a write uses the latest registered one.
    del avro["bodyschema"]
    bodies += written(ORDER, VALUE, **avro)
    assert bodies[0] == bodies[1]
    assert read_back(None, *bodies, **avro) == [VALUE | {"version": 7}] * 2

    proto = descriptor_set(tmp_path) | of_registry | {"schema.registry.subject": "shop"}
    bodies = written(SHOP_ORDER, SHOP_VALUE, **proto)
    # The body refers to the second message of its file.
    assert bodies[0][:7] == b"\0\0\0\0\2\2\2"
    assert read_back(None, *bodies, **proto) == [SHOP_VALUE | {"cash": None}]
    del proto["bodyschemafile"]
    assert written(SHOP_ORDER, SHOP_VALUE, **proto) == bodies
    assert read_back(None, *bodies, **proto) == [SHOP_VALUE | {"cash": None}]

    number = registry.add("events", '{"type": "object", "properties": {"id": {"type": "integer"}}}', "JSON")
    kind = StructType([StructField("id", LongType())])
    events = {"bodyformat": "json", "schema.registry.subject": "events"} | of_registry
    bodies = written(kind, {"id": 1}, **events)
    assert bodies == [b"\0\0\0\0" + bytes((number,)) + b'{"id":1}']
    assert read_back(kind, *bodies, **events) == [{"id": 1}]


def test_schemas_that_a_registry_has_not(registry: Registry) -> None:
    avro = {"bodyformat": "avro", "bodyschema": json.dumps(AVRO), "schema.registry.url": registry.url}
    with pytest.raises(
        ConfigError, match=r"doesn't have this schema under subject orders-value .*auto\.register\.schemas"
    ):
        written(ORDER, VALUE, **avro, **{"auto.register.schemas": "false"})
    assert not registry.schemas
    with pytest.raises(ConfigError, match="doesn't accept this schema: Schema being registered is incompatible"):
        written(StringType(), "x", **avro | {"bodyschema": '"incompatible"'})
    with pytest.raises(ConfigError, match="no schema of subject orders-value"):
        written(ORDER, VALUE, bodyformat="json", **{"schema.registry.url": registry.url})


OF_AVRO = {"bodyformat": "avro", "bodyschema": json.dumps(AVRO)}


@pytest.mark.parametrize(
    ("kind", "options", "problem"),
    [
        (StructType([StructField("when", TimestampType())]), OF_AVRO, r"value\.when is not in the schema .* id, note"),
        (StructType([StructField("id", StringType())]), OF_AVRO, r"value\.id is string, and bigint in the schema"),
        (StringType(), OF_AVRO, r"value is string, and struct<"),
        (MapType(IntegerType(), StringType()), {"bodyformat": "json"}, "value is a map with keys of int32"),
        (
            StructType([StructField("of", ArrayType(VariantType()))]),
            {"bodyformat": "json"},
            r"value\.of\[\] is variant, .* to_json\(it\)",
        ),
        (ORDER, {"bodyformat": "json", "bodyschema": "id INT"}, "has no meaning in a write with bodyFormat json"),
        (ORDER, OF_AVRO | {"auto.register.schemas": "true"}, r"auto\.register\.schemas has no meaning without"),
        (ORDER, {"bodyschema": "id INT"}, "bodySchema has no meaning without bodyFormat"),
        (StringType(), {"bodyformat": "string", "bodyschema": "id INT"}, "no meaning with bodyFormat string"),
        (LongType(), {"bodyformat": "string"}, "value is bigint, and string in the schema"),
    ],
)
def test_mistakes_are_told_when_the_write_is_planned(kind: DataType, options: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        written(kind, **options)


def test_columns_of_a_write() -> None:
    options = WriteOptions.parse({"nameserver": "a:1", "topic": "t", "bodyformat": "json"})
    with pytest.raises(ConfigError, match="no use for column 'body'; it takes value, topic, brokerName, queueId, keys"):
        check_columns(StructType([StructField("body", StringType()), StructField("value", ORDER)]), options)
    with pytest.raises(ConfigError, match="needs a column value"):
        check_columns(StructType([StructField("keys", StringType())]), options)


@pytest.mark.spark
def test_there_and_back(spark: SparkSession, cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    rows = spark.range(0, 3000, 1, 2).select(
        F.col("id").cast("string").alias("keys"),
        F.struct("id", F.timestamp_millis(F.col("id") * 1000).alias("at"), F.array("id").alias("ids")).alias("value"),
    )
    options = {"nameServer": cluster.name_server, "bodyFormat": "json"}
    rows.write.format("rocketmq").options(topic=topic, **options).mode("append").save()
    back = spark.read.format("rocketmq").options(subscribe=topic, **options)
    back = (
        back.option("bodySchema", "id BIGINT NOT NULL, at TIMESTAMP, ids ARRAY<BIGINT>")
        .load()
        .select("keys", "value.*")
    )
    assert back.selectExpr("count(DISTINCT id)", "sum(ids[0])").first() == (3000, 2999 * 1500)
    assert back.where("unix_seconds(at) = id AND keys = string(id)").count() == 3000


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Europe/Amsterdam"])
def test_old_times(zone: str) -> None:
    """Old UTC offsets have seconds. Many tables use 0001-01-01 or 1900-01-01 for unknown times."""
    times = [datetime(1, 1, 2, tzinfo=UTC), datetime(1800, 1, 1, 12, tzinfo=UTC), datetime(1900, 1, 1, tzinfo=UTC)]
    kind = pa.struct([("at", pa.timestamp("us", zone)), ("all", pa.list_(pa.timestamp("us", zone)))])
    batch = pa.RecordBatch.from_arrays([pa.array([{"at": time, "all": [time]} for time in times], kind)], ["value"])
    options = WriteOptions.parse({"nameserver": "ns:1", "topic": "t", "bodyformat": "json"})
    (request,) = RowEncoder(options, "w-0-0").encode(batch)["t"].free
    bodies = [json.loads(body) for _, body, _ in decode_batch(request.body)]
    assert [datetime.fromisoformat(body["at"]) for body in bodies] == times
    assert [datetime.fromisoformat(body["all"][0]) for body in bodies] == times
