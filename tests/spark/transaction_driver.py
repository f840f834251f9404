"""A Spark driver in its own process: copies a topic into another one in one transaction.

    python transaction_driver.py NAME_SERVER SOURCE TARGET DIRECTORY

DIRECTORY stores the checkpoint. A restart with the same one continues.
"""

from __future__ import annotations

import sys

from gantrymq.spark import register, session_builder


def main(name_server: str, source: str, target: str, directory: str) -> None:
    spark = (
        session_builder("transaction-driver")
        .master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    query = (
        spark.readStream.format("rocketmq")
        .options(nameServer=name_server, subscribe=source, startingOffsets="earliest")
        .load()
        .select("body", "keys")
        .writeStream.format("rocketmq")
        .options(nameServer=name_server, topic=target, transactional="true", checkpointLocation=directory)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
