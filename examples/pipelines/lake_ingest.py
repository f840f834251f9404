"""A topic into Parquet, partitioned by the day on which the messages were stored.

    python lake_ingest.py --name-server 127.0.0.1:9876 --topic orders --out lake/orders --checkpoint lake/.checkpoint

Started again with the same checkpoint it goes on where it stopped. A message is in the table once, whatever was killed
when, because Spark's file sink writes down which files belong to a finished batch; copies that a producer has sent are
messages of their own. With --once it ends when it has all that was there when it began.
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
    # A Spark before 4.2 reads one micro-batch with availableNow: it must have everything.
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
