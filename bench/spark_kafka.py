"""Kafka's rows in Spark, for `spark.py`: written and read by Spark's own connector."""

from __future__ import annotations

import os
from pathlib import Path

from kafka_broker import JARS
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

#: Jars that the connector needs besides Spark itself.
_CONNECTOR = ("spark-sql-kafka-*", "spark-token-provider-kafka-*", "kafka-clients-*", "commons-pool2-*")
_SEND = {"kafka.linger.ms": "50", "kafka.batch.size": "262144"}


def connector_jars() -> list[Path]:
    """Returns the jars of the connector, which `kafka_broker.build` has downloaded."""
    return [path for pattern in _CONNECTOR for path in JARS.glob(pattern)]


def fill_kafka(spark: SparkSession, address: str, topic: str, rows: int, size: int) -> None:
    """Sends `rows` messages of `size` bytes, with the same keys as those on the other broker."""
    key = F.concat(F.lit("k"), F.col("id").cast("string"))
    messages = spark.range(rows).select(key.alias("key"), F.lit(os.urandom(size)).alias("value"))
    to = {"kafka.bootstrap.servers": address, "topic": topic}
    messages.write.format("kafka").options(**to, **_SEND).save()


def read_kafka(spark: SparkSession, address: str, topic: str) -> DataFrame:
    return spark.read.format("kafka").option("kafka.bootstrap.servers", address).option("subscribe", topic).load()
