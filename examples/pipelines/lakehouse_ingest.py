"""Writes a topic to a table of Delta Lake or Apache Iceberg, each message exactly once.

    spark-submit --packages io.delta:delta-spark_4.1_2.13:4.4.0 ... \\
      lakehouse_ingest.py --topic orders --format delta --table /lake/orders --checkpoint /lake/.orders
    spark-submit --packages org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0 ... \\
      lakehouse_ingest.py --topic orders --format iceberg --table lake.orders --checkpoint /lake/.orders

If the driver is killed before the checkpoint is complete, Spark writes the same micro-batch again. The formats handle
this differently:

- Delta Lake gets the id of the query and the number of the batch (`txnAppId`, `txnVersion`). It skips a batch that it
  already has.
- Iceberg skips existing messages with MERGE. Topic, broker, queue and queue offset identify a message.

docs/spark/lakes.md has the settings of both. With --once, the program ends when it has read all messages that existed
at its start.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from gantrymq.spark import register, session_builder

INTERVAL = "1 minute"
MESSAGES_PER_BATCH = 1_000_000
COLUMNS = (
    "topic STRING, brokerName STRING, queueId INT, queueOffset BIGINT, keys STRING, tags STRING, body BINARY, "
    "bornTimestamp TIMESTAMP, storeTimestamp TIMESTAMP"
)
#: Includes the partition column `day`, so that MERGE does not read the files of other days.
SAME_MESSAGE = " AND ".join(
    f"old.{name} = new.{name}" for name in ("day", "topic", "brokerName", "queueId", "queueOffset")
)


def read(spark: SparkSession, name_server: str, topic: str, limit: int | None) -> DataFrame:
    """Returns the topic with the columns of COLUMNS and the day on which the message was stored."""
    reader = (
        spark.readStream.format("rocketmq")
        .option("nameServer", name_server)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .schema(COLUMNS)
    )
    if limit is not None:
        reader = reader.option("maxOffsetsPerTrigger", limit)
    return reader.load().withColumn("day", F.to_date("storeTimestamp"))


def to_delta(table: str) -> Callable[[DataFrame, int], None]:
    """Returns a function that appends a micro-batch to the Delta table in the directory `table`."""

    def write(batch: DataFrame, number: int) -> None:
        # This id is stored in the checkpoint. A query with a new checkpoint therefore has another one.
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        assert query is not None
        writer = batch.write.format("delta").mode("append").partitionBy("day")
        writer.option("txnAppId", query).option("txnVersion", number).save(table)

    return write


def to_iceberg(table: str) -> Callable[[DataFrame, int], None]:
    """Returns a function that merges a micro-batch into `table`, with its catalog, for example lake.orders."""

    def write(batch: DataFrame, number: int) -> None:
        batch.createOrReplaceTempView("micro_batch")
        batch.sparkSession.sql(
            f"MERGE INTO {table} old USING micro_batch new ON {SAME_MESSAGE} WHEN NOT MATCHED THEN INSERT *"
        )

    return write


def start(messages: DataFrame, lake: str, table: str, checkpoint: str, *, once: bool, interval: str) -> StreamingQuery:
    if lake == "iceberg":
        create = f"CREATE TABLE IF NOT EXISTS {table} ({COLUMNS}, day DATE) USING iceberg PARTITIONED BY (day)"
        messages.sparkSession.sql(create)
    write = {"delta": to_delta, "iceberg": to_iceberg}[lake](table)
    writer = messages.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    return (writer.trigger(availableNow=True) if once else writer.trigger(processingTime=interval)).start()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--format", required=True, choices=("delta", "iceberg"))
    parser.add_argument("--table", required=True, help="delta: a directory; iceberg: CATALOG.TABLE")
    parser.add_argument("--checkpoint", required=True, help="where the query keeps its place")
    parser.add_argument("--once", action="store_true", help="end when all there was has been read")
    parser.add_argument("--interval", default=INTERVAL, help="from one micro-batch to the next")
    parser.add_argument("--limit", type=int, default=MESSAGES_PER_BATCH, help="messages in a micro-batch")
    given = parser.parse_args()
    spark = session_builder("lakehouse-ingest").config("spark.sql.session.timeZone", "UTC").getOrCreate()
    register(spark)
    # With availableNow, Spark before 4.2 runs only one micro-batch, so it must not have a limit.
    is_limited = not given.once or spark.version >= "4.2"
    messages = read(spark, given.name_server, given.topic, given.limit if is_limited else None)
    query = start(messages, given.format, given.table, given.checkpoint, once=given.once, interval=given.interval)
    query.awaitTermination()


if __name__ == "__main__":
    main()
