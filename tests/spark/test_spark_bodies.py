"""Tests of bodies decoded into the column `value`: bodyFormat, bodySchema and bodySchemaFile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from gantrymq.arrow.offsets import OffsetRange
from gantrymq.arrow.rows import read_ranges
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import CodecError, ConfigError
from gantrymq.protocol.message import Message, MessageQueue
from gantrymq.spark.columns import READ_TYPES
from gantrymq.spark.options import ReadOptions
from gantrymq.spark.read_schema import arrow_schema, default_schema
from gantrymq.spark.store.options import StoreOptions
from gantrymq.testing.embedded import EmbeddedCluster

NewTopic = Callable[..., str]
ORDER = StructType([StructField("id", LongType(), False), StructField("items", StringType())])
GOOD = b'{"id": 1, "items": "tea"}'
#: The client compresses a body of 16,000 bytes.
LONG = json.dumps({"id": 2, "items": "x" * 16_000}).encode()


def options_of(**more: str) -> ReadOptions:
    return ReadOptions.parse({"nameserver": "127.0.0.1:9876", "subscribe": "orders"} | more)


def send(cluster: EmbeddedCluster, topic: str, *bodies: bytes) -> OffsetRange:
    """Sends bodies to the first queue of broker-a and returns their offset range."""
    queue = MessageQueue(topic, "broker-a", 0)

    async def send() -> None:
        async with Producer(cluster.name_server, "bodies") as producer:
            for body in bodies:
                await producer.send(Message(topic, body), queue=queue)

    asyncio.run(send())
    return OffsetRange(queue, 0, len(bodies))


def rows_of(cluster: EmbeddedCluster, part: OffsetRange, schema: StructType, **more: str) -> list[dict[str, object]]:
    options = options_of(**more | {"nameserver": cluster.name_server, "subscribe": part.queue.topic})
    columns = arrow_schema(schema, options.property_columns, options.body)
    return [row for batch in read_ranges([part], options, columns) for row in batch.to_pylist()]


VALUES = StructType([StructField("queueOffset", LongType()), StructField("value", ORDER)])
ALL = StructType([StructField("body", READ_TYPES["body"]), StructField("bodyError", StringType()), *VALUES.fields])


def test_values_of_messages(cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    part = send(cluster, new_topic(1), GOOD, LONG)
    rows = rows_of(cluster, part, VALUES, bodyformat="json")
    assert [(row["queueOffset"], row["value"]) for row in rows] == [
        (0, {"id": 1, "items": "tea"}),
        (1, {"id": 2, "items": "x" * 16_000}),
    ]
    texts = rows_of(cluster, part, StructType([StructField("value", StringType())]), bodyformat="string")
    assert [row["value"] for row in texts] == [GOOD.decode(), LONG.decode()]


def test_a_body_that_is_none_is_named_or_a_null(cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    part = send(cluster, new_topic(1), GOOD, b'{"items": "tea"}', b"\xff", GOOD)
    with pytest.raises(CodecError, match=r"broker-a:0 offsets 0 to 4: offset 1 of queue 0: .*required field `id`"):
        rows_of(cluster, part, VALUES, bodyformat="json")
    rows = rows_of(cluster, part, ALL, bodyformat="json", corruptbodies="null")
    assert [row["value"] and row["value"]["id"] for row in rows] == [1, None, None, 1]
    assert [row["body"] for row in rows] == [GOOD, b'{"items": "tea"}', b"\xff", GOOD]
    assert [row["bodyError"] is None for row in rows] == [True, False, False, True]
    texts = rows_of(
        cluster, part, StructType([StructField("value", StringType())]), bodyformat="string", corruptbodies="null"
    )
    assert [row["value"] is None for row in texts] == [False, False, True, False]


def test_avro_and_protobuf(cluster: EmbeddedCluster, new_topic: NewTopic, tmp_path: Path) -> None:
    schema = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
    kind = StructType([StructField("value", StructType([StructField("id", LongType())]))])
    part = send(cluster, new_topic(1), b"\x04", b"\x08\x02", b"\x06")
    rows = rows_of(cluster, part, kind, bodyformat="avro", bodyschema=schema, corruptbodies="null")
    assert [row["value"] and row["value"]["id"] for row in rows] == [2, None, 3]

    shop = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    number = descriptor_pb2.FieldDescriptorProto.TYPE_INT64
    shop.message_type.add(name="Order").field.add(name="id", number=1, type=number, label=1)
    file = tmp_path / "shop.desc"
    file.write_bytes(descriptor_pb2.FileDescriptorSet(file=[shop]).SerializeToString())
    of_proto = {"bodyformat": "protobuf", "bodyschemafile": str(file), "bodymessage": "shop.Order"}
    rows = rows_of(cluster, part, kind, corruptbodies="null", **of_proto)
    assert [row["value"] and row["value"]["id"] for row in rows] == [None, 2, None]
    with pytest.raises(CodecError, match="offset 0 of queue 0: no protobuf Order"):
        rows_of(cluster, part, kind, **of_proto)
    other = StructType([StructField("value", StructType([StructField("id", IntegerType())]))])
    with pytest.raises(ConfigError, match="column value is struct<id:bigint>, not struct<id:int>"):
        arrow_schema(other, (), options_of(**of_proto).body)


def test_options(tmp_path: Path) -> None:
    file = tmp_path / "order.ddl"
    file.write_text("id BIGINT NOT NULL, items STRING\n")
    for wrong, problem in [
        ({"bodyformat": "xml"}, "'xml' is none of string, json, avro, protobuf"),
        ({"bodyschema": "id INT"}, "no meaning without bodyFormat"),
        ({"bodyformat": "string", "bodyschema": "id INT"}, "no meaning with bodyFormat string"),
        ({"bodyformat": "json", "bodyschema": "id INT", "bodyschemafile": str(file)}, "exclude each other"),
        ({"bodyformat": "json", "bodymessage": "shop.Order"}, "bodyMessage has no meaning with bodyFormat json"),
        ({"bodyformat": "avro"}, "avro needs one of the options bodySchema"),
        ({"bodyformat": "protobuf", "bodyschemafile": str(file)}, "needs the options bodySchemaFile and bodyMessage"),
        ({"bodyformat": "json", "bodyschemafile": str(tmp_path / "none")}, "bodySchemaFile: can't read"),
    ]:
        with pytest.raises(ConfigError, match=problem):
            options_of(**wrong)
        with pytest.raises(ConfigError, match=problem):
            StoreOptions.parse({"path": "/data"} | wrong)
    options = options_of(bodyformat="json", bodyschemafile=str(file))
    assert options.body is not None
    assert options.body.column_type() == "STRUCT<id BIGINT NOT NULL, items STRING>"
    file.write_text(ORDER.json())
    assert options_of(bodyformat="JSON", bodyschemafile=str(file)).body.column_type() == ORDER  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="needs one of the options bodySchema, bodySchemaFile and schema"):
        options_of(bodyformat="json").body.column_type()  # type: ignore[union-attr]


def test_columns() -> None:
    body = options_of(bodyformat="string").body
    schema = default_schema(include_properties=False, include_body_error=False, body=body)
    assert isinstance(schema, StructType)
    assert "value" in schema.names
    assert "body" not in schema.names
    schema = default_schema(include_properties=False, include_body_error=True, body=body)
    assert {"body", "bodyError", "value"} < set(schema.names)  # type: ignore[union-attr]
    body = options_of(bodyformat="json").body
    with pytest.raises(ConfigError, match="column value is string, not int"):
        arrow_schema(StructType([StructField("value", IntegerType())]), (), options_of(bodyformat="string").body)
    with pytest.raises(ConfigError, match="'value' is the column of bodies"):
        arrow_schema(VALUES, ("value",), body)
    with pytest.raises(ConfigError, match="no column 'value'"):
        arrow_schema(VALUES)


@pytest.mark.spark
def test_in_spark(spark: SparkSession, cluster: EmbeddedCluster, new_topic: NewTopic, tmp_path: Path) -> None:
    topic = new_topic(1)
    send(cluster, topic, GOOD, LONG, b"none")

    def read(schema: str | None = None, **options: str) -> DataFrame:
        reader = spark.read.format("rocketmq").options(nameServer=cluster.name_server, subscribe=topic)
        reader = reader.options(bodyFormat="json", corruptBodies="null", propertyColumns="a column", **options)
        return (reader.schema(schema) if schema else reader).load()

    df = read(bodySchema="id BIGINT NOT NULL, items STRING")
    assert df.columns[-2:] == ["a column", "value"]
    rows = df.orderBy("queueOffset").select("value.id", "value.items", "bodyError", "body").collect()
    assert [(row.id, row.items) for row in rows] == [(1, "tea"), (2, "x" * 16_000), (None, None)]
    assert "malformed" in rows[2].bodyError
    assert bytes(rows[2].body) == b"none"
    (total,) = read("value struct<id: int>").where("value.id > 1").selectExpr("sum(value.id) AS id").collect()
    assert total.id == 2
    stream = spark.readStream.format("rocketmq").options(nameServer=cluster.name_server, subscribe=topic)
    stream = stream.options(startingOffsets="earliest", bodyFormat="json", bodySchema="id INT", corruptBodies="null")
    query = (
        stream.load()
        .selectExpr("value.*")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "table"))
    )
    assert query.awaitTermination(100)
    assert sorted(row.id or 0 for row in spark.read.parquet(str(tmp_path / "table")).collect()) == [0, 1, 2]
