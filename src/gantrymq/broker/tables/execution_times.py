"""ExecutionTimes: how long the requests take that create topics or groups (`AdminBrokerProcessor`)."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager

from gantrymq.metrics import Histogram
from gantrymq.protocol.command import RemotingCommand
from gantrymq.system.clock import monotonic

#: Upper bounds of the histograms, in ms (`BrokerMetricsManager`).
_BOUNDS_MS = (10, 100, 1000, 3000, 5000)


class ExecutionTimes:
    """Durations of one kind of request, from its start until its response.

    Attributes:
        by_result: (status, whether it is about a system topic) -> durations in ms. Status: `success` or `failure`.
    """

    def __init__(self) -> None:
        self._by_result: dict[tuple[str, bool], Histogram] = {}

    @property
    def by_result(self) -> Mapping[tuple[str, bool], Histogram]:
        return self._by_result

    @contextmanager
    def measured(self, *, is_system: bool = False) -> Iterator[ExecutionTime]:
        """Measures a request. An error in the block counts as a failure."""
        time = ExecutionTime(self, is_system)
        try:
            yield time
        except Exception:
            time.end("failure")
            raise

    def add(self, status: str, is_system: bool, seconds: float) -> None:
        """Adds the duration of a request."""
        times = self._by_result.get((status, is_system))
        if times is None:
            times = self._by_result[status, is_system] = Histogram(_BOUNDS_MS)
        # Whole milliseconds, as in Java.
        times.observe(int(seconds * 1000))


class ExecutionTime:
    """The duration of one request."""

    def __init__(self, times: ExecutionTimes, is_system: bool) -> None:
        self._times = times
        self._is_system = is_system
        self._start = monotonic()

    async def answer_after(self, written: Awaitable[None]) -> RemotingCommand:
        """Returns SUCCESS after `written` completes, and ends the measurement. A StoreError counts as a failure."""
        try:
            await written
        except Exception:
            self.end("failure")
            raise
        self.end("success")
        return RemotingCommand.response()

    def end(self, status: str) -> None:
        """Ends the measurement."""
        self._times.add(status, self._is_system, monotonic() - self._start)
