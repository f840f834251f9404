"""Computes message rates from the totals of events, which are sampled every 10 s (`BrokerStatsManager`).

No message is counted individually: the last offset of a queue gives the number of messages stored. Other events are
counted by `BrokerStats`. The classes do no I/O and get the time in seconds as an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Set
from typing import NamedTuple

#: Interval for calls of `sample`, in seconds.
SAMPLE_S = 10.0

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
#: Resolution of each time span, in seconds.
_STEPS = {MINUTE: 10.0, HOUR: 600.0, DAY: 3600.0}


class Recent(NamedTuple):
    """Number of events in a time span, and their rate per second."""

    sum: int
    tps: float


class _Span:
    """Counts events by key over the last `length` seconds. Only keys with events use memory."""

    def __init__(self, length: float, now: float) -> None:
        self._step = _STEPS[length]
        self._length = length
        self._start = now
        #: Start time and events by key of each bucket. New events are added to the last one.
        self._buckets: deque[tuple[float, dict[str, int]]] = deque([(now, {})])

    def add(self, counts: Mapping[str, int]) -> None:
        bucket = self._buckets[-1][1]
        for key, count in counts.items():
            bucket[key] = bucket.get(key, 0) + count

    def forget(self, keys: Iterable[str]) -> None:
        for key in keys:
            for _, bucket in self._buckets:
                bucket.pop(key, None)

    def advance(self, now: float) -> None:
        if now - self._buckets[-1][0] >= self._step:
            self._buckets.append((now, {}))
        while len(self._buckets) > 1 and self._buckets[1][0] <= now - self._length:
            self._buckets.popleft()

    def recent(self, key: str, now: float) -> Recent:
        total = sum(bucket.get(key, 0) for _, bucket in self._buckets)
        return Recent(total, total / max(now - self._buckets[0][0], 1.0))


class Traffic:
    """The events of one kind by key, for example the messages stored by topic.

    `sample` gets the totals of all keys. `add` and `add_totals` get a part of the keys, and `advance` completes the
    parts.
    """

    def __init__(self, now: float, totals: Iterable[tuple[str, int]] = ()) -> None:
        self._totals = dict(totals)
        self._spans = {length: _Span(length, now) for length in _STEPS}
        #: (sample time, events of all keys since the start), for the last 10 minutes.
        self._sums: deque[tuple[float, int]] = deque([(now, 0)])
        self.total = 0

    def sample(self, totals: Iterable[tuple[str, int]], now: float) -> dict[str, int]:
        """Adds a sample of the totals, and returns the increases. A new key had a total of 0 before.

        A total decreases if a topic is deleted. It then counts as unchanged.
        """
        counts = self.add_totals(totals)
        self.advance(now)
        return counts

    def add_totals(self, totals: Iterable[tuple[str, int]]) -> dict[str, int]:
        """Adds the totals of some keys, and returns the increases. See `sample`."""
        counts = {}
        for key, total in totals:
            increase = total - self._totals.get(key, 0)
            self._totals[key] = total
            if increase > 0:
                counts[key] = increase
        self._count(counts)
        return counts

    def add(self, counts: Mapping[str, int]) -> None:
        """Adds the events of some keys since the last call."""
        for key, count in counts.items():
            self._totals[key] = self._totals.get(key, 0) + count
        self._count({key: count for key, count in counts.items() if count})

    def forget(self, is_deleted: Callable[[str], bool]) -> None:
        """Removes the keys for which `is_deleted` returns true. Their events stay in `total` and `tps`."""
        keys = [key for key in self._totals if is_deleted(key)]
        for key in keys:
            del self._totals[key]
        for span in self._spans.values():
            span.forget(keys)

    def retain(self, keys: Set[str]) -> None:
        """Removes all other keys."""
        if len(keys) < len(self._totals):
            self.forget(lambda key: key not in keys)

    def _count(self, counts: dict[str, int]) -> None:
        self.total += sum(counts.values())
        for span in self._spans.values():
            span.add(counts)

    def advance(self, now: float) -> None:
        """Completes a sample: events that are added later happened after `now`."""
        self._sums.append((now, self.total))
        while len(self._sums) > 1 and self._sums[1][0] <= now - 600:
            self._sums.popleft()
        for span in self._spans.values():
            span.advance(now)

    def __contains__(self, key: str) -> bool:
        return key in self._totals

    def recent(self, key: str, length: float, now: float) -> Recent:
        """Returns the events of a key in the last MINUTE, HOUR or DAY."""
        return self._spans[length].recent(key, now)

    def tps(self, seconds: float, now: float) -> float:
        """Returns the rate of all keys over the last `seconds`, in events per second.

        `seconds` is at most 600. If the samples cover less time, the rate refers to that time.
        """
        since, before = next(
            ((time, total) for time, total in reversed(self._sums) if time <= now - seconds), self._sums[0]
        )
        return (self.total - before) / max(now - since, 1.0)


class Totals:
    """Totals at the last two midnights (`BrokerStats`). They are 0 before the first midnight."""

    def __init__(self, day: int) -> None:
        self._day = day
        self.yesterday_morning = 0
        self.today_morning = 0

    def update(self, day: int, total: int) -> None:
        """Updates the totals after midnight. `day` is any number that changes with the date."""
        if day != self._day:
            self._day = day
            self.yesterday_morning = self.today_morning
            self.today_morning = total
