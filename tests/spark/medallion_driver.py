"""Writes parts of a topic's flights into the tables of medallion.py, and prints the tables as JSON.

spark-submit ... medallion_driver.py NAME_SERVER TOPIC LAKE PARTS

PARTS is a JSON file with lists of bodies. Each list is sent and then read by one run of the stream. The last run has
the new field `dest`. Then bronze is read again.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from example_support import example

from gantrymq.client.producing.producer import Producer
from gantrymq.protocol.message import Message
from gantrymq.spark import register, session_builder


async def send(name_server: str, topic: str, bodies: list[str]) -> None:
    async with Producer(name_server, "medallion") as producer:
        await producer.send_batch([Message(topic, body.encode()) for body in bodies], timeout=10)


def main(name_server: str, topic: str, lake: str, parts: str) -> None:
    medallion = example("medallion")
    spark = session_builder("medallion").config("spark.sql.session.timeZone", "UTC").getOrCreate()
    register(spark)

    def rows(name: str, *columns: str) -> list[list[object]]:
        found = spark.read.format("delta").load(f"{lake}/{name}").selectExpr(*columns).collect()
        return [list(row) for row in found]

    fields = medallion.FIELDS
    shown = []
    bodies = json.loads(Path(parts).read_text())
    for number, some in enumerate(bodies):
        asyncio.run(send(name_server, topic, some))
        medallion.FIELDS = fields + (", dest STRING" if number == len(bodies) - 1 else "")
        medallion.start(medallion.read(spark, name_server, topic), lake, once=True).awaitTermination()
        shown.append(rows("gold", "string(day)", "origin", "flights", "delayed", "mean_delay"))
    without_dest = rows("silver", "dest").count([None])
    bronze = spark.read.format("delta").load(f"{lake}/bronze")
    # Reads bronze again, as after a crash, and to fill the new field.
    medallion.refine(bronze, lake)
    print(
        json.dumps(
            {
                "gold": shown,
                "gold after the refill": rows("gold", "string(day)", "origin", "flights", "delayed", "mean_delay"),
                "bronze": bronze.count(),
                "rejected": rows("rejected", "body"),
                "without dest": without_dest,
                "silver": rows("silver", "carrier", "flight", "origin", "string(day)", "dep_delay", "dest"),
            }
        )
    )
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
