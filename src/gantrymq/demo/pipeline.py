"""The Spark stream reads flights, and writes the figures of every carrier and hour to a topic and to Parquet.

Both results are exact, even if the demo is interrupted:
- Duplicate flights are dropped by their id.
- Parquet has one directory for each micro-batch. A repeated micro-batch overwrites its directory.
- A repeated micro-batch can send its messages to the topic twice. They have the same key and the same figures.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from gantrymq.demo.flights import FIGURES

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

FLIGHTS_TOPIC = "flights"
DELAYS_TOPIC = "flight-delays"
#: An hour is final when the stream has read a flight that is this much later. Messages are in order only within a
#: queue. In a micro-batch, queues are up to nine days apart, because not every aircraft flies all year.
WATERMARK = "21 days"
#: Small enough for several micro-batches, so that the demo shows progress and can be interrupted.
FLIGHTS_PER_BATCH = 60_000
#: Short, because the brokers are on this machine: if they don't respond, the demo can't continue.
RETRY_TIMEOUT_MS = 10_000

_SCHEMA = "id long, hour timestamp, carrier string, dep_delay long, arr_delay long"


def read_flights(spark: SparkSession, namesrv_addr: str) -> DataFrame:
    """Returns the flights topic as a stream, from its beginning."""
    messages = (
        spark.readStream.format("rocketmq")
        .schema("body binary")
        .option("nameServer", namesrv_addr)
        .option("subscribe", FLIGHTS_TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", FLIGHTS_PER_BATCH)
        .option("retryTimeoutMs", RETRY_TIMEOUT_MS)
        .load()
    )
    body = F.from_json(F.col("body").cast("string"), _SCHEMA)
    return messages.select(body.alias("flight")).select("flight.*")


def delays_by_carrier_and_hour(flights: DataFrame, airlines: DataFrame) -> DataFrame:
    """Returns the figures of each carrier and hour, with the airline's name. Emits a row when its hour is final."""
    return (
        flights.withWatermark("hour", WATERMARK)
        .dropDuplicates(["id", "hour"])
        .groupBy("carrier", "hour")
        .agg(
            F.count("*").alias("flights"),
            F.count("dep_delay").alias("departed"),
            F.coalesce(F.sum("dep_delay"), F.lit(0)).alias("departure_delay"),
            F.count("arr_delay").alias("arrived"),
            F.coalesce(F.sum("arr_delay"), F.lit(0)).alias("arrival_delay"),
        )
        .join(F.broadcast(airlines), "carrier")
        .select("carrier", F.col("name").alias("airline"), "hour", *FIGURES)
    )


def start_query(
    spark: SparkSession, namesrv_addr: str, airlines: pd.DataFrame, *, checkpoint: Path, parquet: Path
) -> StreamingQuery:
    """Starts the stream, from its checkpoint if there is one."""
    names = spark.createDataFrame(airlines)
    delays = delays_by_carrier_and_hour(read_flights(spark, namesrv_addr), names)
    return (
        delays.writeStream.queryName("flight-delays")
        .outputMode("append")
        .option("checkpointLocation", str(checkpoint))
        .foreachBatch(_writer(namesrv_addr, parquet))
        .start()
    )


def messages_before(progress: StreamingQueryProgress) -> int:
    """Returns the number of messages that the query has read, including those of earlier runs."""
    offsets = json.loads(progress.sources[0].endOffset or "{}")
    return sum(offsets.get(FLIGHTS_TOPIC, {}).values())


def _writer(namesrv_addr: str, parquet: Path) -> Callable[[DataFrame, int], None]:
    def write(delays: DataFrame, batch: int) -> None:
        # Cached, so that both results come from one computation.
        delays = delays.persist()
        try:
            (
                delays.withColumn("month", F.date_format("hour", "yyyy-MM"))
                .coalesce(1)
                .write.mode("overwrite")
                .partitionBy("month")
                .parquet(str(parquet / f"batch={batch}"))
            )
            (
                delays.select(
                    F.concat_ws("/", "carrier", F.date_format("hour", "yyyy-MM-dd'T'HH")).alias("keys"),
                    F.col("carrier").alias("tags"),
                    F.to_json(F.struct("carrier", "airline", "hour", *FIGURES)).cast("binary").alias("body"),
                )
                .write.format("rocketmq")
                .option("nameServer", namesrv_addr)
                .option("topic", DELAYS_TOPIC)
                .option("retryTimeoutMs", RETRY_TIMEOUT_MS)
                .mode("append")
                .save()
            )
        finally:
            delays.unpersist()

    return write
