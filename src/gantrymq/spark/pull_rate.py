"""PullRate: how fast a task may pull from a broker, so that those who live by the broker don't notice a backfill.

Tasks don't know of each other. So with a rate one task reads all of a broker (`partitions`): its rate is the broker's.
"""

from __future__ import annotations

#: A pull asks for what the rate gives in so many seconds: the broker answers often and little.
PULL_S = 0.05
LEAST_PULL_BYTES = 16 * 1024


class PullRate:
    """At most so many bytes a second from each broker, after a first pull; times are seconds that only go up."""

    def __init__(self, bytes_per_second: int) -> None:
        self._rate = bytes_per_second
        #: When a broker may be asked again.
        self._free_at: dict[str, float] = {}

    @property
    def pull_bytes(self) -> int:
        """So many a pull asks for."""
        return max(LEAST_PULL_BYTES, int(self._rate * PULL_S))

    def took(self, broker_name: str, size: int, now: float) -> None:
        """The broker sent so many bytes."""
        self._free_at[broker_name] = max(now, self._free_at.get(broker_name, now)) + size / self._rate

    def pause_s(self, broker_name: str, now: float) -> float:
        """So long until the broker may be asked."""
        return max(0.0, self._free_at.get(broker_name, now) - now)
