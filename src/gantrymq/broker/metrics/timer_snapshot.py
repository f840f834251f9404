"""TimerSnapshot: the number of waiting timer messages by the time until their delivery (`TimerMetrics.timerDist`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gantrymq.background.jobs import Jobs
from gantrymq.system.clock import monotonic, now_ms

#: Upper bounds of the counts, in seconds.
SNAPSHOT_BOUNDS_S = (5, 60, 300, 900, 3600, 14_400, 28_800, 86_400)
#: Interval of the counts, in seconds. A count takes 9 ms of CPU time, or 150 ms if `timerPrecisionMs` is 100.
_INTERVAL_S = 10.0
#: Longest time slice of a count in one event-loop iteration, in seconds.
_SLICE_S = 0.005
#: Time that one step covers, in ms. If `timerPrecisionMs` is 100, a step takes 0.2 ms.
_STEP_MS = 120_000


class TimerSnapshot:
    """Counts the messages in a background job, because 24 h can have 864,000 slots. A scrape reads the last result.

    `number_due` returns the number of messages that are due between two times, in ms.

    Attributes:
        counts: For each of SNAPSHOT_BOUNDS_S, the number of messages that are due between the previous bound and this
            one. Overdue messages do not count.
    """

    def __init__(self, number_due: Callable[[int, int], int], jobs: Jobs) -> None:
        self.counts = [0] * len(SNAPSHOT_BOUNDS_S)
        self._number_due = number_due
        #: The remaining steps of the current count. None between two counts.
        self._steps: Iterator[None] | None = None
        self._counting = jobs.repeating("count timer messages by due time", self._count, _INTERVAL_S)

    def start(self) -> None:
        self._counting.start(0.0)

    def stop(self) -> None:
        self._counting.cancel()

    def _count(self) -> float | None:
        if self._steps is None:
            self._steps = self._all_steps()
        slice_ends = monotonic() + _SLICE_S
        for _ in self._steps:
            if monotonic() >= slice_ends:
                return 0.0
        self._steps = None
        return None

    def _all_steps(self) -> Iterator[None]:
        """Counts all messages. Each step takes less than 1 ms."""
        counts = [0] * len(SNAPSHOT_BOUNDS_S)
        start_ms = begin_ms = now_ms()
        for index, bound_s in enumerate(SNAPSHOT_BOUNDS_S):
            end_ms = begin_ms + bound_s * 1000
            while start_ms < end_ms:
                step_end_ms = min(start_ms + _STEP_MS, end_ms)
                counts[index] += self._number_due(start_ms, step_end_ms)
                start_ms = step_end_ms
                yield
        self.counts = counts
