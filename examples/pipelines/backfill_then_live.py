"""Copies a topic into one table: old messages from the brokers' files, new ones from the brokers, each message once.

    python backfill_then_live.py --topic orders --store broker-a=/data/broker-a --store broker-b=/data/broker-b \\
      --table lake/orders

1. The program reads the files of each store (or a copy of them) at the speed of the disk, without a request to a
   broker. It writes their messages to the first part of the table.
2. It stores the end offset of each queue in `_seam`.
3. A stream starts at these offsets. Its checkpoint stores the progress from then on.

If the program is killed, it writes the first part again, or a micro-batch overwrites itself. Each part is a directory
of Parquet files. part=-1 has the old messages, and part=0, 1, ... have the micro-batches. The table can be in any file
system of Spark, for example `s3a://lake/orders`.
"""

from __future__ import annotations

import argparse
import json

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from gantrymq.spark import register, session_builder

COLUMNS = (
    "topic STRING, brokerName STRING, queueId INT, queueOffset BIGINT, keys STRING, tags STRING, body BINARY, "
    "storeTimestamp TIMESTAMP"
)
PAST = -1
#: Readers of the table ignore names that begin with an underscore.
SEAM = "_seam"


def part(table: str, number: int) -> str:
    return f"{table}/part={number}"


def saved_offsets(spark: SparkSession, table: str) -> dict[str, dict[str, int]] | None:
    """Returns the saved end offsets; None before they are complete."""
    try:
        lines = spark.read.text(f"{table}/{SEAM}").collect()
    except AnalysisException as e:
        if e.getCondition() != "PATH_NOT_FOUND":
            raise
        return None
    return json.loads(lines[0].value) if lines else None


def backfill(spark: SparkSession, topic: str, stores: dict[str, str], table: str) -> dict[str, dict[str, int]]:
    """Writes the old messages if this is not done yet. Returns the next offset of each queue (`startingOffsets`)."""
    saved = saved_offsets(spark, table)
    if saved is not None:
        return saved
    past = None
    for broker, directory in stores.items():
        store = (
            spark.read.format("rocketmq-store")
            .option("subscribe", topic)
            .option("brokerName", broker)
            .schema(COLUMNS)
            .load(directory)
        )
        past = store if past is None else past.unionByName(store)
    assert past is not None
    past.write.mode("overwrite").parquet(part(table, PAST))
    # Use the written rows, because the store can have received more messages meanwhile.
    written = spark.read.parquet(part(table, PAST))
    ends = written.groupBy("brokerName", "queueId").agg((F.max("queueOffset") + 1).alias("end")).collect()
    # Queues without a message in the store are missing here. The stream reads them from their start.
    offsets = {topic: {f"{row.brokerName}:{row.queueId}": row.end for row in ends}}
    lines = spark.createDataFrame([(json.dumps(offsets),)], "value STRING")
    lines.coalesce(1).write.mode("overwrite").text(f"{table}/{SEAM}")
    return offsets


def live(
    spark: SparkSession, name_server: str, topic: str, offsets: dict[str, dict[str, int]], table: str, *, once: bool
) -> StreamingQuery:
    messages = (
        spark.readStream.format("rocketmq")
        .option("nameServer", name_server)
        .option("subscribe", topic)
        .option("startingOffsets", json.dumps(offsets))
        .schema(COLUMNS)
        .load()
    )
    writer = messages.writeStream.option("checkpointLocation", f"{table}/_checkpoint").foreachBatch(
        lambda batch, number: batch.write.mode("overwrite").parquet(part(table, number))
    )
    return (writer.trigger(availableNow=True) if once else writer).start()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--store", action="append", required=True, metavar="BROKER=DIRECTORY", help="of each broker")
    parser.add_argument("--table", required=True, help="a directory that driver and executors share, or its URI")
    parser.add_argument("--once", action="store_true", help="end when all there was has been read")
    given = parser.parse_args()
    spark = session_builder("backfill-then-live").config("spark.sql.session.timeZone", "UTC").getOrCreate()
    register(spark)
    table = given.table.rstrip("/")
    stores = dict(store.split("=", 1) for store in given.store)
    offsets = backfill(spark, given.topic, stores, table)
    live(spark, given.name_server, given.topic, offsets, table, once=given.once).awaitTermination()


if __name__ == "__main__":
    main()
