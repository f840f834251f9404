"""Takes changes into a Delta table by change_capture.py, some of them twice, and prints its rows as they are, as JSON.

spark-submit ... merge_driver.py NAME_SERVER TOPIC TABLE CHECKPOINT
"""

from __future__ import annotations

import json
import sys

from example_support import example

from gantrymq.spark import register, session_builder


def main(name_server: str, topic: str, table: str, checkpoint: str) -> None:
    capture = example("change_capture")
    spark = session_builder("merge").getOrCreate()
    register(spark)
    query = capture.start(capture.read(spark, name_server, topic), "delta", table, checkpoint, once=True)
    query.awaitTermination()
    rows = spark.read.format("delta").load(table)
    # Older changes than those that the table has, and some once more.
    older = rows.selectExpr("id", "name", "'nowhere' AS city", "'u' AS op", "version - 1 AS version").where("id < 1000")
    again = rows.where("id >= 1000").unionByName(older).collect()
    capture.merge(spark.createDataFrame(again, rows.schema), f"delta.`{table}`")
    found = capture.current(spark.read.format("delta").load(table)).collect()
    print(json.dumps([[row.id, row.name, row.city] for row in found]))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
