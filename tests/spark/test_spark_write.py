"""Tests that written rows are read back."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_support import WAIT_S, run_available, send_numbers

from gantrymq.arrow.batch_bodies import Encoded
from gantrymq.arrow.row_messages import RowEncoder, TopicMessages
from gantrymq.auth.config import AuthConfig
from gantrymq.errors import ConfigError, IllegalMessage
from gantrymq.protocol.batch import decode_batch
from gantrymq.protocol.properties import decode_properties
from gantrymq.spark.options import WriteOptions
from gantrymq.testing.embedded import EmbeddedCluster

NewTopic = Callable[..., str]


@pytest.fixture
def read(spark: SparkSession, cluster: EmbeddedCluster) -> Callable[[str], DataFrame]:
    return lambda topic: (
        spark.read.format("rocketmq")
        .option("nameServer", cluster.name_server)
        .option("subscribe", topic)
        .option("includeProperties", "true")
        .load()
    )


def write(df: DataFrame, cluster: EmbeddedCluster, **options: str) -> None:
    df.write.format("rocketmq").option("nameServer", cluster.name_server).options(**options).mode("append").save()


@pytest.mark.spark
def test_written_rows_are_read_back(
    spark: SparkSession, cluster: EmbeddedCluster, read: Callable[[str], DataFrame], new_topic: NewTopic
) -> None:
    topic = new_topic(2)
    df = spark.range(0, 20_000, 1, 4).select(
        F.col("id").cast("string").alias("body"),
        F.array(F.concat(F.lit("a"), "id"), F.concat(F.lit("b"), "id")).alias("keys"),
        F.when(F.col("id") % 2 == 0, "Even").alias("tags"),
        F.create_map(F.lit("colour"), F.lit("grün")).alias("properties"),
    )
    write(df, cluster, topic=topic)
    back = read(topic).cache()
    number = F.col("body").cast("string").cast("long")
    assert back.select(F.count("*"), F.count_distinct(number), F.sum(number)).first() == (20_000, 20_000, 199_990_000)
    wrong = back.where(
        (F.col("keys") != F.concat(F.lit("a"), number, F.lit(" b"), number))
        | (F.col("tags").isNull() != (number % 2 == 1))
        | (F.col("properties")["colour"] != "grün")
    )
    assert wrong.count() == 0
    assert back.select(F.count_distinct(F.col("properties")["GANTRY_ID"])).first()[0] == 20_000
    # Each of the queues has some of the rows.
    assert back.groupBy("brokerName", "queueId").count().count() == 4
    back.unpersist()


@pytest.mark.spark
def test_topics_from_a_column_and_order_by_sharding_key(
    spark: SparkSession, cluster: EmbeddedCluster, read: Callable[[str], DataFrame], new_topic: NewTopic
) -> None:
    topics = [new_topic(3), new_topic(3)]
    df = spark.range(0, 6_000, 1, 1).select(
        F.col("id").cast("string").cast("binary").alias("body"),
        F.element_at(F.array(*map(F.lit, topics)), (F.col("id") % 2 + 1).cast("int")).alias("topic"),
        F.concat(F.lit("order-"), F.col("id") % 20).alias("shardingKey"),
    )
    write(df, cluster)
    for remainder, topic in enumerate(topics):
        rows = read(topic).orderBy("brokerName", "queueId", "queueOffset").collect()
        assert sorted(int(row.body) for row in rows) == list(range(remainder, 6_000, 2))
        by_key: dict[str, list[tuple[str, int, int]]] = {}
        for row in rows:
            by_key.setdefault(row.properties["__SHARDINGKEY"], []).append((row.brokerName, row.queueId, int(row.body)))
        assert len(by_key) == 10
        for placed in by_key.values():
            assert len({(broker, queue) for broker, queue, _ in placed}) == 1
            assert [n for *_, n in placed] == sorted(n for *_, n in placed)


@pytest.mark.spark
def test_a_stream_from_topic_to_topic(
    spark: SparkSession,
    cluster: EmbeddedCluster,
    read: Callable[[str], DataFrame],
    new_topic: NewTopic,
    tmp_path: Path,
) -> None:
    source, target = new_topic(2), new_topic(2)
    send_numbers(cluster, source, range(5_000))
    writer = (
        spark.readStream.format("rocketmq")
        .options(nameServer=cluster.name_server, subscribe=source, startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", "2000")
        .load()
        .select("body", "keys", "tags")
        .writeStream.format("rocketmq")
        .options(nameServer=cluster.name_server, topic=target, checkpointLocation=str(tmp_path))
        .trigger(availableNow=True)
    )
    query = run_available(writer.start, WAIT_S)
    rows = read(target).collect()
    assert sorted(int(row.body) for row in rows) == list(range(5_000))
    assert all(row["keys"] == f"k{int(row.body)}" for row in rows)
    ids = {row.properties["GANTRY_ID"] for row in rows}
    assert len(ids) == 5_000
    # Query id and batch number, which are the same if Spark repeats the batch.
    assert {one.rsplit("-", 2)[0] for one in ids} == {f"{query.id}-{batch}" for batch in range(3)}


@pytest.mark.spark
@pytest.mark.parametrize(
    ("columns", "mode", "options", "message"),
    [
        ("'a' AS value", "append", {"topic": "t"}, "no use for column 'value'"),
        ("1 AS body", "append", {"topic": "t"}, "column body is int; a rocketmq write takes binary or string"),
        ("'a' AS tags", "append", {"topic": "t"}, "needs a column body"),
        ("'a' AS body", "append", {}, "either a topic or a column topic"),
        ("'a' AS body", "overwrite", {"topic": "t"}, "can't be overwritten"),
        ("'a' AS body", "append", {"topic": "t", "subscribe": "t"}, "'subscribe' has no meaning in a write"),
        ("'' AS body", "append", {"topic": "t"}, "null or empty"),
        ("'a' AS body, 3 AS delayLevel", "append", {"topic": "t", "transactional": "true"}, "can't be delayed"),
        ("'a' AS body", "append", {"topic": "t", "transactional": "yes"}, "neither true nor false"),
        ("'a' AS body", "append", {"topic": "t", "transactionTimeoutMs": "10"}, "less than 1000"),
        ("'a' AS body", "append", {"topic": "t", "accessKey": "k"}, "accessKey and secretKey go together"),
    ],
)
def test_mistakes_are_explained(
    spark: SparkSession, cluster: EmbeddedCluster, columns: str, mode: str, options: dict[str, str], message: str
) -> None:
    writer = spark.sql(f"SELECT {columns}").write.format("rocketmq").mode(mode)
    with pytest.raises(Exception, match=message):
        writer.option("nameServer", cluster.name_server).options(**options).save()


def encode(**columns: list[object]) -> None:
    RowEncoder(WriteOptions(["127.0.0.1:9876"], "t"), "write-0").encode(pa.RecordBatch.from_pydict(columns))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"body": ["a", None]}, "null or empty"),
        ({"body": ["a", "b"], "tags": ["x", "y\x02KEYS\x01z"]}, "separate the properties"),
        ({"body": ["a", "b"], "keys": ["x", "y" * 40_000]}, "at most 32767"),
        ({"body": ["a", "b"], "delayMs": [5, -5]}, "TIMER_DELAY_MS is '-5'"),
        ({"body": ["a", "b"], "delayMs": [5, 5], "delayLevel": [None, 3]}, "DELAY and TIMER_DELAY_MS exclude"),
    ],
)
def test_rows_that_are_no_messages_are_named(columns: dict[str, list[object]], message: str) -> None:
    with pytest.raises(IllegalMessage, match=message) as caught:
        encode(**columns)
    assert "row 1 of the partition (write-0)" in "".join(caught.value.__notes__)


OF_THE_SYSTEM = {
    "TRAN_MSG": "true",
    "PGROUP": "shop",
    "__transactionId__": "7F000001",
    "CHECK_IMMUNITY_TIME_IN_SECONDS": "60",
    "DELAY": "3",
    "TIMER_DELIVER_MS": "4102444800000",
    "TIMER_OUT_MS": "4102444800000",
    "POP_CK": "0 1 2 3",
    "INNER_MULTI_DISPATCH": "elsewhere",
    "UNIQ_KEY": "7F00000100001",
    "REAL_TOPIC": "elsewhere",
    "__RMQ.TRANSIENT.TOPIC_SYS_FLAG": "1",
}


def free_of(messages: TopicMessages) -> list[Encoded]:
    return [message for batch in messages.free for message in decode_batch(batch.body)]


def encoded_properties(**options: frozenset[str]) -> dict[str, str]:
    given = [("colour", "blue"), ("TAGS", "Paid"), *OF_THE_SYSTEM.items()]
    rows = pa.RecordBatch.from_arrays(
        [pa.array([b"a"]), pa.array([given], pa.map_(pa.string(), pa.string()))], ["body", "properties"]
    )
    messages = RowEncoder(WriteOptions(["127.0.0.1:9876"], "t", **options), "w").encode(rows)["t"]
    (message,) = free_of(messages) + [message for _, message in messages.alone]
    return decode_properties(message[2])


def test_what_the_system_said_of_another_message_is_left_out() -> None:
    found = encoded_properties()
    unique_key = found.pop("UNIQ_KEY")
    assert unique_key != OF_THE_SYSTEM["UNIQ_KEY"]
    assert found == {"colour": "blue", "TAGS": "Paid", "GANTRY_ID": "w-0"}


def test_named_properties_are_kept() -> None:
    found = encoded_properties(keep_properties=frozenset({"UNIQ_KEY", "TIMER_DELIVER_MS"}))
    assert found.keys() == {"colour", "TAGS", "GANTRY_ID", "UNIQ_KEY", "TIMER_DELIVER_MS"}
    assert found["UNIQ_KEY"] == OF_THE_SYSTEM["UNIQ_KEY"]
    given = {"nameserver": "a:1", "topic": "t"}
    assert WriteOptions.parse(given | {"keepproperties": "DELAY, UNIQ_KEY"}).keep_properties == {"DELAY", "UNIQ_KEY"}
    with pytest.raises(ConfigError, match="keepProperties: 'TRAN_MSG' can't be kept"):
        WriteOptions.parse(given | {"keepproperties": "TRAN_MSG"})


@pytest.mark.spark
def test_rows_of_a_transaction_are_written_again_and_seen(
    spark: SparkSession, cluster: EmbeddedCluster, read: Callable[[str], DataFrame], new_topic: NewTopic
) -> None:
    source, target = new_topic(1), new_topic(1)
    write(spark.range(20).selectExpr("CAST(id AS STRING) AS body"), cluster, topic=source, transactional="true")
    rows = read(source).select("body", "properties")
    assert rows.count() == 20
    write(rows, cluster, topic=target)
    assert read(target).count() == 20


def test_what_must_go_alone() -> None:
    """Neither batches nor transactions can contain delayed messages."""
    properties = pa.array([[("DELAY", "3")], None, [("DELAY", "0")]], pa.map_(pa.string(), pa.string()))
    at = pa.array([None, 1_767_268_800_123_999, None], pa.timestamp("us", "UTC"))
    rows = pa.RecordBatch.from_arrays(
        [pa.array([b"a", b"b", b"c"]), properties, at], ["body", "properties", "deliverAt"]
    )
    kept = frozenset({"DELAY"})
    messages = RowEncoder(WriteOptions(["127.0.0.1:9876"], "t", keep_properties=kept), "w").encode(rows)["t"]
    assert [body for _, (_, body, _) in messages.alone] == [b"a", b"b"]
    assert [body for _, body, _ in free_of(messages)] == [b"c"]
    assert b"TIMER_DELIVER_MS\x011767268800123\x02" in messages.alone[1][1][2]

    half = WriteOptions(["127.0.0.1:9876"], "t", transactional=True, transaction_timeout_s=60, keep_properties=kept)
    messages = RowEncoder(half, "w").encode(rows.slice(2))["t"]
    assert ([body for _, body, _ in free_of(messages)], messages.alone) == ([b"c"], [])
    with pytest.raises(IllegalMessage, match="DELAY: messages of a transaction can't be delayed"):
        RowEncoder(half, "w").encode(rows.slice(0, 1))


@pytest.mark.spark
def test_delayed_rows_come_later(
    spark: SparkSession, cluster: EmbeddedCluster, read: Callable[[str], DataFrame], new_topic: NewTopic
) -> None:
    topic = new_topic(2)
    started = time.time()
    rows = spark.sql(
        """SELECT 'now' AS body, CAST(NULL AS INT) AS delayLevel, CAST(NULL AS BIGINT) AS delayMs,
                  CAST(NULL AS TIMESTAMP) AS deliverAt
           UNION ALL SELECT 'level', 1, NULL, NULL
           UNION ALL SELECT 'ms', NULL, 1500, NULL
           UNION ALL SELECT 'at', NULL, NULL, current_timestamp() + INTERVAL 2 SECONDS"""
    )
    write(rows, cluster, topic=topic)
    delays: dict[str, float] = {}
    deadline = time.monotonic() + WAIT_S
    while len(delays) < 4 and time.monotonic() < deadline:
        found = read(topic).select("body", F.col("storeTimestamp").cast("double").alias("stored")).collect()
        delays = {bytes(row.body).decode(): row.stored - started for row in found}
    assert delays.keys() == {"now", "level", "ms", "at"}
    assert delays["level"] >= 1
    assert delays["ms"] >= 1.5
    assert delays["at"] >= 2


@pytest.mark.spark
def test_writes_are_signed(spark: SparkSession, tmp_path: Path) -> None:
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text("accounts:\n  - accessKey: writer-key\n    secretKey: writers-secret\n    admin: true\n")
    keys = {"accessKey": "writer-key", "secretKey": "writers-secret"}
    with EmbeddedCluster(auth=AuthConfig(acl_enable=True, plain_acl_file=accounts)) as guarded:
        df = spark.sql("SELECT 'signed' AS body")
        write(df, guarded, topic="guarded", **keys)
        # Both the half messages and their commit are signed.
        write(df, guarded, topic="guarded", transactional="true", **keys)
        with pytest.raises(Exception, match="accessKey"):
            write(df, guarded, topic="guarded")
        options = {"nameServer": guarded.name_server, "subscribe": "guarded"} | keys
        rows = spark.read.format("rocketmq").options(**options).load().collect()
    assert [bytes(row.body) for row in rows] == [b"signed"] * 2
