"""Tests of batch reads with a Spark session."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_support import create_topic, send_numbers

from gantrymq.arrow.columns import READ_COLUMNS
from gantrymq.arrow.row_messages import GANTRY_ID
from gantrymq.client.producing.producer import Producer
from gantrymq.protocol.message import Message
from gantrymq.spark import register
from gantrymq.spark.datasource import FILTER_PUSHDOWN
from gantrymq.spark.versions import HAS_FILTERS
from gantrymq.testing.embedded import EmbeddedCluster

pytestmark = pytest.mark.spark

NewTopic = Callable[..., str]


@pytest.fixture
def read(spark: SparkSession, cluster: EmbeddedCluster) -> Callable[..., DataFrame]:
    def read(topic: str, schema: str | None = None, **options: object) -> DataFrame:
        reader = spark.read.format("rocketmq").option("nameServer", cluster.name_server).option("subscribe", topic)
        reader = reader.options(**{name: str(value) for name, value in options.items()})
        return (reader.schema(schema) if schema else reader).load()

    return read


def numbers(df: DataFrame) -> list[int]:
    return sorted(int(row.body) for row in df.select("body").collect())


def error_of(df: Callable[[], object]) -> str:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark wraps what Python raised, in classes of its own
        df()
    return str(caught.value)


def test_every_message_of_both_brokers_once(
    read: Callable[..., DataFrame], cluster: EmbeddedCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(4)
    send_numbers(cluster, topic, range(50_000))
    df = read(topic)
    assert df.columns == [name for name in READ_COLUMNS if name not in ("properties", "bodyError")]
    rows = df.select("body", "brokerName", "queueId", "queueOffset").collect()
    assert sorted(int(row.body) for row in rows) == list(range(50_000))
    places = {(row.brokerName, row.queueId, row.queueOffset) for row in rows}
    assert len(places) == 50_000
    assert {place[:2] for place in places} == {(b, n) for b in ("broker-a", "broker-b") for n in range(4)}


def test_large_queues_are_split(read: Callable[..., DataFrame], cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    send_numbers(cluster, topic, range(1000))
    split = read(topic, minPartitions=5).select("body", F.spark_partition_id().alias("part")).collect()
    assert sorted(int(row.body) for row in split) == list(range(1000))
    assert len({row.part for row in split}) in (5, 6)


def test_columns_have_what_was_sent(
    read: Callable[..., DataFrame], cluster: EmbeddedCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    before = datetime.now(UTC)
    send_numbers(cluster, topic, range(1))
    (row,) = read(topic, includeProperties=True).withColumn("at", F.unix_timestamp("storeTimestamp")).collect()
    assert (row.topic, row.queueId, row.queueOffset, row.keys, row.tags) == (topic, 0, 0, "k0", "Even")
    assert (bytes(row.body), row.reconsumeTimes) == (b"0", 0)
    assert row.properties["KEYS"] == "k0"
    assert row.properties["UNIQ_KEY"] == row.msgId
    assert abs(row["at"] - before.timestamp()) < 60


def test_only_the_columns_of_a_schema(
    read: Callable[..., DataFrame], cluster: EmbeddedCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    send_numbers(cluster, topic, range(3))
    # A batch of three messages goes to one queue.
    rows = read(topic, "tags string, queueOffset bigint").orderBy("queueOffset").collect()
    assert [tuple(row) for row in rows] == [("Even", 0), ("Odd", 1), ("Even", 2)]
    assert "no column 'value'" in error_of(lambda: read(topic, "value binary").collect())
    assert "column body is binary, not string" in error_of(lambda: read(topic, "body string").collect())


def test_tags_are_filtered_by_the_broker(
    read: Callable[..., DataFrame], cluster: EmbeddedCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(2)
    send_numbers(cluster, topic, range(2000))
    assert numbers(read(topic, tags="Odd")) == list(range(1, 2000, 2))
    assert numbers(read(topic, tags="Odd || Even")) == list(range(2000))
    assert read(topic, tags="Neither").count() == 0


def test_conditions(read: Callable[..., DataFrame], cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    send_numbers(cluster, topic, range(3000))
    everything = read(topic).select("brokerName", "queueId", "queueOffset", "tags", "body", "storeTimestamp").collect()

    middle = sorted(row.storeTimestamp for row in everything)[1500]
    for condition, wanted in (
        ("queueId = 1 AND brokerName = 'broker-b'", lambda r: (r.queueId, r.brokerName) == (1, "broker-b")),
        (
            "queueId IN (0) AND queueOffset >= 10 AND queueOffset < 15",
            lambda r: not r.queueId and 10 <= r.queueOffset < 15,
        ),
        ("tags = 'Odd'", lambda r: r.tags == "Odd"),
        ("tags IN ('Odd', 'Neither') AND queueId = 0", lambda r: r.tags == "Odd" and not r.queueId),
        (f"storeTimestamp >= '{middle}'", lambda r: r.storeTimestamp >= middle),
        (f"storeTimestamp < '{middle}'", lambda r: r.storeTimestamp < middle),
    ):
        assert numbers(read(topic).where(condition)) == sorted(int(row.body) for row in everything if wanted(row))


def test_two_queries_of_one_dataframe(
    read: Callable[..., DataFrame], cluster: EmbeddedCluster, new_topic: NewTopic
) -> None:
    """Spark would keep a pushed condition of the first query for all later ones."""
    topic = new_topic(2)
    send_numbers(cluster, topic, range(400))
    rows = read(topic)
    odd, even = rows.where("tags = 'Odd'"), rows.where("tags = 'Even'")
    assert (odd.count(), rows.count(), even.count(), rows.count()) == (200, 400, 200, 400)
    assert numbers(odd.union(even)) == list(range(400))


@pytest.mark.skipif(not HAS_FILTERS, reason="Python data sources receive filters from Spark 4.1")
def test_pushed_conditions_spare_reading(
    spark: SparkSession, read: Callable[..., DataFrame], cluster: EmbeddedCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(2)
    send_numbers(cluster, topic, range(400))
    spark.conf.set(FILTER_PUSHDOWN, "true")
    register(spark)
    try:
        rows = read(topic, minPartitions=1).where("queueId = 1 AND brokerName = 'broker-b'")
        assert rows.rdd.getNumPartitions() == 1
        assert rows.count() == 100
    finally:
        spark.conf.unset(FILTER_PUSHDOWN)
        register(spark)


def test_offsets_and_times_bound_a_read(
    read: Callable[..., DataFrame], cluster: EmbeddedCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    create_topic(cluster, topic, 1)
    send_numbers(cluster, topic, range(500))
    time.sleep(0.01)  # Messages of the same millisecond cannot be separated by time.
    between_ms = time.time_ns() // 1_000_000
    send_numbers(cluster, topic, range(500, 1000))
    assert numbers(read(topic, startingTimestamp=between_ms)) == list(range(500, 1000))
    assert numbers(read(topic, endingTimestamp=between_ms)) == list(range(500))
    assert read(topic, startingOffsets="latest").count() == 0
    offsets = f'{{"{topic}": {{"broker-a:0": 2, "broker-b:0": -1}}}}'
    last = f'{{"{topic}": {{"broker-a:0": 7}}}}'
    rows = read(topic, startingOffsets=offsets, endingOffsets=last).select("brokerName", "queueOffset").collect()
    assert sorted(map(tuple, rows)) == [("broker-a", n) for n in range(2, 7)]


def test_offsets_that_are_not_there(
    read: Callable[..., DataFrame], cluster: EmbeddedCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    send_numbers(cluster, topic, range(10))
    beyond = f'{{"{topic}": {{"broker-a:0": 100000, "broker-b:0": 100000}}}}'
    assert "failOnDataLoss" in error_of(lambda: read(topic, endingOffsets=beyond).collect())
    assert read(topic, endingOffsets=beyond, failOnDataLoss=False).count() == 10
    unknown = f'{{"{topic}": {{"broker-q:0": 1}}}}'
    away = error_of(lambda: read(topic, startingOffsets=unknown, retryTimeoutMs=500).collect())
    assert "broker broker-q is away" in away
    unknown = f'{{"{topic}": {{"broker-a:7": 1}}}}'
    assert "broker-a:7; there are" in error_of(lambda: read(topic, startingOffsets=unknown).collect())


def test_mistakes_are_explained(read: Callable[..., DataFrame], spark: SparkSession) -> None:
    assert "did you mean 'startingOffsets'" in error_of(lambda: read("t", startingOffset="earliest"))
    assert "no-such-topic" in error_of(lambda: read("no-such-topic", retryTimeoutMs=500).collect())
    assert "127.0.0.1:9" in error_of(lambda: read("t", nameServer="127.0.0.1:9", retryTimeoutMs=100).collect())
    assert "option nameServer is required" in error_of(
        lambda: spark.read.format("rocketmq").option("subscribe", "t").load()
    )


def test_rows_that_a_task_wrote_twice(
    read: Callable[..., DataFrame], spark: SparkSession, cluster: EmbeddedCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(2)
    rows = spark.range(1000).select(F.col("id").cast("string").alias("body"))
    writer = rows.write.format("rocketmq").option("nameServer", cluster.name_server).option("topic", topic)
    writer.mode("append").save()
    # Repeats rows of the first task, as if a response was lost.
    first = read(topic, includeProperties=True).limit(200).collect()
    copies = [Message(topic, bytes(row.body), properties={GANTRY_ID: row.properties[GANTRY_ID]}) for row in first]

    async def send() -> None:
        async with Producer(cluster.name_server, "numbers") as producer:
            await producer.send_batch(copies)

    asyncio.run(send())
    assert read(topic).count() == 1200
    assert numbers(read(topic, deduplicate=True)) == list(range(1000))


def test_an_empty_topic_and_sql(read: Callable[..., DataFrame], spark: SparkSession, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    assert read(topic).count() == 0
    read(topic).createOrReplaceTempView("empty")
    assert spark.sql("SELECT count(*) AS n FROM empty").first().n == 0
