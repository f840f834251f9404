"""Applies the change events of a database (Debezium) to a table with one row per key: its latest state.

    python change_capture.py --topic customers --table lake/customers --checkpoint lake/.cp
    spark-submit ... change_capture.py --topic customers --format delta --table /lake/customers --checkpoint /lake/.cp
    spark-submit ... change_capture.py --topic customers --format iceberg --table lake.customers --checkpoint /lake/.cp

Input: Debezium's JSON without its schema (`schemas.enable` false): `{"op": "r" | "c" | "u" | "d", "before", "after",
"source": {"lsn"}, ...}`. `lsn` is the position in PostgreSQL's log and grows with each change. Changes can therefore
arrive in any order and more than once.

- A deleted row stays in the table with a mark, so that an older change that arrives late does not restore it. The
  function `current` leaves such rows out.
- TRUNCATE is not supported. A body that is not a change event ends the query.

Formats:

- `delta` and `iceberg` apply the changes with MERGE. docs/spark/lakes.md has their settings.
- `parquet` needs no additional package. Each version of the table is a directory. A micro-batch writes the complete
  next version, and then the link `current` points to it. Readers see either the old or the new version. This suits
  tables of some millions of rows, in a directory with links: a local one or NFS, but not S3.

If a batch runs again, no row changes.
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from gantrymq.spark import register, session_builder

#: Columns of the database table, and its primary key.
ROW = "id BIGINT NOT NULL, name STRING, city STRING"
KEY = "id"
CHANGE = (
    f"op STRING NOT NULL, before STRUCT<{ROW}>, after STRUCT<{ROW}>, source STRUCT<lsn BIGINT NOT NULL> NOT NULL, "
    "ts_ms BIGINT"
)
CURRENT = "current"
#: Number of versions of a Parquet table to keep, because other programs can still read an old one.
KEPT = 3


def read(spark: SparkSession, name_server: str, topic: str) -> DataFrame:
    """Returns the changes with the columns of ROW, `op` and `version`."""
    messages = (
        spark.readStream.format("rocketmq")
        .option("nameServer", name_server)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("bodyFormat", "json")
        .option("bodySchema", CHANGE)
        .load()
    )
    # A deletion has its row in `before` and no `after`.
    row = F.coalesce("value.after", "value.before").alias("row")
    changes = messages.where("value.op IN ('r', 'c', 'u', 'd')")
    return changes.select(row, "value.op", F.col("value.source.lsn").alias("version")).select("row.*", "op", "version")


def newest(changes: DataFrame) -> DataFrame:
    """Returns the latest change of each key."""
    order = Window.partitionBy(KEY).orderBy(F.desc("version"))
    return changes.withColumn("n", F.row_number().over(order)).where("n = 1").drop("n")


def current(rows: DataFrame) -> DataFrame:
    """Returns the current rows, without deleted ones."""
    return rows.where("op != 'd'").drop("op", "version")


def table(spark: SparkSession, directory: str) -> DataFrame:
    """Returns all rows of a Parquet table, including deleted ones."""
    return spark.read.parquet(os.path.realpath(Path(directory) / CURRENT))


def rewrite(changes: DataFrame, directory: Path) -> None:
    """Writes a version of a Parquet table that includes these changes, and makes it the current one."""
    directory.mkdir(parents=True, exist_ok=True)
    link, number, everything = directory / CURRENT, 0, changes
    if link.exists():
        number = version(link.resolve()) + 1
        everything = changes.unionByName(table(changes.sparkSession, str(directory)))
    target = directory / f"version={number}"
    # A killed run can leave files in this directory, and no reader uses them.
    newest(everything).write.mode("overwrite").parquet(str(target))
    following = directory / ".next"
    following.unlink(missing_ok=True)
    following.symlink_to(target.name)
    following.replace(link)
    for path in directory.glob("version=*"):
        if version(path) <= number - KEPT:
            shutil.rmtree(path)


def version(path: Path) -> int:
    return int(path.name.rpartition("=")[2])


def create(spark: SparkSession, lake: str, name: str) -> None:
    spark.sql(f"CREATE TABLE IF NOT EXISTS {name} ({ROW}, op STRING, version BIGINT) USING {lake}")


def merge(changes: DataFrame, name: str) -> None:
    """Merges changes into a table of Delta Lake or Iceberg. A repeated batch changes nothing."""
    newest(changes).createOrReplaceTempView("changes")
    changes.sparkSession.sql(
        f"MERGE INTO {name} old USING changes new ON old.{KEY} = new.{KEY} "
        "WHEN MATCHED AND new.version > old.version THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )


def start(changes: DataFrame, lake: str, where: str, checkpoint: str, *, once: bool = False) -> StreamingQuery:
    name = where
    if lake == "delta":
        name = f"delta.`{where if '://' in where else os.path.abspath(where)}`"
    if lake != "parquet":
        create(changes.sparkSession, lake, name)

    def apply(batch: DataFrame, _: int) -> None:
        if lake == "parquet":
            rewrite(batch, Path(where))
        else:
            merge(batch, name)

    writer = changes.writeStream.option("checkpointLocation", checkpoint).foreachBatch(apply)
    return (writer.trigger(availableNow=True) if once else writer).start()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--format", default="parquet", choices=("parquet", "delta", "iceberg"))
    parser.add_argument("--table", required=True, help="a directory that driver and executors share; CATALOG.TABLE")
    parser.add_argument("--checkpoint", required=True, help="where the query keeps its place")
    parser.add_argument("--once", action="store_true", help="end when all there was has been read")
    given = parser.parse_args()
    spark = session_builder("change-capture").getOrCreate()
    register(spark)
    changes = read(spark, given.name_server, given.topic)
    start(changes, given.format, given.table, given.checkpoint, once=given.once).awaitTermination()


if __name__ == "__main__":
    main()
