"""A topic of flights into Delta Lake: bronze, silver and gold, with late data and fields that come later.

    spark-submit --packages io.delta:delta-spark_4.1_2.13:4.4.0 ... medallion.py --topic flights --lake /lake/flights

bronze    each message as it came, once
silver    a row a flight: the latest word about it; `rejected` has bodies that are no flight
gold      a row for each day and airport

Docs/spark.md has the settings of Delta Lake. The days that a micro-batch has flights of are counted anew from silver,
so what comes late, by an hour or a year, is in gold as well. FIELDS is what silver takes of a body; bodies may have
more. A field that is added to it becomes a column, null in the rows that are there: --refill then reads bronze again.

A micro-batch that is run again, because its driver was killed, changes nothing: bronze knows it by its number, and
silver, `rejected` and gold merge rows by their keys. With --once the query ends when it has all that there was.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from gantrymq.spark import register, session_builder

INTERVAL = "1 minute"
#: What tells flights apart, and the rest of a body that silver takes.
KEY = ("carrier", "flight", "origin", "scheduled")
FIELDS = "carrier STRING, flight INT, origin STRING, scheduled TIMESTAMP, dep_delay DOUBLE"
MESSAGE = ("topic", "brokerName", "queueId", "queueOffset")
BRONZE = "topic STRING, brokerName STRING, queueId INT, queueOffset BIGINT, storeTimestamp TIMESTAMP, body STRING"
GOLD = "day DATE, origin STRING, flights BIGINT, delayed BIGINT, mean_delay DOUBLE"
#: Minutes.
DELAYED = 15


def read(spark: SparkSession, name_server: str, topic: str) -> DataFrame:
    """The columns of BRONZE."""
    messages = (
        spark.readStream.format("rocketmq")
        .option("nameServer", name_server)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .schema(BRONZE.replace("body STRING", "body BINARY"))
        .load()
    )
    return messages.withColumn("body", F.col("body").cast("string"))


def create_tables(spark: SparkSession, lake: str) -> None:
    tables = {
        "bronze": BRONZE,
        "rejected": BRONZE,
        "silver": f"{FIELDS}, day DATE, storeTimestamp TIMESTAMP",
        "gold": GOLD,
    }
    for name, columns in tables.items():
        partitions = "PARTITIONED BY (day)" if name == "silver" else ""
        spark.sql(f"CREATE TABLE IF NOT EXISTS {table(lake, name)} ({columns}) USING delta {partitions}")


def table(lake: str, name: str) -> str:
    return f"delta.`{lake}/{name}`"


def into(lake: str) -> Callable[[DataFrame, int], None]:
    """Takes a micro-batch into all tables."""

    def write(batch: DataFrame, number: int) -> None:
        # Of the checkpoint, so that a query that begins anew isn't taken for the one before it.
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        assert query is not None
        batch.persist()
        bronze = batch.write.format("delta").mode("append").option("txnAppId", query).option("txnVersion", number)
        bronze.save(f"{lake}/bronze")
        refine(batch, lake)
        batch.unpersist()

    return write


def refine(messages: DataFrame, lake: str) -> None:
    """Takes messages of bronze into the other tables; what they have already doesn't change."""
    parsed = messages.withColumn("parsed", F.from_json("body", FIELDS))
    is_flight = F.coalesce(F.expr(" AND ".join(f"parsed.{name} IS NOT NULL" for name in KEY)), F.lit(False))
    merge(parsed.where(~is_flight).drop("parsed"), lake, "rejected", MESSAGE, updates="")
    flights = parsed.where(is_flight).select(
        "parsed.*", F.to_date("parsed.scheduled").alias("day"), "storeTimestamp", *MESSAGE
    )
    latest = Window.partitionBy(*KEY).orderBy(F.desc("storeTimestamp"), F.desc("queueOffset"))
    flights = flights.withColumn("n", F.row_number().over(latest)).where("n = 1").drop("n", *MESSAGE).persist()
    merge(
        flights,
        lake,
        "silver",
        ("day", *KEY),
        updates="WHEN MATCHED AND new.storeTimestamp >= old.storeTimestamp THEN UPDATE SET *",
    )
    days = flights.select("day").distinct()
    counted = (
        messages.sparkSession.read.format("delta")
        .load(f"{lake}/silver")
        .join(days, "day", "left_semi")
        .groupBy("day", "origin")
        .agg(
            F.count("*").alias("flights"),
            F.count_if(F.col("dep_delay") >= DELAYED).alias("delayed"),
            F.avg("dep_delay").alias("mean_delay"),
        )
    )
    merge(counted, lake, "gold", ("day", "origin"), updates="WHEN MATCHED THEN UPDATE SET *")
    flights.unpersist()


def merge(rows: DataFrame, lake: str, name: str, key: tuple[str, ...], *, updates: str) -> None:
    """Rows into a table that has one for each key; columns that it hasn't got are added to it."""
    spark = rows.sparkSession
    # By a write of no rows: Delta Lake 4.2 on Spark 4.1 leaves them out of MERGE WITH SCHEMA EVOLUTION without a word.
    if not set(spark.read.format("delta").load(f"{lake}/{name}").columns).issuperset(rows.columns):
        nothing = spark.createDataFrame([], rows.schema)
        nothing.write.format("delta").mode("append").option("mergeSchema", "true").save(f"{lake}/{name}")
    rows.createOrReplaceTempView("new_rows")
    same = " AND ".join(f"old.{column} = new.{column}" for column in key)
    target = table(lake, name)
    spark.sql(f"MERGE INTO {target} old USING new_rows new ON {same} {updates} WHEN NOT MATCHED THEN INSERT *")


def start(messages: DataFrame, lake: str, *, once: bool, interval: str = INTERVAL) -> StreamingQuery:
    create_tables(messages.sparkSession, lake)
    writer = messages.writeStream.foreachBatch(into(lake)).option("checkpointLocation", f"{lake}/.checkpoint")
    return (writer.trigger(availableNow=True) if once else writer.trigger(processingTime=interval)).start()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--lake", required=True, help="the directory of the tables")
    parser.add_argument("--once", action="store_true", help="end when all there was has been read")
    parser.add_argument("--interval", default=INTERVAL, help="from one micro-batch to the next")
    parser.add_argument("--refill", action="store_true", help="read bronze again, for new FIELDS, and end")
    given = parser.parse_args()
    spark = session_builder("medallion").config("spark.sql.session.timeZone", "UTC").getOrCreate()
    register(spark)
    if given.refill:
        refine(spark.read.format("delta").load(f"{given.lake}/bronze"), given.lake)
    else:
        messages = read(spark, given.name_server, given.topic)
        start(messages, given.lake, once=given.once, interval=given.interval).awaitTermination()


if __name__ == "__main__":
    main()
