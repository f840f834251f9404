"""Failed logins by address and by name: an address that fails too often waits, a name is only delayed."""

from __future__ import annotations

from collections import OrderedDict

#: An address with so many failures in so many seconds can't log in until the oldest is older. A name with as many, from
#: any addresses, can: each login then takes DELAY_S longer. So nobody can lock another user out.
MAX_FAILURES = 5
WITHIN_S = 60.0
DELAY_S = 2.0
#: Addresses and names that are remembered; those that failed longest ago are forgotten first.
MAX_KNOWN = 10_000


class Attempts:
    """Times of failures by key, an address or a name. Told the time."""

    def __init__(self) -> None:
        self._failures: OrderedDict[str, list[float]] = OrderedDict()

    def wait_s(self, who: str, now: float) -> float:
        """How long until `who` has fewer than MAX_FAILURES; 0 if it has."""
        recent = self._recent(who, now)
        return recent[0] + WITHIN_S - now if len(recent) >= MAX_FAILURES else 0.0

    def failed(self, who: str, now: float) -> None:
        recent = self._recent(who, now)
        self._failures[who] = [*recent[-(MAX_FAILURES - 1) :], now]
        self._failures.move_to_end(who)
        while len(self._failures) > MAX_KNOWN:
            self._failures.popitem(last=False)

    def succeeded(self, who: str, counted_at: float) -> None:
        """The login that counted as a failure at `counted_at` wasn't one. Others still count."""
        failures = self._failures.get(who, [])
        if counted_at in failures:
            failures.remove(counted_at)
        if not failures:
            self._failures.pop(who, None)

    def _recent(self, who: str, now: float) -> list[float]:
        return [at for at in self._failures.get(who, ()) if now - at < WITHIN_S]
