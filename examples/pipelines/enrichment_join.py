"""Joins two topics into a third one: each payment with its order, if the payment is made within an hour.

    python enrichment_join.py --name-server 127.0.0.1:9876 --checkpoint join/.checkpoint

Orders are JSON `{"order_id", "customer", "time"}`, payments are JSON `{"order_id", "cents", "time"}`.

The watermarks set how late a message can arrive. After that time, no more payments can match an order, and Spark
removes the order from its state. If the query restarts in the middle of a batch, a result can be written twice.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from gantrymq.spark import register, session_builder

ORDER = "order_id STRING NOT NULL, customer STRING, time TIMESTAMP NOT NULL"
PAYMENT = "order_id STRING NOT NULL, cents BIGINT, time TIMESTAMP NOT NULL"
LATENESS = "10 minutes"


def read(spark: SparkSession, name_server: str, topic: str, schema: str) -> DataFrame:
    messages = (
        spark.readStream.format("rocketmq")
        .option("nameServer", name_server)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("bodyFormat", "json")
        .option("bodySchema", schema)
        .option("corruptBodies", "null")
        .load()
    )
    # An invalid body has no key to join by. dead_letter_repair.py shows another way to handle such messages.
    return messages.where("bodyError IS NULL").select("value.*")


def join(orders: DataFrame, payments: DataFrame) -> DataFrame:
    ordered = orders.withColumnRenamed("time", "ordered_at").withWatermark("ordered_at", LATENESS).alias("o")
    paid = payments.withColumnRenamed("time", "paid_at").withWatermark("paid_at", LATENESS).alias("p")
    in_time = "paid_at >= ordered_at AND paid_at <= ordered_at + INTERVAL 1 HOUR"
    return ordered.join(paid, F.expr(f"o.order_id = p.order_id AND {in_time}")).select(
        "o.order_id", "customer", "cents", "ordered_at", "paid_at"
    )


def start(joined: DataFrame, name_server: str, topic: str, checkpoint: str, *, once: bool = False) -> StreamingQuery:
    messages = joined.select(
        F.col("order_id").alias("keys"),
        # Keeps the messages of one customer in order.
        F.col("customer").alias("shardingKey"),
        F.struct(*joined.columns).alias("value"),
    )
    writer = (
        messages.writeStream.format("rocketmq")
        .option("nameServer", name_server)
        .option("topic", topic)
        .option("bodyFormat", "json")
        .option("checkpointLocation", checkpoint)
    )
    return (writer.trigger(availableNow=True) if once else writer).start()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    parser.add_argument("--orders", default="orders")
    parser.add_argument("--payments", default="payments")
    parser.add_argument("--result", default="paid-orders")
    parser.add_argument("--checkpoint", required=True, help="where the query keeps its place and its state")
    given = parser.parse_args()
    spark = session_builder("enrichment-join").config("spark.sql.session.timeZone", "UTC").getOrCreate()
    register(spark)
    orders = read(spark, given.name_server, given.orders, ORDER)
    payments = read(spark, given.name_server, given.payments, PAYMENT)
    start(join(orders, payments), given.name_server, given.result, given.checkpoint).awaitTermination()


if __name__ == "__main__":
    main()
