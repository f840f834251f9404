"""Writes of `format("rocketmq")` to Apache's broker, and reads of its files by `format("rocketmq-store")`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from servers import java_broker, java_namesrv

from gantrymq import Message, Producer
from gantrymq.spark import register, session_builder

pytestmark = pytest.mark.interop(feature="Spark", clients="gantry", servers="java")

HEAP = ["-Xmx512m", "-XX:MaxDirectMemorySize=256m"]
WAIT_S = 60


class Cluster:
    """Apache's NameServer and broker. `directory` is the broker's."""

    def __init__(self, directory: Path) -> None:
        self.namesrv = java_namesrv(directory / "namesrv")
        self.directory = directory / "broker"
        self.broker = java_broker(
            self.directory, self.namesrv.address, options=HEAP, brokerName="broker-a", mappedFileSizeCommitLog="4194304"
        )

    @property
    def name_server(self) -> str:
        return self.namesrv.address

    @property
    def store(self) -> Path:
        (commit_log,) = self.directory.rglob("commitlog")
        return commit_log.parent


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("spark-write"))
    yield cluster
    cluster.broker.kill()
    cluster.namesrv.kill()


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = (
        session_builder("gantrymq-interop")
        .master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    register(session)
    yield session
    session.stop()


def make_topic(cluster: Cluster, topic: str) -> None:
    """Creates the topic by its first message."""

    async def send() -> None:
        async with Producer(cluster.name_server, "first") as producer:
            await producer.send(Message(topic, b"-1"))

    asyncio.run(send())


def write(df: DataFrame, cluster: Cluster, **options: str) -> None:
    df.write.format("rocketmq").options(nameServer=cluster.name_server, **options).mode("append").save()


def read(spark: SparkSession, cluster: Cluster, topic: str) -> DataFrame:
    return spark.read.format("rocketmq").options(nameServer=cluster.name_server, subscribe=topic).load()


def numbers(df: DataFrame) -> list[int]:
    return sorted(int(row.body) for row in df.select("body").collect())


@pytest.mark.timeout(300)
def test_a_transaction_is_there_as_a_whole(spark: SparkSession, cluster: Cluster) -> None:
    make_topic(cluster, "Paid")
    rows = spark.range(0, 400, 1, 2).select(
        F.col("id").cast("string").alias("body"), F.concat(F.lit("key-"), F.col("id") % 5).alias("shardingKey")
    )
    with pytest.raises(Exception, match="null or empty"):
        write(
            rows.withColumn("body", F.when(F.col("body") == "399", "").otherwise(F.col("body"))),
            cluster,
            topic="Paid",
            transactional="true",
        )
    assert numbers(read(spark, cluster, "Paid")) == [-1]
    write(rows, cluster, topic="Paid", transactional="true")
    assert numbers(read(spark, cluster, "Paid")) == list(range(-1, 400))
    of_keys: dict[tuple[int, int], list[int]] = {}
    for row in read(spark, cluster, "Paid").orderBy("queueId", "queueOffset").collect():
        number = int(row.body)
        of_keys.setdefault((number // 200, number % 5), []).append(number)
    assert all(of_key == sorted(of_key) for of_key in of_keys.values())


@pytest.mark.timeout(300)
def test_delayed_rows_come_later(spark: SparkSession, cluster: Cluster) -> None:
    make_topic(cluster, "Later")
    started = time.time()
    write(
        spark.sql(
            """SELECT '1' AS body, 1 AS delayLevel, CAST(NULL AS LONG) AS delayMs, CAST(NULL AS TIMESTAMP) AS deliverAt
               UNION ALL SELECT '2', NULL, 2000, NULL
               UNION ALL SELECT '3', NULL, NULL, current_timestamp() + INTERVAL 3 SECONDS"""
        ),
        cluster,
        topic="Later",
    )
    deadline = time.monotonic() + WAIT_S
    rows = read(spark, cluster, "Later").select("body", F.col("storeTimestamp").cast("double").alias("stored"))
    while len(found := rows.where("body != '-1'").collect()) < 3:
        assert time.monotonic() < deadline
    for row in found:
        assert row.stored - started >= int(row.body)


@pytest.mark.timeout(300)
def test_its_files_are_read(spark: SparkSession, cluster: Cluster) -> None:
    make_topic(cluster, "Files")
    body = F.rpad(F.col("id").cast("string"), 400, " ")
    write(spark.range(0, 30_000).select(body.alias("body"), F.lit("tag").alias("tags")), cluster, topic="Files")
    expected = list(range(-1, 30_000))

    def of_files(**options: str) -> DataFrame:
        return spark.read.format("rocketmq-store").options(subscribe="Files", **options).load(str(cluster.store))

    assert numbers(of_files(maxPartitionBytes="1000000")) == expected
    assert of_files(maxPartitionBytes="1000000").rdd.getNumPartitions() > of_files().rdd.getNumPartitions() > 2
    same = ("queueId", "queueOffset", "body", "tags", "bornTimestamp", "storeTimestamp", "msgId")
    by_broker = read(spark, cluster, "Files").select(*same)
    assert by_broker.exceptAll(of_files().select(*same)).count() == 0
    cluster.broker.kill()
    assert numbers(of_files()) == expected
