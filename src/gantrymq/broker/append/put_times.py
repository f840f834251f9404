"""PutTimes: how long appends to the log take (`StoreStatsService`)."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

#: Java's upper bounds of the durations, in ms. Longer durations are in a separate bucket.
_BOUNDS = list(accumulate([1] * 20 + [2] * 15 + [5] * 10 + [10] * 10 + [50] * 6 + [100] * 5 + [1000] * 9))
#: Java's names of the ranges in `distribution`, and the lower bound of the next range in ms.
_RANGES = (
    ("[<=0ms]", 1),
    ("[0~10ms]", 10),
    ("[10~50ms]", 50),
    ("[50~100ms]", 100),
    ("[100~200ms]", 200),
    ("[200~500ms]", 500),
    ("[500ms~1s]", 1000),
    ("[1~2s]", 2000),
    ("[2~3s]", 3000),
    ("[3~4s]", 4000),
    ("[4~5s]", 5000),
    ("[5~10s]", 10_000),
    ("[10s~]", 1 << 63),
)
#: Length of the period to which `distribution` and `percentile` refer, in seconds.
PERIOD_S = 60.0


class PutTimes:
    """Counts appends by duration. A batch is one append.

    `distribution` and `percentile` refer to the last complete period.

    Attributes:
        failed: Number of appends that failed.
        longest_ms: Duration of the slowest append since the start, in ms.
    """

    def __init__(self, now: float) -> None:
        self.failed = 0
        self.longest_ms = 0
        self._period_end = now + PERIOD_S
        #: Number of appends below 1 ms, and by duration in ms from 1 ms on.
        self._fast = self._last_fast = 0
        self._slow: dict[int, int] = {}
        self._last_slow: dict[int, int] = {}

    def add(self, seconds: float, count: int = 1) -> None:
        """Counts `count` appends that took this time each."""
        if seconds < 0.001:
            self._fast += count
            return
        ms = int(seconds * 1000)
        self.longest_ms = max(self.longest_ms, ms)
        self._slow[ms] = self._slow.get(ms, 0) + count

    def add_failure(self) -> None:
        """Counts an append that failed."""
        self.failed += 1

    def sample(self, now: float) -> None:
        """Ends the current period if it is over. `now` is in seconds."""
        if now >= self._period_end:
            self._period_end = now + PERIOD_S
            self._last_fast, self._fast = self._fast, 0
            self._last_slow, self._slow = self._slow, {}

    def distribution(self) -> str:
        """Returns the number of appends in each range, in Java's format."""
        counts = [0] * len(_RANGES)
        counts[0] = self._last_fast
        for ms, count in self._last_slow.items():
            counts[next(i for i, (_, end) in enumerate(_RANGES) if ms < end)] += count
        return "".join(f"{name}:{count} " for (name, _), count in zip(_RANGES, counts, strict=True))

    def percentile(self, share: float) -> float:
        """Returns the duration, in ms, that this share of the appends did not exceed.

        It is interpolated in Java's buckets. Source: `StoreStatsService.findPutMessageEntireTimePX`.
        """
        counts = [0] * (len(_BOUNDS) + 1)
        counts[0] = self._last_fast
        for ms, count in self._last_slow.items():
            counts[bisect_left(_BOUNDS, ms)] += count
        left = int(sum(counts) * share)
        start = 0
        for end, count in zip([*_BOUNDS, self.longest_ms], counts, strict=True):
            if left <= count:
                return start + ((end - start) * left / count if count else 0.0)
            left -= count
            start = end
        return float(start)
