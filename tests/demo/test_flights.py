"""Tests of the demo's source data and its expected figures."""

from __future__ import annotations

import json

import pytest

from gantrymq.demo.flights import FIGURES, encode_flights, expected_figures, load_airlines, load_flights

pd = pytest.importorskip("pandas")


@pytest.fixture(scope="module")
def flights():
    return load_flights()


def test_the_year_is_whole(flights) -> None:
    assert len(flights) == 336_776
    assert flights["id"].tolist() == list(range(len(flights)))
    assert flights["hour"].is_monotonic_increasing
    assert str(flights["hour"].min()) == "2013-01-01 10:00:00+00:00"


def test_figures_add_up_to_the_table(flights) -> None:
    figures = expected_figures(flights)
    assert set(figures.dtypes.astype(str)) == {"int64"}
    assert figures["flights"].sum() == len(flights)
    # From the data set: 8,255 flights did not depart, 9,430 have no arrival delay.
    assert figures["departed"].sum() == len(flights) - 8_255
    assert figures["arrived"].sum() == len(flights) - 9_430
    assert figures["departure_delay"].sum() == flights["dep_delay"].sum()
    # One group, counted independently.
    hour = pd.Timestamp("2013-01-01T10:00Z")
    some = flights[(flights["carrier"] == "UA") & (flights["hour"] == hour)]
    assert figures.loc[("UA", hour)].tolist() == [
        len(some),
        int(some["dep_delay"].notna().sum()),
        int(some["dep_delay"].sum()),
        int(some["arr_delay"].notna().sum()),
        int(some["arr_delay"].sum()),
    ]
    assert list(figures.columns) == list(FIGURES)


def test_every_carrier_has_a_name(flights) -> None:
    assert set(flights["carrier"]) == set(load_airlines()["carrier"])


def test_bodies_are_json_with_null_for_what_did_not_happen(flights) -> None:
    cancelled = flights[flights["dep_delay"].isna()].head(3)
    departed = flights[flights["arr_delay"].notna()].head(3)
    for tailnum, carrier, body in encode_flights(pd.concat([cancelled, departed])):
        flight = json.loads(body)
        row = flights.loc[flight["id"]]
        assert (tailnum, carrier) == (row["tailnum"], row["carrier"]) == (flight["tailnum"], flight["carrier"])
        assert pd.Timestamp(flight["hour"]) == row["hour"]
        for name in ("dep_delay", "arr_delay"):
            assert flight[name] == (None if pd.isna(row[name]) else row[name])
