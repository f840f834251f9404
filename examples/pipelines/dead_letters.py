"""Summarises the dead-letter messages of a consumer group by topic and day, with an example and the retry time.

    python dead_letters.py --name-server 127.0.0.1:9876 --group billing

The dead-letter messages of a group are in the topic %DLQ%GROUP. A property of each message has its original topic.
After you have fixed the cause, use --resend to send the messages to that topic again. Every consumer group of the topic
receives them.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from gantrymq.spark import register, session_builder


def read(spark: SparkSession, name_server: str, group: str) -> DataFrame:
    messages = (
        spark.read.format("rocketmq")
        .option("nameServer", name_server)
        .option("subscribe", f"%DLQ%{group}")
        .option("includeProperties", "true")
        .load()
    )
    properties = F.col("properties")
    return messages.withColumn(
        "fromTopic", F.coalesce(properties["DLQ_ORIGIN_TOPIC"], properties["RETRY_TOPIC"])
    ).withColumn("tried", F.col("storeTimestamp").cast("double") - F.col("bornTimestamp").cast("double"))


def summary(dead: DataFrame) -> DataFrame:
    """Returns for each topic and day: messages, different keys, maximum attempts, median seconds, an example body."""
    return (
        dead.groupBy("fromTopic", F.to_date("storeTimestamp").alias("day"))
        .agg(
            F.count("*").alias("messages"),
            F.count_distinct("keys").alias("keys"),
            F.max("reconsumeTimes").alias("attempts"),
            F.round(F.percentile_approx("tried", 0.5), 1).alias("median_seconds"),
            F.any_value(F.col("body").cast("string")).alias("example"),
        )
        .orderBy(F.desc("messages"))
    )


def resend(dead: DataFrame, name_server: str) -> None:
    (
        dead.where("fromTopic IS NOT NULL")
        .select(F.col("fromTopic").alias("topic"), "body", "keys", "tags", "properties")
        .write.format("rocketmq")
        .option("nameServer", name_server)
        .mode("append")
        .save()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    parser.add_argument("--group", required=True, help="the consumer group")
    parser.add_argument("--resend", action="store_true", help="send them to their topic again")
    given = parser.parse_args()
    spark = session_builder("dead-letters").config("spark.sql.session.timeZone", "UTC").getOrCreate()
    register(spark)
    # Cached, so that exactly the messages of the summary are sent again.
    dead = read(spark, given.name_server, given.group).cache()
    summary(dead).show(truncate=60)
    if given.resend:
        resend(dead, given.name_server)
        print(f"{dead.count()} messages sent again")


if __name__ == "__main__":
    main()
