"""Tests of messages of the largest allowed size (maxMessageSize, 4 MiB): written, read and streamed, many per batch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_support import WAIT_S, run_available

from gantrymq.testing.embedded import EmbeddedCluster

pytestmark = [pytest.mark.spark, pytest.mark.slow]

LARGEST = 4 * 1024 * 1024
COUNT = 32
#: Additional memory for a read of 128 MiB, in bytes: pulls in flight, one batch ahead, one batch decoded.
MOST_MEMORY = 64 * 1024 * 1024


@pytest.fixture
def rows(spark: SparkSession) -> Callable[[int], DataFrame]:
    """Returns a function that creates rows with incompressible bodies of a given size, and their numbers as keys."""

    def rows(size: int) -> DataFrame:
        def make(numbers: Iterator[object]) -> Iterator[object]:
            import random

            import pyarrow as pa

            for batch in numbers:
                for number in batch.column("id").to_pylist():  # type: ignore[attr-defined]
                    body = random.Random(number).randbytes(size)
                    yield pa.RecordBatch.from_arrays(
                        [pa.array([f"k{number}"]), pa.array([body], pa.binary())], ["keys", "body"]
                    )

        return spark.range(0, COUNT, 1, 4).mapInArrow(make, "keys string, body binary")

    return rows


def test_the_largest_messages(
    spark: SparkSession,
    cluster: EmbeddedCluster,
    new_topic: Callable[..., str],
    rows: Callable[[int], DataFrame],
    tmp_path: Path,
) -> None:
    source, target, halves, numbered = (new_topic(1) for _ in range(4))

    def write(frame: DataFrame, topic: str, **more: str) -> None:
        writer = frame.write.format("rocketmq").option("nameServer", cluster.name_server).option("topic", topic)
        writer.options(**more).mode("append").save()

    def digests(topic: str) -> list[tuple[str, str]]:
        reader = spark.read.format("rocketmq").option("nameServer", cluster.name_server).option("subscribe", topic)
        found = reader.load().select("keys", F.md5("body").alias("digest")).collect()
        return sorted((row["keys"], row["digest"]) for row in found)

    expected = sorted(
        (row["keys"], row["digest"]) for row in rows(LARGEST).select("keys", F.md5("body").alias("digest")).collect()
    )
    write(rows(LARGEST), source)
    assert digests(source) == expected

    def start() -> object:
        reader = spark.readStream.format("rocketmq").option("nameServer", cluster.name_server)
        stream = reader.option("subscribe", source).option("startingOffsets", "earliest")
        messages = stream.option("maxBytesPerTrigger", str(20 * LARGEST)).load().select("keys", "body")
        writer = messages.writeStream.format("rocketmq").option("nameServer", cluster.name_server)
        return (
            writer.option("topic", target)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    query = run_available(start, WAIT_S)
    assert digests(target) == expected
    # The size estimate is good if all messages are equally large.
    assert max(progress.numInputRows for progress in query.recentProgress) <= 20
    # A body with one more byte is rejected, and the error names the broker's limit.
    with pytest.raises(PySparkException, match="4194304"):
        write(rows(LARGEST + 1), target)
    assert digests(target) == expected
    # Transactions have the same limit. With exactlyOnce a message is sent as a batch of one, whose length fields count.
    write(rows(LARGEST), halves, transactional="true")
    assert digests(halves) == expected
    with pytest.raises(PySparkException, match=r"(?s)at most 4194304.*row 0 of the partition"):
        write(rows(LARGEST), numbered, exactlyOnce="true")
    write(rows(LARGEST - 1024), numbered, exactlyOnce="true")
    assert len(digests(numbered)) == COUNT
    assert _memory_of_reading(cluster, source) < MOST_MEMORY


def _memory_of_reading(cluster: EmbeddedCluster, topic: str) -> int:
    """Returns the additional memory that a new process uses at most while it reads, in bytes."""
    program = f"""
from pathlib import Path
import pyarrow as pa
from gantrymq.arrow.columns import ARROW_TYPES
from gantrymq.arrow.cluster_client import ClusterClient, run
from gantrymq.arrow.filters import PushedFilters
from gantrymq.spark.options import ReadOptions
from gantrymq.arrow.planning import plan_batch
from gantrymq.arrow.rows import read_ranges

options = ReadOptions.parse({{"nameserver": "{cluster.name_server}", "subscribe": "{topic}"}})

async def plan():
    async with ClusterClient(options.name_servers, 3000) as cluster:
        return await plan_batch(cluster, options, PushedFilters())

def resident(field):
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field)]
    return int(line.split()[1]) * 1024

schema = pa.schema([("body", ARROW_TYPES["body"])])
partitions = run(plan())
Path("/proc/self/clear_refs").write_text("5")
before = resident("VmRSS")
count = sum(len(batch) for ranges in partitions for batch in read_ranges(ranges, options, schema))
assert count == {COUNT}, count
print(resident("VmHWM") - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr
    print(f"reading {COUNT} messages of 4 MiB takes {int(done.stdout) / 2**20:.0f} MiB")
    return int(done.stdout)
