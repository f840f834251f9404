"""Client of a Spark Connect server: registers the data source, reads, writes and streams topics, prints the results.

    python connect_client.py sc://HOST:PORT NAME_SERVER SOURCE TARGET DIRECTORY

It runs without Java, and with pyspark-client instead of pyspark. DIRECTORY is on the server's machine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pandas as pd
from pyspark.sql import functions as F

from gantrymq.spark import register, session_builder


def main(remote: str, name_server: str, source: str, target: str, directory: str) -> None:
    spark = session_builder("connect-client", remote=remote).getOrCreate()
    register(spark)

    def read(topic: str) -> list[int]:
        reader = spark.read.format("rocketmq").option("nameServer", name_server).option("subscribe", topic)
        numbers = reader.load().select(F.col("body").cast("string").cast("long").alias("number"))
        return sorted(row.number for row in numbers.collect())

    def odd(topic: str) -> int:
        reader = spark.read.format("rocketmq").option("nameServer", name_server).option("subscribe", topic)
        return reader.load().where("tags = 'Odd' AND queueOffset >= 0").count()

    def by_functions(topic: str) -> dict[str, list[int]]:
        """Applies user functions on rows and on pandas data, which Spark sends to the server's workers."""
        reader = spark.read.format("rocketmq").option("nameServer", name_server).option("subscribe", topic)
        rows = reader.load()
        double = F.udf(lambda body: 2 * int(bytes(body)), "bigint")
        triple = F.pandas_udf(lambda bodies: bodies.map(lambda body: 3 * int(bytes(body))), "bigint")

        def quadruple(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
            for frame in frames:
                yield pd.DataFrame({"number": [4 * int(bytes(body)) for body in frame["body"]]})

        mapped = {
            "udf": rows.select(double("body").alias("number")),
            "pandas_udf": rows.select(triple("body").alias("number")),
            "mapInPandas": rows.select("body").mapInPandas(quadruple, "number bigint"),
        }
        return {name: sorted(row.number for row in frame.collect()) for name, frame in mapped.items()}

    def same(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        yield from frames

    found = {"read": read(source), "odd": odd(source), **by_functions(source)}
    query = (
        spark.readStream.format("rocketmq")
        .option("nameServer", name_server)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
        .select("body", "keys")
        .mapInPandas(same, "body binary, keys string")
        .writeStream.format("rocketmq")
        .option("nameServer", name_server)
        .option("topic", target)
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found["streamed"] = read(target)
    rows = spark.range(1000, 1010).selectExpr("CAST(id AS STRING) AS body")
    rows.write.format("rocketmq").option("nameServer", name_server).option("topic", target).mode("append").save()
    found["written"] = read(target)[-10:]
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
