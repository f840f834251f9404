"""Prints the row count, distinct count, minimum and maximum of a table of numbered messages.

spark-submit ... lake_reader.py FORMAT TABLE
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F


def main(lake: str, table: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    rows = spark.read.format("delta").load(table) if lake == "delta" else spark.table(table)
    number = F.col("body").cast("string").cast("long")
    found = rows.select(F.count(number), F.count_distinct(number), F.min(number), F.max(number)).first()
    assert found is not None
    print(*found)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
