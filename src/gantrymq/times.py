"""Times in the public API. A duration is in seconds, or a timedelta. A point in time is in milliseconds, or a datetime.

The clients convert each time once, where the caller passes it. Decision record: docs/decisions/client-options.md.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import isfinite
from numbers import Real

from gantrymq.errors import ClientError, GantryError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
#: An earlier time (before March 1973) is rejected, because it is probably in seconds. Ms since the epoch.
_EARLIEST_MS = 100_000_000_000
#: Durations and times travel as signed 64-bit integers, in milliseconds.
MAX_MS = 2**63 - 1
_TOO_LONG = "{}: must be at most 2**63 - 1 ms"


def duration_s(name: str, value: object, error: type[GantryError] = ClientError) -> float:
    """Returns a duration in seconds. Raises `error` for the parameter `name` if it is not a duration."""
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, Real) and not isinstance(value, bool):
        try:
            seconds = float(value)
        except OverflowError:
            # The error omits the value, which can have more digits than Python prints.
            raise error(_TOO_LONG.format(name)) from None
    else:
        seconds = -1.0
    if not (seconds >= 0 and isfinite(seconds)):
        raise error(f"{name}={value!r}: must be a number of seconds or a timedelta, not negative")
    if seconds * 1000 > MAX_MS:
        raise error(_TOO_LONG.format(name))
    return seconds


def duration_ms(name: str, value: object, error: type[GantryError] = ClientError) -> int:
    """Returns a duration in milliseconds: 0, or at least 1. Raises `error` as `duration_s` does."""
    seconds = duration_s(name, value, error)
    return round(seconds * 1000) or (1 if seconds else 0)


def timestamp_ms(name: str, value: object, error: type[GantryError] = ClientError) -> int:
    """Returns a point in time in milliseconds since the epoch. Raises `error` for an invalid value.

    Milliseconds from 1 to the year 1973 are invalid, because they are probably in seconds.
    """
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise error(f"{name}={value!r}: has no time zone: use datetime.now(UTC) or astimezone()")
        return max(0, (value - _EPOCH) // _MS)
    if isinstance(value, int) and value > MAX_MS:
        raise error(f"{name}: must be at most 2**63 - 1 ms since the epoch")
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise error(f"{name}={value!r}: must be a datetime, or a whole number of milliseconds since the epoch")
    if 0 < value < _EARLIEST_MS:
        raise error(f"{name}={value!r} is in the 1970s: must be in milliseconds since the epoch, not in seconds")
    return value


def point_in_time(ms: int) -> datetime | int:
    """Converts milliseconds since the epoch for calls that reject integers before 1973. Negative times become 0."""
    return ms if ms >= _EARLIEST_MS else _EPOCH + max(0, ms) * _MS
