"""How many messages came and went lately, from what the tables say every ten seconds (`BrokerStatsManager`).

Nothing is counted per message: a queue's last offset says how many messages its topic ever got, `deliveries` how many
went out to a group. Plain tables, told the time in seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

#: How often `sample` is to be called, s.
SAMPLE_S = 10.0

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
#: How fine each span slides, s.
_STEPS = {MINUTE: 10.0, HOUR: 600.0, DAY: 3600.0}


class Recent(NamedTuple):
    """Messages in a span of time and their rate a second."""

    sum: int
    tps: float


class _Span:
    """Messages by key over the last `length` seconds; only keys that had some cost anything."""

    def __init__(self, length: float, now: float) -> None:
        self._step = _STEPS[length]
        self._length = length
        self._start = now
        #: (when it began, messages by key), the last one is being filled.
        self._buckets: deque[tuple[float, dict[str, int]]] = deque([(now, {})])

    def add(self, counts: dict[str, int], now: float) -> None:
        bucket = self._buckets[-1][1]
        for key, count in counts.items():
            bucket[key] = bucket.get(key, 0) + count
        if now - self._buckets[-1][0] >= self._step:
            self._buckets.append((now, {}))
        while len(self._buckets) > 1 and self._buckets[1][0] <= now - self._length:
            self._buckets.popleft()

    def recent(self, key: str, now: float) -> Recent:
        total = sum(bucket.get(key, 0) for _, bucket in self._buckets)
        return Recent(total, total / max(now - self._buckets[0][0], 1.0))


class Traffic:
    """One direction: messages by key, of which `sample` is told the totals ever."""

    def __init__(self, totals: Iterable[tuple[str, int]], now: float) -> None:
        self._totals = dict(totals)
        self._spans = {length: _Span(length, now) for length in _STEPS}
        #: All messages since this began, by time; ten minutes of it.
        self._sums: deque[tuple[float, int]] = deque([(now, 0)])
        self.total = 0

    def sample(self, totals: Iterable[tuple[str, int]], now: float) -> None:
        """Takes in the totals of now; a key seen for the first time had 0 before.

        A total that fell, because the topic was deleted, counts as nothing.
        """
        before = self._totals
        self._totals = dict(totals)
        counts = {key: total - old for key, total in self._totals.items() if total > (old := before.get(key, 0))}
        self.total += sum(counts.values())
        self._sums.append((now, self.total))
        while len(self._sums) > 1 and self._sums[1][0] <= now - 600:
            self._sums.popleft()
        for span in self._spans.values():
            span.add(counts, now)

    def __contains__(self, key: str) -> bool:
        return key in self._totals

    def recent(self, key: str, length: float, now: float) -> Recent:
        """Of a topic, or "topic@group", in the last MINUTE, HOUR or DAY."""
        return self._spans[length].recent(key, now)

    def tps(self, seconds: float, now: float) -> float:
        """All keys' messages a second over the last `seconds`, up to 600, or as long as this has been sampled."""
        since, before = next(
            ((time, total) for time, total in reversed(self._sums) if time <= now - seconds), self._sums[0]
        )
        return (self.total - before) / max(now - since, 1.0)


class Totals:
    """Totals at the last two midnights (`BrokerStats`); before the first one all are 0."""

    def __init__(self, day: int) -> None:
        self._day = day
        self.yesterday_morning = 0
        self.today_morning = 0

    def update(self, day: int, total: int) -> None:
        """`day` is any number that differs from one day to the next."""
        if day != self._day:
            self._day = day
            self.yesterday_morning = self.today_morning
            self.today_morning = total
