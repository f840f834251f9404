"""Limits and measures the bytes that one connection sends (`ha/FlowMonitor`).

Java counts only the headers, so its limit has no effect. This class counts the bytes of the log. Java sends all bytes
of a second at the start of the second. This class spreads them over the second, so that other work is not delayed.
"""

from __future__ import annotations

#: Unused quota can be used later, but at most the quota of this time, in seconds.
_BURST_S = 0.1


class FlowControl:
    """The limit of one connection. Times are in seconds of a monotonic clock."""

    def __init__(self, now: float) -> None:
        self._allowed = 0.0
        self._allowed_at = now
        self._counted = 0
        self._counted_from = now
        self._last = 0

    def allowed(self, now: float, bytes_per_second: int) -> int:
        """Returns the number of bytes that may be sent now."""
        passed = now - self._allowed_at
        self._allowed_at = now
        self._allowed = min(self._allowed + passed * bytes_per_second, max(_BURST_S * bytes_per_second, 1.0))
        return max(int(self._allowed), 0)

    def sent(self, count: int, now: float) -> None:
        """Records bytes that were sent or received."""
        self._allowed -= count
        self._turn(now)
        self._counted += count

    def bytes_per_second(self, now: float) -> int:
        """Returns the bytes of the last whole second."""
        self._turn(now)
        return self._last

    def _turn(self, now: float) -> None:
        passed = now - self._counted_from
        if passed >= 1.0:
            self._last = self._counted if passed < 2.0 else 0
            self._counted = 0
            self._counted_from = now
