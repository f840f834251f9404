"""Repairs the dead-letter messages of a consumer group and sends them again.

    python dead_letter_repair.py --group billing --topic orders --checkpoint repair/.checkpoint

The dead-letter messages of a group are in the topic %DLQ%GROUP. The program reads those that came from `--topic`.

- Adapt the function `repaired` to your bodies. It returns a corrected value for each body that it can repair.
- Repaired messages go back to their topic, where every consumer group receives them.
- The program sends all other messages unchanged to the topic `GROUP-parked`. The property `reason` has the reason.
  Create this topic first.

Each message is sent exactly once (`exactlyOnce`). This is also true if the program is killed and started again with the
same checkpoint. Without --once, the program waits for more messages, also for the first one.
"""

from __future__ import annotations

import argparse
import asyncio

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from gantrymq import AdminClient
from gantrymq.spark import register, session_builder

ORDER = "id STRING NOT NULL, customer STRING NOT NULL, cents BIGINT, euros DECIMAL(18, 2)"


async def has_dead_letters(name_server: str, group: str, *, once: bool, poll_s: float = 5.0) -> bool:
    """Returns whether the group has a dead-letter queue. If `once` is false, it waits until the queue exists.

    Brokers create the queue with the first dead-letter message of the group.
    """
    async with AdminClient(name_server) as admin:
        while f"%DLQ%{group}" not in await admin.topic_list():
            if once:
                return False
            await asyncio.sleep(poll_s)
    return True


def read(spark: SparkSession, name_server: str, group: str, topic: str) -> DataFrame:
    messages = (
        spark.readStream.format("rocketmq")
        .option("nameServer", name_server)
        .option("subscribe", f"%DLQ%{group}")
        .option("startingOffsets", "earliest")
        .option("propertyColumns", "DLQ_ORIGIN_TOPIC, RETRY_TOPIC")
        .option("bodyFormat", "json")
        .option("bodySchema", ORDER)
        .option("corruptBodies", "null")
        .load()
    )
    return messages.where(F.coalesce("DLQ_ORIGIN_TOPIC", "RETRY_TOPIC") == topic)


def repaired(dead: DataFrame) -> DataFrame:
    """Returns the corrected `value` of each message. If it cannot be repaired, `value` is null and `reason` is set."""
    # Some shops send euros instead of cents.
    cents = F.coalesce("value.cents", (F.col("value.euros") * 100).cast("bigint"))
    reason = F.when(F.col("bodyError").isNotNull(), F.col("bodyError")).when(cents.isNull(), "an order without a price")
    value = F.struct("value.id", "value.customer", cents.alias("cents"))
    return dead.select("keys", "tags", "body", reason.alias("reason"), F.when(reason.isNull(), value).alias("value"))


def start(
    letters: DataFrame, name_server: str, topic: str, parked: str, checkpoint: str, *, once: bool = False
) -> list[StreamingQuery]:
    """Starts two queries: one for repaired messages, one for the others."""
    good = letters.where("reason IS NULL").select("keys", "tags", "value")
    properties = F.create_map(F.lit("reason"), "reason").alias("properties")
    bad = letters.where("reason IS NOT NULL").select("keys", "tags", "body", properties)
    queries = []
    for rows, target, options in ((good, topic, {"bodyFormat": "json"}), (bad, parked, {})):
        writer = (
            rows.writeStream.format("rocketmq")
            .option("nameServer", name_server)
            .option("topic", target)
            .option("exactlyOnce", "true")
            .options(**options)
            .option("checkpointLocation", f"{checkpoint}/{target}")
        )
        queries.append((writer.trigger(availableNow=True) if once else writer).start())
    return queries


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    parser.add_argument("--group", required=True, help="the consumer group")
    parser.add_argument("--topic", required=True, help="where the messages came from, and go to again")
    parser.add_argument("--checkpoint", required=True, help="where the queries keep their places")
    parser.add_argument("--once", action="store_true", help="end when all there was has been read")
    given = parser.parse_args()
    if not asyncio.run(has_dead_letters(given.name_server, given.group, once=given.once)):
        print(f"group {given.group} has no dead-letter messages")
        return
    spark = session_builder("dead-letter-repair").config("spark.sql.session.timeZone", "UTC").getOrCreate()
    register(spark)
    letters = repaired(read(spark, given.name_server, given.group, given.topic))
    parked = f"{given.group}-parked"
    for query in start(letters, given.name_server, given.topic, parked, given.checkpoint, once=given.once):
        query.awaitTermination()


if __name__ == "__main__":
    main()
