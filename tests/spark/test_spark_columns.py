"""Tests of column names in reads and writes: any upper and lower case, and collations."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, MapType, StringType, StructType
from spark_support import send_numbers

from gantrymq.arrow.row_messages import RowEncoder
from gantrymq.errors import ConfigError
from gantrymq.protocol.batch import decode_batch
from gantrymq.spark.datasource import RocketMQDataSource
from gantrymq.spark.options import WriteOptions
from gantrymq.spark.read_schema import arrow_schema
from gantrymq.spark.write_schema import check_columns
from gantrymq.testing.embedded import EmbeddedCluster

COLLATED = StringType("UTF8_LCASE")
NewTopic = Callable[..., str]


def test_a_read_finds_columns_in_any_case() -> None:
    schema = StructType().add("BODY", BinaryType()).add("QueueID", IntegerType()).add("SHOP", StringType())
    assert arrow_schema(schema, ["Shop"]).names == ["body", "queueId", "Shop"]
    with pytest.raises(ConfigError, match="column body is in the schema twice"):
        arrow_schema(StructType().add("BODY", BinaryType()).add("body", BinaryType()))


def test_a_read_may_have_collated_columns() -> None:
    schema = StructType().add("tags", COLLATED).add("properties", MapType(COLLATED, COLLATED))
    assert arrow_schema(schema).field("tags").type == pa.string()


def test_rows_have_the_names_that_were_asked_for(cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    send_numbers(cluster, topic, range(3))
    options = {"nameserver": cluster.name_server, "subscribe": topic}
    reader = RocketMQDataSource(options).reader(StructType().add("BODY", BinaryType()).add("Keys", COLLATED))
    rows = pa.Table.from_batches([batch for part in reader.partitions() for batch in reader.read(part)])
    assert rows.column_names == ["BODY", "Keys"]
    assert sorted(rows["Keys"].to_pylist()) == ["k0", "k1", "k2"]


def test_a_write_takes_columns_in_any_case_and_with_collations() -> None:
    options = WriteOptions(["a:1"], "t")
    schema = StructType().add("Body", COLLATED).add("KEYS", ArrayType(COLLATED)).add("shardingkey", COLLATED)
    check_columns(schema, options)
    columns = {"Body": ["a"], "KEYS": [["k"]], "shardingkey": ["s"]}
    encoded = RowEncoder(options, "w-0-0").encode(pa.RecordBatch.from_pydict(columns))
    [message] = encoded["t"].by_key["s"]
    assert message[1] == b"a"
    with pytest.raises(ConfigError, match="column body is there twice"):
        check_columns(StructType().add("Body", BinaryType()).add("body", BinaryType()), options)


def test_plain_rows_in_any_case() -> None:
    columns = {"BODY": ["a", "b"], "Tags": ["x", "y"]}
    encoded = RowEncoder(WriteOptions(["a:1"], "t"), "w-0-0").encode(pa.RecordBatch.from_pydict(columns))
    assert [body for free in encoded["t"].free for _, body, _ in decode_batch(free.body)] == [b"a", b"b"]


@pytest.mark.spark
def test_in_spark(spark: SparkSession, cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    (
        spark.range(4)
        .selectExpr(
            "CAST(id AS STRING) COLLATE UTF8_LCASE AS BODY", "IF(id < 2, 'Paid', 'open') COLLATE UNICODE AS Tags"
        )
        .write.format("rocketmq")
        .options(NAMESERVER=cluster.name_server, Topic=topic)
        .mode("append")
        .save()
    )
    rows = (
        spark.read.format("rocketmq")
        .options(NAMESERVER=cluster.name_server, Subscribe=topic)
        .schema("BODY binary, tags string COLLATE UTF8_LCASE, QUEUEID int")
        .load()
        .where("TAGS = 'PAID' AND queueid >= 0")
        .select("body", "queueId")
    )
    assert sorted(bytes(row.body) for row in rows.collect()) == [b"0", b"1"]
