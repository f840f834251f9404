"""The clocks: monotonic time, CPU time of the current thread, and wall-clock time."""

from __future__ import annotations

from time import localtime, mktime, monotonic, sleep, strftime, thread_time, time, time_ns

__all__ = ["localtime", "mktime", "monotonic", "now_ms", "sleep", "strftime", "thread_time", "time", "time_ns"]


def now_ms() -> int:
    """Returns the milliseconds since 1970."""
    return time_ns() // 1_000_000
