"""Writes a topic of flights to bronze, silver and gold tables in Delta Lake, with late data and new fields.

    spark-submit --packages io.delta:delta-spark_4.1_2.13:4.4.0 ... medallion.py --topic flights --lake /lake/flights

bronze    each message unchanged, exactly once
silver    one row per flight with its latest state; the table `rejected` has bodies that are not flights
gold      one row per day and airport

docs/spark/lakes.md has the settings of Delta Lake.

- Late data: each micro-batch recalculates gold from silver for every day of its flights. Gold is therefore correct for
  messages that arrive an hour or a year late.
- New fields: FIELDS lists the fields of a body that silver contains. A body can have more. If you add a field, it
  becomes a column, which is null in existing rows. Use --refill to fill it from bronze.
- Repeated batches: if the driver is killed, a micro-batch runs again and changes nothing. Bronze recognises its number.
  Silver, `rejected` and gold merge rows by their keys.

With --once, the query ends when it has read all available messages.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from gantrymq.spark import register, session_builder

INTERVAL = "1 minute"
#: Key of a flight, and all fields of a body that silver contains.
KEY = ("carrier", "flight", "origin", "scheduled")
FIELDS = "carrier STRING, flight INT, origin STRING, scheduled TIMESTAMP, dep_delay DOUBLE"
MESSAGE = ("topic", "brokerName", "queueId", "queueOffset")
BRONZE = "topic STRING, brokerName STRING, queueId INT, queueOffset BIGINT, storeTimestamp TIMESTAMP, body STRING"
GOLD = "day DATE, origin STRING, flights BIGINT, delayed BIGINT, mean_delay DOUBLE"
#: A departure delay of at least this many minutes counts as delayed.
DELAYED = 15


def read(spark: SparkSession, name_server: str, topic: str) -> DataFrame:
    """Returns the topic with the columns of BRONZE."""
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
    """Returns a function that writes a micro-batch to all tables."""

    def write(batch: DataFrame, number: int) -> None:
        # This id is stored in the checkpoint. A query with a new checkpoint therefore has another one.
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        assert query is not None
        batch.persist()
        bronze = batch.write.format("delta").mode("append").option("txnAppId", query).option("txnVersion", number)
        bronze.save(f"{lake}/bronze")
        refine(batch, lake)
        batch.unpersist()

    return write


def refine(messages: DataFrame, lake: str) -> None:
    """Updates the other tables from messages of bronze. Repeated messages change nothing."""
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
    """Merges rows into a table with one row per key, and adds missing columns to the table."""
    spark = rows.sparkSession
    # An empty write adds the columns. Delta Lake 4.2 on Spark 4.1 silently ignores them in MERGE WITH SCHEMA EVOLUTION.
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
