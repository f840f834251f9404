"""The clocks: seconds that only go on, those in which this thread had a processor, and the time of day."""

from __future__ import annotations

from time import localtime, mktime, monotonic, sleep, strftime, thread_time, time, time_ns

__all__ = ["localtime", "mktime", "monotonic", "now_ms", "sleep", "strftime", "thread_time", "time", "time_ns"]


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time_ns() // 1_000_000
