"""Spark writing to a topic, plainly, with exactlyOnce and in a transaction; and reading all of it again.

    .venv/bin/python bench/spark_write.py [--rows N] [--rounds N] [--size BYTES] [--no-keys] [--brokers N]
        [--modes MODE...] [--partitions N] [--workers N]

Everything runs on this machine: brokers, driver and tasks share its cores. With --workers N, Spark runs as a
standalone cluster with N worker processes. Prints Markdown tables, one of them with the peak memory of the
processes. Progress goes to stderr. All topics stay below TMPDIR until the end; the program checks the free space at
its start.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
from disk_space import check_capacity
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from result_files import add_out, recorded
from spark import fill
from spark_processes import Watch, processor_s

from gantrymq.client.broker_api import BrokerApi
from gantrymq.errors import GantryError
from gantrymq.protocol.topic_name import TRANSACTION_HALF_TOPIC
from gantrymq.remoting.client import RemotingClient
from gantrymq.spark import register, session_builder
from gantrymq.spark.session import java_home
from gantrymq.testing.processes import ProcessCluster

MODES = {"plain": {}, "exactlyOnce": {"exactlyOnce": "true"}, "transactional": {"transactional": "true"}}
#: Disk space of a message besides its body (log, consume queue, index; for a transaction also its half message), and
#: the number of its bodies. Derived from the file formats.
MODE_BYTES = {"plain": (240, 1), "exactlyOnce": (270, 1), "transactional": (790, 2)}
#: Disk space of a key with nine digits, which is stored twice in a log.
KEY_BYTES = 50
QUEUES = 4
_SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
_START_S = 60.0


def main() -> None:
    args = parse_args()
    with ExitStack() as stack:
        stack.enter_context(recorded(args, "bench/spark_write.py"))
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        check_capacity(directory, needed_bytes(args), "fewer --rows or --modes, a smaller --size, or TMPDIR elsewhere")
        cluster = stack.enter_context(ProcessCluster(directory / "brokers", brokers=args.brokers))
        master = stack.enter_context(standalone(directory, args.workers)) if args.workers else "local[2]"
        spark = start_spark(master)
        stack.callback(spark.stop)
        progress = Progress(spark, cluster)
        watch = stack.enter_context(Watch(progress.line))
        print(
            f"{platform.python_version()}, Spark {spark.version}, {master.partition(':')[0]}, {os.cpu_count()} CPUs, "
            f"{args.brokers} broker(s), {args.partitions} partitions, {args.rows:,} rows of {args.size} B"
            f"{'' if args.keys else ' without keys'}\n"
        )
        print("| write | rows/s, each round | CPU, µs per row | read again, rows/s |")
        print("|---|---|---|---|")
        frame = rows_of(spark, args.rows, args)
        for mode in args.modes:
            # Warms up the Python workers and the JVM.
            measure(cluster, progress, f"warm-{mode}", rows_of(spark, 20_000, args), MODES[mode])
            before = processor_s()
            names = [f"{mode}-{number}" for number in range(args.rounds)]
            rounds = [measure(cluster, progress, name, frame, MODES[mode]) for name in names]
            took = {kind: after - before.get(kind, 0.0) for kind, after in processor_s().items()}
            rows = args.rows * args.rounds
            cpu = ", ".join(f"{kind} {s / rows * 1e6:.1f}" for kind, s in took.items() if s / rows * 1e6 >= 0.1)
            rates = ", ".join(f"{args.rows / took_s:,.0f}" for took_s in rounds)
            print(f"| {mode} | {rates} | {cpu} | {read_all(spark, cluster, ','.join(names), rows):,.0f} |", flush=True)
        print(f"\n{watch.table()}")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition(";")[0])
    parser.add_argument("--rows", type=int, default=500_000, help="rows of a write (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="measured writes of each kind (%(default)s)")
    parser.add_argument("--size", type=int, default=128, help="bytes of a body (%(default)s)")
    parser.add_argument("--no-keys", dest="keys", action="store_false", help="leave out each message's key")
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--workers", type=int, default=0, help="of a standalone cluster; 0 is local[2]")
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=list(MODES))
    add_out(parser)
    return parser.parse_args()


def start_spark(master: str) -> SparkSession:
    spark = (
        session_builder("bench")
        .master(master)
        .config("spark.executor.cores", "1")
        .config("spark.executor.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


@contextmanager
def standalone(directory: Path, workers: int) -> Iterator[str]:
    """Starts a master and workers. Yields the master's URL."""
    with ExitStack() as stack:
        master = stack.enter_context(daemon(directory, "Master", [], r"spark://127\.0\.0\.1:\d+"))
        for number in range(workers):
            size = ["--cores", "1", "--memory", "1200m", "--work-dir", str(directory / f"work-{number}"), master]
            stack.enter_context(daemon(directory, "Worker", size, "Successfully registered", number))
        yield master


@contextmanager
def daemon(directory: Path, kind: str, arguments: list[str], ready: str, number: int = 0) -> Iterator[str]:
    log = directory / f"{kind}-{number}.log"
    command = [_SPARK_CLASS, f"org.apache.spark.deploy.{kind.lower()}.{kind}"]
    command += ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0", *arguments]
    environment = os.environ | {"JAVA_HOME": str(java_home()), "SPARK_LOCAL_IP": "127.0.0.1"}
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + _START_S
        while not (found := re.search(ready, log.read_text())):
            if time.monotonic() > deadline or process.poll() is not None:
                raise RuntimeError(log.read_text()[-2000:])
            time.sleep(0.1)
        yield found.group()
    finally:
        process.terminate()
        process.wait()


def rows_of(spark: SparkSession, rows: int, args: argparse.Namespace) -> DataFrame:
    number = F.col("id").cast("string")
    columns = [F.rpad(number, args.size, ".").alias("body"), *([number.alias("keys")] if args.keys else [])]
    return spark.range(0, rows, 1, args.partitions).select(*columns)


def needed_bytes(args: argparse.Namespace) -> int:
    of_modes = [MODE_BYTES[mode] for mode in args.modes]
    a_row = sum(own + bodies * args.size + (KEY_BYTES if args.keys else 0) for own, bodies in of_modes)
    return int(args.rows * args.rounds * a_row)


class Progress:
    """Progress of a write: stored messages of the topic, pending half messages, and Spark's tasks."""

    def __init__(self, spark: SparkSession, cluster: ProcessCluster) -> None:
        self.topic = ""
        self._tracker = spark.sparkContext.statusTracker()
        self._brokers = [broker.address for broker in cluster.brokers]

    def line(self) -> str:
        if not self.topic:
            return "Spark has started"
        stages = [
            found for number in self._tracker.getActiveStageIds() if (found := self._tracker.getStageInfo(number))
        ]
        tasks = "".join(f", {stage.numCompletedTasks} of {stage.numTasks} tasks" for stage in stages)
        return f"{self.topic}: {asyncio.run(self._stored())}{tasks}"

    async def _stored(self) -> str:
        remoting = RemotingClient()
        api = BrokerApi(remoting)
        try:
            there = sum([await api.max_offset(at, self.topic, n) for at in self._brokers for n in range(QUEUES)])
            halves = sum([await api.max_offset(at, TRANSACTION_HALF_TOPIC, 0) for at in self._brokers])
        except GantryError as e:
            return str(e)
        finally:
            await remoting.close()
        return f"{there:,} messages are there" + (f", half messages so far {halves:,}" if halves else "")


def measure(
    cluster: ProcessCluster, progress: Progress, topic: str, frame: DataFrame, options: dict[str, str]
) -> float:
    """Returns the time in seconds from the start of the write until all messages are readable."""
    asyncio.run(fill(cluster, topic, QUEUES, 0, 0))
    progress.topic = topic
    began = time.perf_counter()
    writer = frame.write.format("rocketmq").options(nameServer=cluster.namesrv_addr, topic=topic, **options)
    writer.mode("append").save()
    return time.perf_counter() - began


def read_all(spark: SparkSession, cluster: ProcessCluster, topics: str, rows: int) -> float:
    """Returns rows per second. Asserts that each row exists once."""
    reader = spark.read.format("rocketmq").options(nameServer=cluster.namesrv_addr, subscribe=topics)
    began = time.perf_counter()
    number = F.expr("CAST(TRIM(TRAILING '.' FROM CAST(body AS STRING)) AS BIGINT)")
    [found] = reader.schema("body binary").load().agg(F.count("*"), F.sum(number), F.max(number)).collect()
    took = time.perf_counter() - began
    each = rows // len(topics.split(","))
    expected = (rows, rows // each * (each * (each - 1) // 2), each - 1)
    if tuple(found) != expected:
        raise SystemExit(f"count, sum and highest number are {tuple(found)}, and should be {expected}")
    return rows / took


if __name__ == "__main__":
    main()
