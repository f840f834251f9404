"""Tests that a transactional write stores all rows of a batch or none, also if the driver is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_support import WAIT_S, send_numbers
from wait_until import wait_until

from gantrymq.arrow.cluster_client import ClusterClient, run
from gantrymq.arrow.row_messages import RowEncoder
from gantrymq.client.broker_api import BrokerApi
from gantrymq.errors import BrokerError, ClientError
from gantrymq.protocol.topic_name import TRANSACTION_HALF_TOPIC as HALF_TOPIC
from gantrymq.remoting.client import RemotingClient
from gantrymq.spark.half_messages import HalfMessages, HalfSender
from gantrymq.spark.options import WriteOptions
from gantrymq.spark.writer import RocketMQBatchWriter, RowsSent
from gantrymq.testing.embedded import EmbeddedCluster

NewTopic = Callable[..., str]
DRIVER = Path(__file__).parent / "transaction_driver.py"
QUEUES = 2
KILLED_MESSAGES = 4_000
POLL_INTERVAL_S = 0.02


def messages(cluster: EmbeddedCluster, topic: str, queues: int = QUEUES, brokers: Sequence[str] | None = None) -> int:
    """Returns the number of messages of `topic` on all brokers or on some."""

    async def count() -> int:
        remoting = RemotingClient()
        api = BrokerApi(remoting)
        try:
            return sum(
                [
                    await api.max_offset(broker, topic, queue_id)
                    for broker in brokers or cluster.brokers
                    for queue_id in range(queues)
                ]
            )
        finally:
            await remoting.close()

    return asyncio.run(count())


def read(spark: SparkSession, cluster: EmbeddedCluster, topic: str, **options: str) -> DataFrame:
    return (
        spark.read.format("rocketmq")
        .options(nameServer=cluster.name_server, subscribe=topic, includeProperties="true", **options)
        .load()
    )


def write(df: DataFrame, cluster: EmbeddedCluster, topic: str) -> None:
    (
        df.write.format("rocketmq")
        .options(nameServer=cluster.name_server, topic=topic, transactional="true")
        .mode("append")
        .save()
    )


@pytest.mark.spark
def test_a_batch_is_there_as_a_whole_and_in_order(
    spark: SparkSession, cluster: EmbeddedCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(QUEUES)
    df = spark.range(0, 600, 1, 3).select(
        F.col("id").cast("string").alias("body"), F.concat(F.lit("key-"), F.col("id") % 5).alias("shardingKey")
    )
    write(df, cluster, topic)
    rows = read(spark, cluster, topic).orderBy("brokerName", "queueId", "queueOffset").collect()
    assert sorted(int(row.body) for row in rows) == list(range(600))
    # A task has 200 rows. The rows of one task with the same key are in order.
    for task in range(3):
        for key in range(5):
            of_key = [n for row in rows if (n := int(row.body)) // 200 == task and n % 5 == key]
            assert of_key == sorted(of_key)
    assert all(row.properties["GANTRY_ID"] for row in rows)


@pytest.mark.spark
def test_nothing_is_there_when_a_task_fails(
    spark: SparkSession, cluster: EmbeddedCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, are_stored = new_topic(QUEUES), tmp_path / "stored"
    halves = messages(cluster, HALF_TOPIC, 1)

    def fail_later(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Delays the task with the last row, which is invalid, until the other task's rows are stored."""
        for batch in batches:
            while batch.column("body")[-1].as_py() == "" and not are_stored.exists():
                time.sleep(0.01)
            yield batch

    def tell() -> None:
        try:
            wait_until(lambda: messages(cluster, HALF_TOPIC, 1) >= halves + 200, WAIT_S)
        finally:
            # Also if the rows never arrive: otherwise the task waits forever and reports no error.
            are_stored.touch()

    body = F.when(F.col("id") == 399, F.lit("")).otherwise(F.col("id").cast("string")).alias("body")
    df = spark.range(0, 400, 1, 2).select(body).mapInArrow(fail_later, "body string")
    telling = threading.Thread(target=tell)
    telling.start()
    try:
        with pytest.raises(Exception, match="null or empty"):
            write(df, cluster, topic)
    finally:
        are_stored.touch()
        telling.join()
    assert messages(cluster, HALF_TOPIC, 1) >= halves + 200
    assert messages(cluster, topic) == 0


async def store_two(options: WriteOptions) -> list[HalfMessages]:
    """Stores two half messages in two batches."""
    async with ClusterClient(options.name_servers, 5000) as brokers:
        sender = HalfSender(brokers, 0, options.transaction_timeout_s)
        encoder = RowEncoder(options, "write-0")
        for body in ("a", "b"):
            await sender.send(encoder.encode(pa.RecordBatch.from_pydict({"body": [body]})))
        return sender.halves


def test_what_took_too_long_is_not_committed_at_all(cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    """A broker would reject the commits of the first messages but accept those of the last."""
    options = WriteOptions([cluster.name_server], new_topic(1), transactional=True, transaction_timeout_s=5)
    halves = run(store_two(options))
    assert len(halves) == 2
    writer = RocketMQBatchWriter(options)
    with pytest.raises(ClientError, match="more than transactionTimeoutMs allows"):
        writer.commit([RowsSent(1, time.time(), halves[:1]), None, RowsSent(1, time.time() - 6, halves[1:])])
    assert options.topic is not None
    assert messages(cluster, options.topic, 1) == 0
    # The failed commit has rolled the transaction back.
    with pytest.raises(BrokerError, match="rolled back already"):
        writer.commit([None, RowsSent(1, time.time(), halves[:1]), RowsSent(1, time.time(), halves[1:])])
    writer.commit([None, RowsSent(2, time.time(), run(store_two(options)))])
    assert messages(cluster, options.topic, 1) == 2


def test_a_commit_that_overruns_the_time_is_finished(tmp_path: Path) -> None:
    """If the broker rejected late commits, only a part of the messages would become visible."""
    with EmbeddedCluster(directory=tmp_path, transaction_time_out=1) as brokers:
        options = WriteOptions([brokers.name_server], "late", transactional=True, transaction_timeout_s=1)
        halves = run(store_two(options))
        stored = time.time()
        wait_until(lambda: time.time() > stored + 1.1)
        # The driver began the commit in time; this is the part that is left when the time is over.
        RocketMQBatchWriter(options).commit([RowsSent(2, time.time(), halves)])
        assert messages(brokers, "late", 4) == 2


@contextmanager
def driver(cluster: EmbeddedCluster, source: str, target: str, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (directory / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, DRIVER, cluster.name_server, source, target, directory / "checkpoint"],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        # The JVM and the Python workers are in the same process group.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.nightly
def test_a_killed_driver(spark: SparkSession, cluster: EmbeddedCluster, new_topic: NewTopic, tmp_path: Path) -> None:
    source, target = new_topic(QUEUES), new_topic(QUEUES)
    send_numbers(cluster, source, range(KILLED_MESSAGES))
    before = [messages(cluster, HALF_TOPIC, 1, [broker]) for broker in cluster.brokers]
    with driver(cluster, source, target, tmp_path) as process:

        def has_stored_all() -> bool:
            assert process.poll() is None, "the driver has ended"
            return messages(cluster, HALF_TOPIC, 1) >= sum(before) + KILLED_MESSAGES

        wait_until(has_stored_all, WAIT_S)
    # The commit reached both brokers, one or none. Each broker shows all of its part or nothing.
    after = [messages(cluster, HALF_TOPIC, 1, [broker]) for broker in cluster.brokers]
    parts = [end - start for start, end in zip(before, after, strict=True)]
    assert sum(parts) == KILLED_MESSAGES

    def is_decided() -> bool:
        visible = [messages(cluster, target, QUEUES, [broker]) for broker in cluster.brokers]
        return all(count in (0, part) for count, part in zip(visible, parts, strict=True))

    wait_until(is_decided, WAIT_S)

    with driver(cluster, source, target, tmp_path) as process:
        assert process.wait(WAIT_S) == 0, (tmp_path / "log").read_text()
    numbers = Counter(int(row.body) for row in read(spark, cluster, target).collect())
    assert numbers.keys() == set(range(KILLED_MESSAGES))
    # The repeated batch wrote all of its messages again.
    assert sum(numbers.values()) - KILLED_MESSAGES in (0, *parts, KILLED_MESSAGES)
    once = read(spark, cluster, target, deduplicate="true").select("body").collect()
    assert sorted(int(row.body) for row in once) == list(range(KILLED_MESSAGES))
