"""A Spark driver in its own process that writes with exactlyOnce.

    python exactly_once_driver.py stream NAME_SERVER TARGET SOURCE MAX_OFFSETS_PER_TRIGGER DIRECTORY
    python exactly_once_driver.py failing NAME_SERVER TARGET - 0 DIRECTORY

`stream` copies a topic into another until its end. DIRECTORY stores the checkpoint: a restart with the same one
continues. `failing` is a batch of two tasks, each of which fails once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from gantrymq.spark import register, session_builder
from gantrymq.spark.versions import HAS_ADMISSION_CONTROL


def fail_at_the_end(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() == 0:
        raise RuntimeError("this attempt fails on purpose")


def write_failing(spark: SparkSession, name_server: str, target: str) -> None:
    (
        spark.range(0, 20_000, 1, 2)
        .select(F.col("id").cast("string").alias("body"))
        .mapInArrow(fail_at_the_end, "body string")
        .write.format("rocketmq")
        .options(nameServer=name_server, topic=target, exactlyOnce="true")
        .mode("append")
        .save()
    )


def write_stream(spark: SparkSession, name_server: str, target: str, source: str, most: str, directory: str) -> None:
    rows = (
        spark.readStream.format("rocketmq")
        .options(nameServer=name_server, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger=most)
        .schema("body binary, keys string")
        .load()
        .writeStream.format("rocketmq")
        .options(nameServer=name_server, topic=target, exactlyOnce="true")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
    )
    is_done = False
    while not is_done:
        query = rows.start()
        query.awaitTermination()
        # Without admission control, a run has only one micro-batch.
        is_done = HAS_ADMISSION_CONTROL or not any(progress.numInputRows for progress in query.recentProgress)


def main(what: str, name_server: str, target: str, source: str, most: str, directory: str) -> None:
    spark = (
        session_builder("exactly-once-driver")
        .master("local[2, 4]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("WARN")
    register(spark)
    if what == "failing":
        write_failing(spark, name_server, target)
    else:
        write_stream(spark, name_server, target, source, most, directory)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
