"""Measures the figures of `gantry bench`: rates, response times and CPU time."""

from __future__ import annotations

import math
import resource
import time
from bisect import bisect_left
from collections import Counter


class ResponseTimes:
    """A histogram of response times. Each class is 1 % above the previous one. Average and maximum are exact.

    Times are added to the classes in sorted groups. Added one by one, each would take 0.5 us, a quarter of the time in
    which a client reads a message.
    """

    _CLASSES_PER_E = 100
    _AT_ONCE = 4096

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._total_s = 0.0
        self._max_s = 0.0
        self._sorted = 0
        #: Times that are not in their classes yet.
        self._new: list[float] = []

    def add(self, seconds: float) -> None:
        new = self._new
        new.append(seconds)
        if len(new) >= self._AT_ONCE:
            self._sort()

    def _sort(self) -> None:
        new, self._new = self._new, []
        self._sorted += len(new)
        self._total_s += sum(new)
        new.sort()
        start = 0
        while start < len(new):
            # At least 1 us. The time is negative if this machine's clock is behind the broker's.
            number = math.floor(math.log(max(new[start], 1e-6)) * self._CLASSES_PER_E)
            # At least one, because the limit is rounded.
            end = max(bisect_left(new, math.exp((number + 1) / self._CLASSES_PER_E), start), start + 1)
            self._counts[number] += end - start
            start = end
        self._max_s = max([self._max_s, *new[-1:]])

    @property
    def count(self) -> int:
        return self._sorted + len(self._new)

    @property
    def total_s(self) -> float:
        self._sort()
        return self._total_s

    @property
    def max_s(self) -> float:
        self._sort()
        return self._max_s

    @property
    def average_ms(self) -> float:
        return 1000 * self.total_s / self.count if self.count else 0.0

    def percentile_ms(self, percent: float) -> float:
        """Returns the percentile of the response times, in ms, rounded up to the end of its class."""
        self._sort()
        wanted = self.count * percent / 100
        seen = 0
        for number in sorted(self._counts):
            seen += self._counts[number]
            if seen >= wanted:
                return 1000 * min(math.exp((number + 1) / self._CLASSES_PER_E), self.max_s)
        return 0.0

    def figures(self, prefix: str = "") -> dict[str, float]:
        """Returns the figures as fields of a JSON object, in ms."""
        values = {"averageMs": self.average_ms}
        values |= {f"p{percent:g}Ms".replace(".", ""): self.percentile_ms(percent) for percent in (50, 99, 99.9)}
        values["maxMs"] = 1000 * self.max_s
        return {prefix + name[0].upper() + name[1:] if prefix else name: round(v, 3) for name, v in values.items()}


class Stopwatch:
    """Measures the time and the CPU time of this process since its construction."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._cpu_s = _cpu_s()

    def figures(self, messages: int) -> dict[str, float]:
        """Returns the seconds, the messages per second, and the CPU time per message in us."""
        seconds = time.perf_counter() - self._began
        cpu_us = (_cpu_s() - self._cpu_s) * 1e6
        return {
            "seconds": round(seconds, 3),
            "messagesPerSecond": round(messages / seconds),
            "cpuUsPerMessage": round(cpu_us / messages, 2) if messages else 0.0,
        }


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
