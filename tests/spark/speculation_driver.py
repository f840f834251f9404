"""A Spark driver as a process of its own: two writes on a cluster that copies slow tasks.

    python speculation_driver.py MASTER NAME_SERVER ONCE_TOPIC TRANSACTIONAL_TOPIC DIRECTORY

The first attempt of one task sends half of its rows and is slow then, until Spark kills it. DIRECTORY gets a file named
PARTITION-ATTEMPT for each attempt of the first write, and of the second one in `second`.
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
        Path(directory, f"{partition}-{attempt}").touch()
        for number, batch in enumerate(batches):
            if (partition, attempt, number) == (0, 0, ROWS // PARTITIONS // 100 // 2):
                time.sleep(SLOW_S)
            yield pa.RecordBatch.from_pydict({"body": [str(n) for n in batch.column(0).to_pylist()]})

    return work


if __name__ == "__main__":
    main(*sys.argv[1:])
