"""Prints the rows of a Delta table that change_capture.py made, as they are now, as JSON.

spark-submit ... merged_reader.py TABLE
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def main(table: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    rows = spark.read.format("delta").load(table).where("op != 'd'")
    print(json.dumps([[row.id, row.name, row.city] for row in rows.collect()]))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
