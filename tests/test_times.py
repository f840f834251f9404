"""Durations and points in time, as callers of the public API pass them."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction

import pytest

from gantrymq.errors import ClientError, ConfigError, IllegalMessage
from gantrymq.times import MAX_MS, duration_ms, duration_s, point_in_time, timestamp_ms


@pytest.mark.parametrize(
    ("value", "seconds", "milliseconds"),
    [
        (0, 0.0, 0),
        (2.5, 2.5, 2500),
        (3, 3.0, 3000),
        (0.1, 0.1, 100),
        (0.0001, 0.0001, 1),
        (timedelta(minutes=2), 120.0, 120_000),
        (timedelta(microseconds=1), 0.000001, 1),
        (Fraction(1, 2), 0.5, 500),
    ],
    ids=str,
)
def test_durations(value: object, seconds: float, milliseconds: int) -> None:
    assert duration_s("timeout", value) == seconds
    assert duration_ms("timeout", value) == milliseconds


@pytest.mark.parametrize(
    "value", [-1, -0.001, timedelta(seconds=-1), math.nan, math.inf, -math.inf, True, "3", None, Decimal(3)], ids=str
)
def test_no_durations(value: object) -> None:
    why = re.escape(f"timeout={value!r}: must be a number of seconds or a timedelta, not negative")
    with pytest.raises(ClientError, match=why):
        duration_s("timeout", value)
    with pytest.raises(IllegalMessage, match=why):
        duration_ms("timeout", value, IllegalMessage)


@pytest.mark.parametrize(
    "value", [10**400, 10**5000, 1e307, Fraction(10**400), 9.3e15], ids=lambda one: type(one).__name__
)
def test_durations_that_are_too_long(value: object) -> None:
    for convert in (duration_s, duration_ms):
        with pytest.raises(ClientError, match=re.escape("timeout: must be at most 2**63 - 1 ms")):
            convert("timeout", value)


def test_timestamps() -> None:
    east = timezone(timedelta(hours=8))
    assert timestamp_ms("begin", 0) == 0
    assert timestamp_ms("begin", 1_700_000_000_123) == 1_700_000_000_123
    assert timestamp_ms("begin", datetime(1970, 1, 1, 8, 0, 1, 234_567, tzinfo=east)) == 1234
    assert timestamp_ms("begin", datetime(1969, 1, 1, tzinfo=UTC)) == 0
    assert timestamp_ms("begin", MAX_MS) == MAX_MS


@pytest.mark.parametrize("ms", [0, 1, 99_999_999_999, 1_700_000_000_123, MAX_MS])
def test_points_in_time(ms: int) -> None:
    assert timestamp_ms("begin", point_in_time(ms)) == ms


def test_a_point_in_time_before_the_epoch() -> None:
    assert timestamp_ms("begin", point_in_time(-28_800_000)) == 0


class _NoOffset(tzinfo):
    def utcoffset(self, dt: datetime | None) -> None:
        return None


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (1_700_000_000, "begin=1700000000 is in the 1970s: must be in milliseconds since the epoch, not in seconds"),
        (-1, "begin=-1: must be a datetime, or a whole number of milliseconds since the epoch"),
        (1_700_000_000_000.5, "must be a datetime, or a whole number"),
        (True, "begin=True: must be a datetime"),
        (datetime(2030, 1, 1), "has no time zone: use datetime.now"),
        (datetime(2030, 1, 1, tzinfo=_NoOffset()), "has no time zone: use datetime.now"),
        (MAX_MS + 1, re.escape("begin: must be at most 2**63 - 1 ms since the epoch")),
    ],
    ids=str,
)
def test_no_timestamps(value: object, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        timestamp_ms("begin", value, ConfigError)
