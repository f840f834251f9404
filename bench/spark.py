"""Spark reading from a broker, beside ready-made batches and Kafka; prints Markdown tables; README.md says of what.

    .venv/bin/python bench/spark.py [--rows N] [--rounds N] [--sizes BYTES...] [--minutes N]
    for v in 4.0 4.1 4.2 4.3; do .venv-spark/$v/bin/python bench/spark.py ...; done
        with each Spark version that `./dev spark-matrix` has installed

Everything runs on this machine: brokers, driver and tasks share its cores. The last table has the peak memory of
each process.
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
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from kafka_broker import build, kafka_broker
from measures import is_steady
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType
from result_files import add_out, recorded
from spark_kafka import connector_jars, fill_kafka, read_kafka
from spark_processes import most_memory
from systems import settled_cpu_seconds

from gantrymq.arrow.pull import BATCH_BYTES, BATCH_ROWS
from gantrymq.client.broker_api import BrokerApi
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import NoRouteInfo
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.message import Message
from gantrymq.remoting.client import RemotingClient
from gantrymq.spark import register, session_builder
from gantrymq.spark.versions import HAS_ADMISSION_CONTROL
from gantrymq.testing.processes import ProcessCluster

if TYPE_CHECKING:
    # New in Spark 4.2.
    from pyspark.sql.streaming.datasource import ReadLimit

CORES = 2
QUEUES = 8
SEND_BYTES = 512 * 1024
#: Approximate size of a record besides its body, in bytes.
RECORD_BYTES = 170
MICRO_BATCHES = 20
MICRO_QUEUES = 16
MICRO_ROWS = 160
#: Parts of a micro-batch's time, as Spark reports them.
MICRO_PARTS = ("triggerExecution", "latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass
class Source:
    """A source. For each round: rows per second, and CPU time per row in microseconds for JVM, Python and broker."""

    name: str
    frame: DataFrame
    broker_pid: int | None = None
    rates: list[float] = field(default_factory=list)
    cpu_us: list[tuple[float, ...]] = field(default_factory=list)
    #: True if the rounds before the first measured one differed by less than 5 %.
    is_steady: bool = False


def main() -> None:
    args = parse_args()
    with ExitStack() as stack:
        stack.enter_context(recorded(args, "bench/spark.py"))
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        try:
            build()
            connector = connector_jars()
            kafka, kafka_pid = stack.enter_context(kafka_broker(directory / "kafka", QUEUES))
        except RuntimeError as e:
            print(f"Without Kafka: {e}\n")
            connector, kafka, kafka_pid = [], None, None
        cluster = stack.enter_context(ProcessCluster(directory))
        spark = start_spark(connector)
        stack.callback(spark.stop)
        print(f"{platform.python_version()}, Spark {spark.version}, {os.cpu_count()} CPUs, local[{CORES}], noop sink\n")
        print(
            "| Spark | body | source | CPU, µs per row | rows/s "
            "| MB/s of bodies per core | rate / ready-made's rate | rate / Kafka's rate |"
        )
        print("|---|---|---|---|---|---|---|---|")
        for number, size in enumerate(args.sizes, 1):
            deadline = args.began + 60 * args.minutes * number / len(args.sizes)
            topic = f"bench-{size}"
            asyncio.run(fill(cluster, topic, QUEUES, args.rows, size))
            # The broker indexes keys after it has stored the messages.
            settled_cpu_seconds(cluster.brokers[0].pid, "GantryMQ")
            sources = [
                Source("ready-made", ready_made(spark, args.rows, size)),
                Source("rocketmq", rocketmq(spark, cluster, topic), cluster.brokers[0].pid),
            ]
            if kafka is not None:
                fill_kafka(spark, kafka, topic, args.rows, size)
                sources.append(Source("kafka", read_kafka(spark, kafka, topic), kafka_pid))
            measure(spark, sources, args.rows, args.rounds, deadline)
            for source in sources:
                print(f"| {spark.version} {row_of(source, sources, size)}", flush=True)
        print(f"\n{most_memory()}")
        # Without it, a ready-made source cannot report the end of a micro-batch.
        if HAS_ADMISSION_CONTROL:
            print(micro_batches(spark, cluster, directory))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition(";")[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="messages of a read (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="measured reads of each source (%(default)s)")
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 1024], metavar="BYTES", help="body sizes")
    parser.add_argument("--minutes", type=float, default=6, help="no round warms up later")
    add_out(parser)
    return parser.parse_args(namespace=argparse.Namespace(began=time.monotonic()))


def start_spark(connector: list[Path]) -> SparkSession:
    spark = (
        session_builder("bench")
        .master(f"local[{CORES}]")
        .config("spark.jars", ",".join(map(str, connector)))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    spark.dataSource.register(ReadyMade)
    return spark


# -- measurements -----------------------------------------------------------------------------------------------


def measure(spark: SparkSession, sources: list[Source], rows: int, rounds: int, deadline: float) -> None:
    """Reads the sources in turn.

    Rounds count when all sources are warm: the CPU times of three rounds differ by less than 5 %.

    After the deadline, rounds count in any case. A source that is not warm then is reported as not in steady state.
    """
    assert spark._jvm is not None
    jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())
    while not all(source.is_steady for source in sources) and time.monotonic() < deadline:
        for source in sources:
            read_once(source, jvm, rows)
            source.is_steady = is_steady([sum(parts) for parts in source.cpu_us])
    for source in sources:
        source.rates.clear()
        source.cpu_us.clear()
    for _ in range(rounds):
        for source in sources:
            read_once(source, jvm, rows)


def read_once(source: Source, jvm: int, rows: int) -> None:
    cpu_before = cpu_s(jvm, source.broker_pid)
    began = time.perf_counter()
    source.frame.write.format("noop").mode("overwrite").save()
    source.rates.append(rows / (time.perf_counter() - began))
    cpu_after = cpu_s(jvm, source.broker_pid)
    source.cpu_us.append(tuple((b - a) / rows * 1e6 for a, b in zip(cpu_before, cpu_after, strict=True)))


def cpu_s(jvm: int, broker: int | None) -> tuple[float, float, float]:
    """Returns the CPU time so far of the JVM, of the Python processes below it, and of the broker, in seconds."""
    stats = {int(path.name): stat for path in Path("/proc").glob("[0-9]*") if (stat := _stat(path))}
    below = {jvm}
    while further := {pid for pid, stat in stats.items() if stat[0] in below} - below:
        below |= further
    of_jvm, of_its_children = sum(stats[jvm][1:3]), sum(stats[jvm][3:])
    of_python = of_its_children + sum(sum(stats[pid][1:]) for pid in below - {jvm})
    ticks = (of_jvm, of_python, sum(stats[broker][1:3]) if broker else 0)
    return tuple(t / _TICKS_PER_S for t in ticks)  # type: ignore[return-value]


def _stat(process: Path) -> list[int]:
    """Returns a process's parent, and its own and its ended children's user and system times. Empty if it has ended."""
    with suppress(OSError):
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        return [int(fields[1]), *map(int, fields[11:15])]
    return []


def row_of(source: Source, sources: list[Source], size: int) -> str:
    rate = statistics.median(source.rates)
    by_name = {other.name: other for other in sources}
    of_others = [ratio(source, by_name.get(name)) for name in ("ready-made", "kafka")]
    jvm, python, broker = (statistics.median(part) for part in zip(*source.cpu_us, strict=True))
    cpu = f"{jvm + python + broker:.2f} (JVM {jvm:.2f}, Python {python:.2f}, broker {broker:.2f})"
    name = source.name if source.is_steady else f"{source.name} (not in steady state)"
    cells = (f"{size} B", name, cpu, f"{rate:,.0f}", f"{rate * size / CORES / 1e6:,.0f}", *of_others)
    return f"| {' | '.join(cells)} |"


def ratio(source: Source, other: Source | None) -> str:
    """Returns the ratio of the rates in each round, as median (minimum to maximum)."""
    if other is None or other is source:
        return ""
    ratios = [a / b for a, b in zip(source.rates, other.rates, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


# -- the broker's messages --------------------------------------------------------------------------------------


def rocketmq(spark: SparkSession, cluster: ProcessCluster, topic: str) -> DataFrame:
    reader = spark.read.format("rocketmq").option("nameServer", cluster.namesrv_addr)
    return reader.option("subscribe", topic).load()


async def fill(cluster: ProcessCluster, topic: str, queues: int, rows: int, size: int) -> None:
    """Creates the topic with this many queues, and sends `rows` messages of `size` bytes."""
    remoting = RemotingClient()
    api = BrokerApi(remoting)
    for broker in cluster.brokers:
        await api.create_topic(broker.address, TopicConfig(topic, read_queue_nums=queues, write_queue_nums=queues))
    async with asyncio.timeout(10):
        while True:
            with suppress(NoRouteInfo):
                if len((await api.route(cluster.namesrv_addr, topic)).queue_datas) == len(cluster.brokers):
                    break
            await asyncio.sleep(0.01)
    await remoting.close()
    body = os.urandom(size)
    at_once = max(1, SEND_BYTES // (size + RECORD_BYTES))
    async with Producer(cluster.namesrv_addr, "bench") as producer:
        for first in range(0, rows, at_once):
            numbers = range(first, min(rows, first + at_once))
            await producer.send_batch([Message(topic, body, keys=f"k{n}", tags="A") for n in numbers])


# -- ready-made batches -----------------------------------------------------------------------------------------


def ready_made(spark: SparkSession, rows: int, size: int) -> DataFrame:
    return spark.read.format("ready-made").option("rows", rows).option("size", size).load()


class ReadyMade(DataSource):
    """Yields the same batch repeatedly, with the columns of a rocketmq read."""

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

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return ReadyMadeStreamReader(int(self.options["rows"]), int(self.options["size"]))


class ReadyMadeReader(DataSourceReader):
    def __init__(self, rows: int, size: int) -> None:
        self._rows = rows
        self._size = size

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(n) for n in range(QUEUES)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        left = self._rows // QUEUES
        at_once = min(BATCH_ROWS, BATCH_BYTES // (self._size + RECORD_BYTES))
        batch = ready_made_batch(at_once, self._size)
        while left > 0:
            yield batch.slice(0, min(left, at_once))
            left -= at_once


class ReadyMadeStreamReader(DataSourceStreamReader):
    """Yields `rows` in micro-batches of MICRO_ROWS. One task reads each."""

    def __init__(self, rows: int, size: int) -> None:
        self._rows = rows
        self._size = size

    def initialOffset(self) -> dict[str, int]:
        return {"row": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"row": min(self._rows, start["row"] + MICRO_ROWS)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition(end["row"] - start["row"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield ready_made_batch(partition.value, self._size)


def ready_made_batch(rows: int, size: int) -> pa.RecordBatch:
    times = pa.array([1_767_268_800_000_000] * rows, pa.timestamp("us", "UTC"))
    columns: dict[str, Any] = {
        "topic": pa.repeat("bench", rows),
        "brokerName": pa.repeat("broker-a", rows),
        "queueId": pa.repeat(pa.scalar(0, pa.int32()), rows),
        "queueOffset": pa.array(range(rows), pa.int64()),
        "keys": pa.array([f"k{n}" for n in range(rows)]),
        "tags": pa.repeat("A", rows),
        "body": pa.repeat(pa.scalar(os.urandom(size), pa.binary()), rows),
        "bornTimestamp": times,
        "storeTimestamp": times,
        "msgId": pa.array([f"{n:032X}" for n in range(rows)]),
        "reconsumeTimes": pa.repeat(pa.scalar(0, pa.int32()), rows),
    }
    return pa.RecordBatch.from_pydict(columns)


# -- micro-batches ----------------------------------------------------------------------------------------------


def micro_batches(spark: SparkSession, cluster: ProcessCluster, directory: Path) -> str:
    """Returns a table of the times that Spark reports for small micro-batches."""
    rows = (1 + MICRO_BATCHES) * MICRO_ROWS
    asyncio.run(fill(cluster, "micro", MICRO_QUEUES, rows, 128))
    reader = spark.readStream.format("rocketmq").option("nameServer", cluster.namesrv_addr).option("subscribe", "micro")
    reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", MICRO_ROWS)
    frames = {
        "ready-made": spark.readStream.format("ready-made").option("rows", rows).option("size", 128).load(),
        f"rocketmq, {MICRO_QUEUES} queues": reader.load(),
    }
    lines = [
        f"| micro-batches of {MICRO_ROWS} rows, median in ms | {' | '.join(MICRO_PARTS)} |",
        "|---" * (1 + len(MICRO_PARTS)) + "|",
    ]
    for number, (name, frame) in enumerate(frames.items()):
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(directory / f"checkpoint-{number}"))
        query = writer.start()
        query.processAllAvailable()
        query.stop()
        # The first micro-batch warms up.
        progress = [p for p in query.recentProgress if p.numInputRows][1:]
        medians = [statistics.median(p.durationMs.get(part, 0) for p in progress) for part in MICRO_PARTS]
        lines.append(f"| {name} | {' | '.join(f'{ms:.0f}' for ms in medians)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
