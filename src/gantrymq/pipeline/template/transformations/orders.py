"""The tables and the result topic of the pipeline. A function for each one returns its rows as a DataFrame."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from gantrymq.spark import register

spark = SparkSession.active()
register(spark)

#: The address of the cluster. With `gantry pipeline run --context NAME`, also the context that has the keys.
CLUSTER = {"nameServer": spark.conf.get("pipeline.nameServer") or "127.0.0.1:9876"}
if context := spark.conf.get("pipeline.context", None):
    CLUSTER["context"] = context
TOPIC = spark.conf.get("pipeline.topic") or "orders"
RESULT_TOPIC = spark.conf.get("pipeline.resultTopic") or "large-orders"

ORDER = "id string, customer string, item string, quantity int, price_cents long, time timestamp"
#: The least total of a large order, in cents.
LARGE_CENTS = 10_000


@dp.table(comment="The messages as they came.")
def bronze_orders() -> DataFrame:
    return (
        spark.readStream.format("rocketmq")
        .options(**CLUSTER)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .load()
    )


@dp.table(comment="The orders among them.")
def silver_orders() -> DataFrame:
    messages = spark.readStream.table("bronze_orders")
    orders = messages.select(F.from_json(F.col("body").cast("string"), ORDER).alias("order"))
    total = F.col("order.quantity") * F.col("order.price_cents")
    return orders.where("order.id IS NOT NULL AND order.quantity > 0").select("order.*", total.alias("total_cents"))


@dp.materialized_view(comment="What was sold, by day and item.")
def gold_sales() -> DataFrame:
    # Grouped by id, because an order may have been sent twice.
    orders = spark.read.table("silver_orders").groupBy("id").agg(F.any_value(F.struct("*")).alias("order"))
    return (
        orders.select("order.*")
        .groupBy(F.to_date("time").alias("day"), "item")
        .agg(F.count("*").alias("orders"), F.sum("quantity").alias("quantity"), F.sum("total_cents").alias("cents"))
    )


dp.create_sink("large_orders", "rocketmq", CLUSTER | {"topic": RESULT_TOPIC})


@dp.append_flow(target="large_orders")
def large_orders_to_topic() -> DataFrame:
    large = spark.readStream.table("silver_orders").where(F.col("total_cents") >= LARGE_CENTS)
    return large.select(
        F.col("id").alias("keys"),
        F.col("customer").alias("shardingKey"),
        F.to_json(F.struct("id", "customer", "item", "total_cents", "time")).alias("body"),
    )
