"""How long messages take from being sent to being consumed, by topic and group, out of RocketMQ's message traces.

    python trace_latency.py --name-server 127.0.0.1:9876

Producers and consumers with tracing on write what they do into the topic RMQ_SYS_TRACE_TOPIC. A send (Pub) and the
consumptions (SubBefore, SubAfter) of a message have its id in common. Times are those of the clients' clocks, which
should agree. Latency ends when the consumer has begun (waiting) or is done (end to end). A message that was consumed
several times, because consuming failed, counts with its last attempt.
"""

from __future__ import annotations

import argparse

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from gantrymq.spark import register, session_builder

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
#: The places in a trace's line, as Apache's clients write it (client/trace/TraceDataEncoder).
PUB = {"time": 1, "group": 3, "topic": 4, "id": 5, "cost": 10, "ok": 13}
SUB_BEFORE = {"time": 1, "group": 3, "request": 4, "id": 5}
SUB_AFTER = {"request": 1, "id": 2, "cost": 3, "ok": 4}


def read(spark: SparkSession, name_server: str, topic: str = TRACE_TOPIC, **options: str) -> DataFrame:
    """One row a line: `kind` and `fields`. `options` are those of a read, as `startingTimestamp`."""
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
    """One row a message and group: topic, group, waiting_ms, end_to_end_ms, ok."""
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
    # `get` gives null for what a line hasn't got: older clients write fewer fields.
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
