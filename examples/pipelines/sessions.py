"""Groups events into visits: a visit ends when its user is inactive for half an hour.

    pip install "./[spark,protobuf]"
    python sessions.py --topic clicks --result visits --checkpoint visits/.checkpoint

Events are JSON `{"who", "time"}`. The program sends one message per finished visit, with `who` as its key and the body
`{"who", "first", "last", "events"}`.

An event can arrive up to ten minutes late. It opens a visit, extends one, or joins two. A timer ends the visit when no
more events can belong to it. The result does not depend on the order of the events.

The program uses Spark's transformWithState. Its state is in RocksDB and in the checkpoint.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.query import StreamingQuery

from gantrymq.spark import register, session_builder

PAUSE_MS = 30 * 60 * 1000
LATENESS = "10 minutes"
VISIT = "who STRING, first TIMESTAMP, last TIMESTAMP, events BIGINT"
STATE_STORE = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

#: An open visit: times of its first and last event, in ms since the epoch, and number of its events.
Open = tuple[int, int, int]


def joined(visits: list[Open]) -> list[Open]:
    """Joins visits with a pause of at most PAUSE_MS between them. Returns them in order of time."""
    found: list[Open] = []
    for first, last, events in sorted(visits):
        if found and first - found[-1][1] <= PAUSE_MS:
            before = found.pop()
            found.append((before[0], max(before[1], last), before[2] + events))
        else:
            found.append((first, last, events))
    return found


class Visits(StatefulProcessor):
    """Keeps the open visits of one user (`who`)."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._open = handle.getListState("open", "first BIGINT, last BIGINT, events BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        times = [int(time.timestamp() * 1000) for part in rows for time in part["time"]]
        visits = joined([*map(tuple, self._open.get()), *((time, time, 1) for time in times)])
        self._open.put(visits)
        for _, last, _ in visits:
            # Timers of an earlier end of a visit stay registered. They find no visit to end.
            self._handle.registerTimer(last + PAUSE_MS + 1)
        yield from ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        now = expiredTimerInfo.getExpiryTimeInMs()
        visits = list(map(tuple, self._open.get()))
        if still_open := [visit for visit in visits if visit[1] + PAUSE_MS >= now]:
            self._open.put(still_open)
        else:
            self._open.clear()
        over = [visit for visit in visits if visit[1] + PAUSE_MS < now]
        if over:
            frame = pd.DataFrame(over, columns=["first", "last", "events"])
            frame.insert(0, "who", key[0])
            for name in ("first", "last"):
                frame[name] = pd.to_datetime(frame[name], unit="ms", utc=True).dt.tz_localize(None)
            yield frame

    def close(self) -> None:
        pass


def read(spark: SparkSession, name_server: str, topic: str) -> DataFrame:
    messages = (
        spark.readStream.format("rocketmq")
        .option("nameServer", name_server)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("bodyFormat", "json")
        .option("bodySchema", "who STRING NOT NULL, time TIMESTAMP NOT NULL")
        .load()
    )
    return messages.select("value.*")


def visits_of(events: DataFrame) -> DataFrame:
    by_who = events.withWatermark("time", LATENESS).groupBy("who")
    return by_who.transformWithStateInPandas(
        statefulProcessor=Visits(), outputStructType=VISIT, outputMode="Append", timeMode="EventTime"
    )


def start(visits: DataFrame, name_server: str, topic: str, checkpoint: str, *, once: bool = False) -> StreamingQuery:
    writer = (
        visits.selectExpr("who AS keys", "who AS shardingKey", "struct(*) AS value")
        .writeStream.format("rocketmq")
        .option("nameServer", name_server)
        .option("topic", topic)
        .option("bodyFormat", "json")
        .option("checkpointLocation", checkpoint)
    )
    return (writer.trigger(availableNow=True) if once else writer).start()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--result", required=True, help="the topic of visits")
    parser.add_argument("--checkpoint", required=True, help="where the query keeps its place and its state")
    given = parser.parse_args()
    builder = session_builder("sessions").config(STATE_STORE, ROCKSDB)
    # pandas returns times without a time zone, so Spark must use UTC.
    spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    register(spark)
    visits = visits_of(read(spark, given.name_server, given.topic))
    start(visits, given.name_server, given.result, given.checkpoint).awaitTermination()


if __name__ == "__main__":
    main()
