"""Calculates the latency from send to consumption for each topic and group, from RocketMQ's message traces.

    python trace_latency.py --name-server 127.0.0.1:9876

If tracing is on, producers and consumers write traces to the topic RMQ_SYS_TRACE_TOPIC. The trace of a send (Pub) and
the traces of its consumption (SubBefore, SubAfter) have the same message id. The times come from the clients' clocks,
which should be synchronised.

The waiting time ends when the consumer starts to process the message. The end-to-end time ends when the consumer
finishes. If a message was consumed several times because of failures, its last attempt counts.
"""

from __future__ import annotations

import argparse

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from gantrymq.spark import register, session_builder

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
#: Positions of the fields in a line of a trace. Source: `TraceDataEncoder` of Apache's client.
PUB = {"time": 1, "group": 3, "topic": 4, "id": 5, "cost": 10, "ok": 13}
SUB_BEFORE = {"time": 1, "group": 3, "request": 4, "id": 5}
SUB_AFTER = {"request": 1, "id": 2, "cost": 3, "ok": 4}


def read(spark: SparkSession, name_server: str, topic: str = TRACE_TOPIC, **options: str) -> DataFrame:
    """Returns one row per line of the traces: `kind` and `fields`.

    `options` are options of the data source, for example `startingTimestamp`.
    """
    messages = (
        spark.read.format("rocketmq")
        .option("nameServer", name_server)
        .option("subscribe", topic)
        .options(**options)
        .schema("body binary")
        .load()
    )
    lines = messages.select(F.explode(F.split(F.col("body").cast("string"), "\x02")).alias("line"))
    fields = F.split("line", "\x01")
    return lines.where("line != ''").select(fields[0].alias("kind"), fields.alias("fields"))


def latencies(lines: DataFrame) -> DataFrame:
    """Returns one row per message and group: topic, group, waiting_ms, end_to_end_ms, ok."""
    sends = _lines(lines, "Pub", PUB)
    sends = sends.where("ok = 'true'").select(F.explode(F.split("id", ",")).alias("id"), "topic", _ms("time", "sent"))
    begins = _lines(lines, "SubBefore", SUB_BEFORE).select("id", "request", "group", _ms("time", "begun"))
    ends = _lines(lines, "SubAfter", SUB_AFTER).select("id", "request", "ok", _ms("cost", "cost"))
    attempts = begins.join(ends, ["id", "request"])
    last = attempts.groupBy("id", "group").agg(F.max_by(F.struct("begun", "cost", "ok"), "begun").alias("last"))
    last = last.select("id", "group", "last.*")
    return last.join(sends, "id").select(
        "topic",
        "group",
        (F.col("begun") - F.col("sent")).alias("waiting_ms"),
        (F.col("begun") + F.col("cost") - F.col("sent")).alias("end_to_end_ms"),
        (F.col("ok") == "true").alias("ok"),
    )


def summary(consumed: DataFrame) -> DataFrame:
    def percentile(column: str, share: float) -> Column:
        return F.percentile(column, F.lit(share)).alias(f"{column.removesuffix('_ms')}_p{share * 100:.0f}_ms")

    return (
        consumed.groupBy("topic", "group")
        .agg(
            F.count("*").alias("messages"),
            F.count_if(~F.col("ok")).alias("failed"),
            percentile("waiting_ms", 0.5),
            percentile("waiting_ms", 0.99),
            percentile("end_to_end_ms", 0.5),
            percentile("end_to_end_ms", 0.99),
        )
        .orderBy("topic", "group")
    )


def _lines(lines: DataFrame, kind: str, places: dict[str, int]) -> DataFrame:
    # Older clients write fewer fields. `get` returns null for a missing one.
    columns = [F.get("fields", F.lit(place)).alias(name) for name, place in places.items()]
    return lines.where(F.col("kind") == kind).select(*columns)


def _ms(column: str, name: str) -> Column:
    return F.col(column).cast("long").alias(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    parser.add_argument("--topic", default=TRACE_TOPIC)
    parser.add_argument("--since", help="only traces from this time on, in ms since the epoch")
    given = parser.parse_args()
    spark = session_builder("trace-latency").getOrCreate()
    register(spark)
    options = {"startingTimestamp": given.since} if given.since else {}
    summary(latencies(read(spark, given.name_server, given.topic, **options))).show(truncate=False)


if __name__ == "__main__":
    main()
