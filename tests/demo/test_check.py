"""Tests that the comparison detects every kind of difference."""

from __future__ import annotations

import json

import pytest

from gantrymq.demo.check import compare
from gantrymq.demo.collect import Collected
from gantrymq.demo.flights import FIGURES, expected_figures, load_flights

pd = pytest.importorskip("pandas")


@pytest.fixture(scope="module")
def expected():
    return expected_figures(load_flights()[:2000])


def bodies(figures) -> list[bytes]:
    return [
        json.dumps(
            {"carrier": row.carrier, "airline": "x", "hour": row.hour.strftime("%Y-%m-%dT%H:%M:%S.000Z")}
            | {name: int(getattr(row, name)) for name in FIGURES}
        ).encode()
        for row in figures.reset_index().itertuples()
    ]


def test_equal_figures_agree_in_any_order(expected) -> None:
    comparison = compare("result", expected, expected.sample(frac=1, random_state=1))
    assert comparison.is_equal
    assert comparison.figures == len(expected) * len(FIGURES)


def test_one_minute_too_many_is_seen(expected) -> None:
    actual = expected.copy()
    actual.iloc[5, FIGURES.index("departure_delay")] += 1
    comparison = compare("result", expected, actual)
    assert comparison.wrong == 1
    assert comparison.example.startswith("departure_delay of ")


def test_a_missing_and_an_extra_hour_are_seen(expected) -> None:
    assert compare("result", expected, expected.iloc[1:]).wrong == len(FIGURES)
    assert compare("result", expected.iloc[1:], expected).wrong == len(FIGURES)


def test_messages_that_come_twice_count_once(expected) -> None:
    collected = Collected()
    for body in bodies(expected) + bodies(expected.head(10)):
        collected.add(body)
    assert (collected.messages, len(collected), collected.contradictions) == (len(expected) + 10, len(expected), 0)
    assert compare("topic", expected, collected.figures()).is_equal


def test_messages_that_contradict_are_counted(expected) -> None:
    collected = Collected()
    for body in bodies(expected.head(1)) + bodies(expected.head(1) + 1):
        collected.add(body)
    assert collected.contradictions == 1


def test_nothing_collected_is_all_wrong(expected) -> None:
    assert compare("topic", expected, Collected().figures()).wrong == len(expected) * len(FIGURES)
