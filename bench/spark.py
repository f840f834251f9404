"""Spark reading from a broker, beside a source that yields ready-made batches; prints a Markdown table.

    .venv/bin/python bench/spark.py [--rows N] [--rounds N] [--sizes BYTES...]

The ready-made batches have the same columns and rows: that is the ceiling of Spark's API for Python data sources, and
the last column says how much of it is reached. Everything runs on this machine: brokers, driver and tasks share its
cores. Below the table: what a small micro-batch over 16 queues costs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from gantrymq.client.broker_api import BrokerApi
from gantrymq.client.producer import Producer
from gantrymq.protocol.message import Message
from gantrymq.protocol.topic_config import TopicConfig
from gantrymq.remoting.client import RemotingClient
from gantrymq.spark import register, session_builder
from gantrymq.testing.processes import ProcessCluster

CORES = 2
QUEUES = 4
BROKERS = 2
BATCH_ROWS = 10_000
SEND_BYTES = 512 * 1024
MICRO_BATCHES = 20
MICRO_QUEUES = 8
MICRO_ROWS = 160


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(";")[0])
    parser.add_argument("--rows", type=int, default=2_000_000, help="messages of a read (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="measured reads of each kind (%(default)s)")
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 1024], metavar="BYTES", help="body sizes")
    args = parser.parse_args()
    spark = (
        session_builder("bench")
        .master(f"local[{CORES}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    spark.dataSource.register(ReadyMade)
    print(f"{platform.python_version()}, Spark {spark.version}, {os.cpu_count()} CPUs, local[{CORES}], noop sink\n")
    print("| body | source | rows/s | MB/s of bodies a core | of the ceiling |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory, ProcessCluster(Path(directory), brokers=BROKERS) as cluster:
        for size in args.sizes:
            topic = f"bench-{size}"
            asyncio.run(fill(cluster, topic, QUEUES, args.rows, size))
            sources = {
                "ready-made batches": ready_made(spark, args.rows, size),
                "rocketmq": rocketmq(spark, cluster, topic),
            }
            rates = measure(sources, args.rows, args.rounds)
            ceiling = statistics.median(rates["ready-made batches"])
            for name, of_source in rates.items():
                rate = statistics.median(of_source)
                per_core = rate * size / CORES / 1e6
                print(f"| {size} B | {name} | {rate:,.0f} | {per_core:,.0f} | {rate / ceiling:.0%} |", flush=True)
        print()
        print(micro_batches(spark, cluster, Path(directory)))
    spark.stop()


def measure(sources: dict[str, DataFrame], rows: int, rounds: int) -> dict[str, list[float]]:
    """Rows a second of each round, the sources in turn; the first round warms up."""
    rates: dict[str, list[float]] = {name: [] for name in sources}
    for _ in range(rounds + 1):
        for name, frame in sources.items():
            began = time.perf_counter()
            frame.write.format("noop").mode("overwrite").save()
            rates[name].append(rows / (time.perf_counter() - began))
    return {name: of_source[1:] for name, of_source in rates.items()}


def rocketmq(spark: SparkSession, cluster: ProcessCluster, topic: str) -> DataFrame:
    reader = spark.read.format("rocketmq").option("nameServer", cluster.namesrv_addr)
    return reader.option("subscribe", topic).load()


async def fill(cluster: ProcessCluster, topic: str, queues: int, rows: int, size: int) -> None:
    """Makes the topic with so many queues on each broker, and sends `rows` messages of `size` bytes."""
    remoting = RemotingClient()
    api = BrokerApi(remoting)
    for broker in cluster.brokers:
        await api.create_topic(broker.address, TopicConfig(topic, read_queue_nums=queues, write_queue_nums=queues))
    async with asyncio.timeout(10):
        while len((await api.route(cluster.namesrv_addr, topic)).queue_datas) < len(cluster.brokers):
            await asyncio.sleep(0.01)
    await remoting.close()
    body = os.urandom(size)
    at_once = max(1, SEND_BYTES // (size + 128))
    async with Producer(cluster.namesrv_addr, "bench") as producer:
        for first in range(0, rows, at_once):
            numbers = range(first, min(rows, first + at_once))
            await producer.send_batch([Message(topic, body, keys=f"k{n}", tags="A") for n in numbers])


# -- the ceiling ------------------------------------------------------------------------------------------------


def ready_made(spark: SparkSession, rows: int, size: int) -> DataFrame:
    return spark.read.format("ready-made").option("rows", rows).option("size", size).load()


class ReadyMade(DataSource):
    """Yields one batch again and again: the columns of a rocketmq read."""

    @classmethod
    def name(cls) -> str:
        return "ready-made"

    def schema(self) -> str:
        return (
            "topic string, brokerName string, queueId int, queueOffset bigint, keys string, tags string, body binary, "
            "bornTimestamp timestamp, storeTimestamp timestamp, msgId string, reconsumeTimes int"
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        return ReadyMadeReader(int(self.options["rows"]), int(self.options["size"]))


class ReadyMadeReader(DataSourceReader):
    def __init__(self, rows: int, size: int) -> None:
        self._rows = rows
        self._size = size

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(n) for n in range(QUEUES * BROKERS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        left = self._rows // (QUEUES * BROKERS)
        batch = self._batch(BATCH_ROWS)
        while left > 0:
            yield batch.slice(0, min(left, BATCH_ROWS))
            left -= BATCH_ROWS

    def _batch(self, rows: int) -> pa.RecordBatch:
        times = pa.array([1_767_268_800_000_000] * rows, pa.timestamp("us", "UTC"))
        columns: dict[str, Any] = {
            "topic": pa.repeat("bench", rows),
            "brokerName": pa.repeat("broker-a", rows),
            "queueId": pa.repeat(pa.scalar(0, pa.int32()), rows),
            "queueOffset": pa.array(range(rows), pa.int64()),
            "keys": pa.array([f"k{n}" for n in range(rows)]),
            "tags": pa.repeat("A", rows),
            "body": pa.repeat(pa.scalar(os.urandom(self._size), pa.binary()), rows),
            "bornTimestamp": times,
            "storeTimestamp": times,
            "msgId": pa.array([f"{n:032X}" for n in range(rows)]),
            "reconsumeTimes": pa.repeat(pa.scalar(0, pa.int32()), rows),
        }
        return pa.RecordBatch.from_pydict(columns)


# -- micro-batches ----------------------------------------------------------------------------------------------


def micro_batches(spark: SparkSession, cluster: ProcessCluster, directory: Path) -> str:
    """What Spark says of the duration of small micro-batches."""
    asyncio.run(fill(cluster, "micro", MICRO_QUEUES, MICRO_BATCHES * MICRO_ROWS, 128))
    reader = spark.readStream.format("rocketmq").option("nameServer", cluster.namesrv_addr).option("subscribe", "micro")
    reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", MICRO_ROWS)
    writer = reader.load().writeStream.format("noop").option("checkpointLocation", str(directory / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    progress = [p for p in query.recentProgress if p.numInputRows][1:]
    durations = {
        name: statistics.median(p.durationMs.get(name, 0) for p in progress)
        for name in ("triggerExecution", "latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
    }
    parts = ", ".join(f"{name} {ms:.0f}" for name, ms in durations.items())
    return f"A micro-batch of {MICRO_ROWS} messages in {BROKERS * MICRO_QUEUES} queues, median in ms: {parts}"


if __name__ == "__main__":
    main()
