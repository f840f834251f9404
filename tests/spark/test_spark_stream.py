"""Tests that a stream reads every message once, over micro-batches, restarts and new queues."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from spark_support import WAIT_S, committed_offsets, create_topic, needs_admission_control, send_numbers
from wait_until import wait_until

from gantrymq.testing.embedded import EmbeddedCluster

pytestmark = pytest.mark.spark

_names = itertools.count(1)


@pytest.fixture
def stream(spark: SparkSession, cluster: EmbeddedCluster) -> Callable[..., DataFrame]:
    def stream(topic: str, **options: object) -> DataFrame:
        options = {"startingOffsets": "earliest"} | options
        reader = spark.readStream.format("rocketmq").option("nameServer", cluster.name_server)
        reader = reader.option("subscribe", topic).options(**{name: str(value) for name, value in options.items()})
        return reader.load().select(F.col("body").cast("string").cast("long").alias("number"))

    return stream


def start(df: DataFrame, tmp_path: Path, **trigger: object) -> StreamingQuery:
    """Starts a query into Parquet files. That sink writes every micro-batch exactly once."""
    writer = df.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    return (writer.trigger(**trigger) if trigger else writer).start(str(tmp_path / "out"))


def found(spark: SparkSession, tmp_path: Path) -> list[int]:
    return sorted(row.number for row in spark.read.schema("number long").parquet(str(tmp_path / "out")).collect())


def rows_read(query: StreamingQuery) -> int:
    return sum(progress.numInputRows for progress in query.recentProgress)


def run_available(df: DataFrame, tmp_path: Path) -> StreamingQuery:
    query = start(df, tmp_path, availableNow=True)
    assert query.awaitTermination(WAIT_S)
    return query


def wait_for_rows(query: StreamingQuery, count: int) -> None:
    def has_read() -> bool:
        assert query.exception() is None, str(query.exception())
        return rows_read(query) >= count

    wait_until(has_read, WAIT_S)


@needs_admission_control
def test_available_now_in_limited_batches(
    spark: SparkSession,
    stream: Callable[..., DataFrame],
    cluster: EmbeddedCluster,
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    topic = new_topic(4)
    send_numbers(cluster, topic, range(50_000))
    df = stream(topic, maxOffsetsPerTrigger=20_000, consumerGroup="lag")
    query = run_available(df, tmp_path)
    assert [p.numInputRows for p in query.recentProgress if p.numInputRows] == [20_000, 20_000, 10_000]
    assert found(spark, tmp_path) == list(range(50_000))
    # The brokers have the query's committed offsets.
    assert sum(committed_offsets(cluster, "lag", topic, 4)) == 50_000

    # Messages that arrived meanwhile are read by the next run, from the checkpoint.
    send_numbers(cluster, topic, range(50_000, 51_000))
    run_available(df, tmp_path)
    assert found(spark, tmp_path) == list(range(51_000))
    assert sum(committed_offsets(cluster, "lag", topic, 4)) == 51_000


@pytest.mark.slow
def test_a_second_query_on_a_checkpoint_stops_the_first(
    spark: SparkSession,
    stream: Callable[..., DataFrame],
    cluster: EmbeddedCluster,
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    topic = new_topic(1)
    send_numbers(cluster, topic, range(500))
    df = stream(topic)
    first = start(df, tmp_path, processingTime="100 milliseconds")
    wait_for_rows(first, 500)
    second = start(df, tmp_path, processingTime="100 milliseconds")
    wait_until(lambda: not first.isActive, WAIT_S)
    assert second.id == first.id
    send_numbers(cluster, topic, range(500, 900))
    wait_for_rows(second, 400)
    second.stop()
    assert found(spark, tmp_path) == list(range(900))


def test_processing_time_restart_and_new_queues(
    spark: SparkSession,
    stream: Callable[..., DataFrame],
    cluster: EmbeddedCluster,
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    topic = new_topic(1)
    send_numbers(cluster, topic, range(1000))
    df = stream(topic)
    query = start(df, tmp_path, processingTime="100 milliseconds")
    wait_for_rows(query, 1000)
    send_numbers(cluster, topic, range(1000, 2000))
    wait_for_rows(query, 2000)
    # The topic gets more queues while the query runs. All their messages are read.
    create_topic(cluster, topic, 3)
    send_numbers(cluster, topic, range(2000, 5000))
    wait_for_rows(query, 5000)
    query.stop()

    send_numbers(cluster, topic, range(5000, 6000))
    query = start(df, tmp_path, processingTime="100 milliseconds")
    wait_for_rows(query, 1000)
    query.stop()
    assert found(spark, tmp_path) == list(range(6000))


@needs_admission_control
def test_progress_has_the_lag(
    stream: Callable[..., DataFrame], cluster: EmbeddedCluster, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic(1)
    send_numbers(cluster, topic, range(10))
    query = run_available(stream(topic, maxOffsetsPerTrigger=4), tmp_path)
    lags = []
    for progress in query.recentProgress:
        if progress.numInputRows:
            latest, end = (
                json.loads(text) for text in (progress.sources[0].latestOffset, progress.sources[0].endOffset)
            )
            assert sum(latest[topic].values()) == 10
            lags.append((sum(end[topic].values()), latest["$lag"]))
    assert lags == [(4, {topic: 6}), (8, {topic: 2}), (10, {topic: 0})]


def test_a_batch_option_in_a_stream_is_refused(stream: Callable[..., DataFrame], tmp_path: Path) -> None:
    query = start(stream("t", endingOffsets="latest"), tmp_path)
    with pytest.raises(Exception, match="endingOffsets has no meaning in a streaming read"):
        query.awaitTermination(WAIT_S)
