"""Merges changes into a lake's table with change_capture.py, some of them twice, and prints the rows as JSON.

spark-submit ... merge_driver.py FORMAT NAME_SERVER TOPIC TABLE CHECKPOINT
"""

from __future__ import annotations

import json
import sys

from example_support import example

from gantrymq.spark import register, session_builder


def main(lake: str, name_server: str, topic: str, table: str, checkpoint: str) -> None:
    capture = example("change_capture")
    spark = session_builder("merge").getOrCreate()
    register(spark)
    query = capture.start(capture.read(spark, name_server, topic), lake, table, checkpoint, once=True)
    query.awaitTermination()
    name = f"delta.`{table}`" if lake == "delta" else table
    # Iceberg's catalog caches a session's view of a table for 30 s, and the query has its own session.
    spark.sql(f"REFRESH TABLE {name}")
    rows = spark.table(name)
    # Older changes than those in the table, and some changes a second time.
    older = rows.selectExpr("id", "name", "'nowhere' AS city", "'u' AS op", "version - 1 AS version").where("id < 1000")
    again = rows.where("id >= 1000").unionByName(older).collect()
    capture.merge(spark.createDataFrame(again, rows.schema), name)
    found = capture.current(spark.table(name)).collect()
    print(json.dumps([[row.id, row.name, row.city] for row in found]))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
