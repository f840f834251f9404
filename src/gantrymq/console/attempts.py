"""Attempts: how often somebody may try to log in."""

from __future__ import annotations

from collections import OrderedDict

#: So many failures in so many seconds, of one address and of one name.
MAX_FAILURES = 5
WITHIN_S = 60.0
#: Addresses and names that are remembered; those that failed longest ago are forgotten first.
MAX_KNOWN = 10_000


class Attempts:
    """Failures by who made them. Told the time."""

    def __init__(self) -> None:
        self._failures: OrderedDict[str, list[float]] = OrderedDict()

    def wait_s(self, who: str, now: float) -> float:
        """How long `who` has to wait before the next try; 0: it may."""
        recent = self._recent(who, now)
        return recent[0] + WITHIN_S - now if len(recent) >= MAX_FAILURES else 0.0

    def failed(self, who: str, now: float) -> None:
        recent = self._recent(who, now)
        self._failures[who] = [*recent[-(MAX_FAILURES - 1) :], now]
        self._failures.move_to_end(who)
        while len(self._failures) > MAX_KNOWN:
            self._failures.popitem(last=False)

    def succeeded(self, who: str) -> None:
        self._failures.pop(who, None)

    def _recent(self, who: str, now: float) -> list[float]:
        return [at for at in self._failures.get(who, ()) if now - at < WITHIN_S]
