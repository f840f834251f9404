"""Timestamps and durations of protobuf as milliseconds, and back."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp


def timestamp_ms(timestamp: Timestamp) -> int:
    """Returns the milliseconds since the epoch; negative before it."""
    return timestamp.seconds * 1000 + timestamp.nanos // 1_000_000


def duration_ms(duration: Duration) -> int:
    return duration.seconds * 1000 + duration.nanos // 1_000_000


def to_timestamp(ms: int) -> Timestamp:
    return Timestamp(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)


def to_duration(ms: int) -> Duration:
    return Duration(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)
