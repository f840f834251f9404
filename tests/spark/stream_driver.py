"""A Spark driver in its own process: reads a topic as a stream until its end and writes numbers into Parquet files.

    python stream_driver.py MASTER NAME_SERVER TOPIC MAX_OFFSETS_PER_TRIGGER DIRECTORY

DIRECTORY stores the checkpoint and the rows (`out`). A restart with the same DIRECTORY continues.
"""

from __future__ import annotations

import sys

from pyspark.sql import functions as F

from gantrymq.spark import register, session_builder
from gantrymq.spark.versions import HAS_ADMISSION_CONTROL


def main(master: str, name_server: str, topic: str, most: str, directory: str) -> None:
    spark = (
        session_builder("stream-driver")
        .master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    messages = (
        spark.readStream.format("rocketmq")
        .option("nameServer", name_server)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", most)
        .schema("body binary")
        .load()
    )
    numbers = (
        messages.select(F.col("body").cast("string").cast("long").alias("number"))
        .writeStream.format("parquet")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
    )
    is_done = False
    while not is_done:
        query = numbers.start(f"{directory}/out")
        query.awaitTermination()
        # Without admission control, a run has only one micro-batch.
        is_done = HAS_ADMISSION_CONTROL or not any(progress.numInputRows for progress in query.recentProgress)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
