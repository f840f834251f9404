"""Writes a topic to Parquet files, partitioned by the day on which the broker stored the messages.

    python lake_ingest.py --name-server 127.0.0.1:9876 --topic orders --out lake/orders --checkpoint lake/.checkpoint

After a restart with the same checkpoint, the program continues where it stopped. Each message is in the table once,
even if a process is killed, because Spark's file sink records the files of each finished batch. Duplicates that a
producer sent are separate messages. With --once, the program ends when it has read all messages that existed at its
start.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from gantrymq.spark import register, session_builder

INTERVAL = "1 minute"
MESSAGES_PER_BATCH = 1_000_000


def read(spark: SparkSession, name_server: str, topic: str, *, once: bool = False) -> DataFrame:
    reader = (
        spark.readStream.format("rocketmq")
        .option("nameServer", name_server)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("includeProperties", "true")
    )
    # With availableNow, Spark before 4.2 runs only one micro-batch, so it must not have a limit.
    if not once or spark.version >= "4.2":
        reader = reader.option("maxOffsetsPerTrigger", MESSAGES_PER_BATCH)
    return reader.load()


def start(messages: DataFrame, out: str, checkpoint: str, *, once: bool) -> StreamingQuery:
    writer = (
        messages.withColumn("day", F.to_date("storeTimestamp"))
        .writeStream.format("parquet")
        .partitionBy("day")
        .option("checkpointLocation", checkpoint)
    )
    writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=INTERVAL)
    return writer.start(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--out", required=True, help="the table's directory")
    parser.add_argument("--checkpoint", required=True, help="where the query keeps its place")
    parser.add_argument("--once", action="store_true", help="end when all there was has been read")
    given = parser.parse_args()
    spark = session_builder("lake-ingest").config("spark.sql.session.timeZone", "UTC").getOrCreate()
    register(spark)
    messages = read(spark, given.name_server, given.topic, once=given.once)
    start(messages, given.out, given.checkpoint, once=given.once).awaitTermination()


if __name__ == "__main__":
    main()
