"""A Spark driver in its own process: two writes on a cluster with speculative execution.

    python speculation_driver.py MASTER NAME_SERVER ONCE_TOPIC TRANSACTIONAL_TOPIC DIRECTORY

The first attempt of one task sends half of its rows and then blocks until Spark kills it. Its speculative copy waits
until this half is sent. Each attempt of the first write creates a file PARTITION-ATTEMPT in DIRECTORY, and each attempt
of the second write in `second`. The slow attempt creates its file after it has sent its half.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

from gantrymq.spark import register, session_builder

ROWS = 4000
PARTITIONS = 4
SLOW_S = 120


def main(master: str, name_server: str, once: str, transactional: str, directory: str) -> None:
    spark = (
        session_builder("speculation-driver")
        .master(master)
        .config("spark.speculation", "true")
        .config("spark.speculation.multiplier", "1.1")
        .config("spark.speculation.minTaskRuntime", "100ms")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    for place, topic, option in (
        (Path(directory), once, "exactlyOnce"),
        (Path(directory) / "second", transactional, "transactional"),
    ):
        place.mkdir(exist_ok=True)
        rows = spark.range(0, ROWS, 1, PARTITIONS).mapInArrow(slowly(str(place)), "body string")
        (
            rows.write.format("rocketmq")
            .options(nameServer=name_server, topic=topic)
            .option(option, "true")
            .mode("append")
            .save()
        )
    spark.stop()


def slowly(directory: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        partition, attempt = context.partitionId(), context.attemptNumber()
        is_slow = (partition, attempt) == (0, 0)
        if not is_slow:
            Path(directory, f"{partition}-{attempt}").touch()
        if partition == 0 and not is_slow:
            _wait_for(Path(directory, "0-0"))
        for number, batch in enumerate(batches):
            if is_slow and number == ROWS // PARTITIONS // 100 // 2:
                Path(directory, "0-0").touch()
                time.sleep(SLOW_S)
            yield pa.RecordBatch.from_pydict({"body": [str(n) for n in batch.column(0).to_pylist()]})

    return work


def _wait_for(file: Path) -> None:
    """Waits for the file. If Python starts slowly, Spark can copy a task that has not begun."""
    until = time.monotonic() + SLOW_S
    while not file.exists() and time.monotonic() < until:
        time.sleep(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
