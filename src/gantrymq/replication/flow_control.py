"""FlowControl: how many bytes a connection may send now, and how many it sent (`ha/FlowMonitor`).

Java counts the headers alone, so that its limit limits nothing; here the bytes of the log count. Java lets a second's
bytes go at its beginning; here they are spread, so that others aren't held up meanwhile.
"""

from __future__ import annotations

#: What wasn't sent may be made up for by so many seconds' bytes.
_BURST_S = 0.1


class FlowControl:
    """Of one connection. Times are seconds of a clock that only goes on."""

    def __init__(self, now: float) -> None:
        self._allowed = 0.0
        self._allowed_at = now
        self._counted = 0
        self._counted_from = now
        self._last = 0

    def allowed(self, now: float, bytes_per_second: int) -> int:
        """So many bytes may be sent at once."""
        passed = now - self._allowed_at
        self._allowed_at = now
        self._allowed = min(self._allowed + passed * bytes_per_second, max(_BURST_S * bytes_per_second, 1.0))
        return max(int(self._allowed), 0)

    def sent(self, count: int, now: float) -> None:
        """So many bytes were sent, or received."""
        self._allowed -= count
        self._turn(now)
        self._counted += count

    def bytes_per_second(self, now: float) -> int:
        """As many as went in the last whole second."""
        self._turn(now)
        return self._last

    def _turn(self, now: float) -> None:
        passed = now - self._counted_from
        if passed >= 1.0:
            self._last = self._counted if passed < 2.0 else 0
            self._counted = 0
            self._counted_from = now
