"""A topic of changes into a table that has one row a key: the latest state, without what was deleted.

    python change_capture.py --name-server 127.0.0.1:9876 --topic customers --table lake/customers --checkpoint lake/.cp

Changes are JSON `{"op": "insert" | "update" | "delete", "id", "version", "row": {...}}`, as change data capture writes
them; `version` grows with each change of a key. The table is Parquet, a directory a version of it: each micro-batch
writes the next one whole, from the last one and the changes, and then points `current` to it. So a batch that is run
again changes nothing, readers see one version or the other, and changes may come in any order. That suits tables of
some millions of rows; for larger ones put a MERGE of Delta Lake or Iceberg into `apply`.
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

CHANGE = "op string, id string, version long, row map<string, string>"
CURRENT = "current"
#: How many versions of the table are kept, for those who are reading one.
KEPT = 3


def read(spark: SparkSession, name_server: str, topic: str) -> DataFrame:
    messages = (
        spark.readStream.format("rocketmq")
        .option("nameServer", name_server)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .schema("body binary")
        .load()
    )
    change = F.from_json(F.col("body").cast("string"), CHANGE)
    return messages.select(change.alias("change")).select("change.*").where("id IS NOT NULL AND version IS NOT NULL")


def merged(before: DataFrame | None, changes: DataFrame) -> DataFrame:
    """The latest change of each key. Deleted keys stay, marked: a change that comes late must not bring them back."""
    everything = changes if before is None else before.unionByName(changes)
    newest = Window.partitionBy("id").orderBy(F.desc("version"), F.desc("op"))
    return everything.withColumn("n", F.row_number().over(newest)).where("n = 1").drop("n")


def table(spark: SparkSession, directory: str) -> DataFrame:
    """The rows as they are now."""
    return spark.read.parquet(os.path.realpath(Path(directory) / CURRENT)).where("op != 'delete'").drop("op")


def apply(changes: DataFrame, batch: int, directory: Path) -> None:
    """Writes the version of the table that has this batch, and makes it the current one."""
    spark = changes.sparkSession
    directory.mkdir(parents=True, exist_ok=True)
    current, target = directory / CURRENT, directory / f"batch={batch}"
    # A batch that is run again begins with the version before it.
    older = sorted((path for path in directory.glob("batch=*") if number(path) < batch), key=number)
    before = spark.read.parquet(str(older[-1])) if older else None
    merged(before, changes).write.mode("overwrite").parquet(str(target))
    link = directory / ".next"
    link.unlink(missing_ok=True)
    link.symlink_to(target.name)
    link.replace(current)
    for path in older[: 1 - KEPT]:
        shutil.rmtree(path)


def number(path: Path) -> int:
    return int(path.name.removeprefix("batch="))


def start(changes: DataFrame, directory: str, checkpoint: str, *, once: bool = False) -> StreamingQuery:
    writer = changes.writeStream.option("checkpointLocation", checkpoint).foreachBatch(
        lambda batch, number: apply(batch, number, Path(directory))
    )
    return (writer.trigger(availableNow=True) if once else writer).start()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--table", required=True, help="a directory of a file system that driver and executors share")
    parser.add_argument("--checkpoint", required=True, help="where the query keeps its place")
    parser.add_argument("--once", action="store_true", help="end when all there was has been read")
    given = parser.parse_args()
    spark = session_builder("change-capture").getOrCreate()
    register(spark)
    changes = read(spark, given.name_server, given.topic)
    start(changes, given.table, given.checkpoint, once=given.once).awaitTermination()


if __name__ == "__main__":
    main()
