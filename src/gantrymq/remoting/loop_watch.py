"""Measures how long requests block a server's event loop, and logs slow requests.

A server handles everything in one event loop, so a blocked loop delays every client. There are two measurements:
- The total time of all requests in one loop iteration, if it is long.
- The delay of a regular timer, whatever the cause.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from typing import NamedTuple

from gantrymq.background.jobs import Jobs
from gantrymq.logs import peer_log
from gantrymq.metrics import NO_LABELS, Histogram, Kind, Metric
from gantrymq.remoting.rpc_latency import RpcLatency
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: A request that blocks the loop for longer is logged. In seconds.
SLOW_REQUEST_S = 0.1
#: Log interval, in seconds. The first slow request is logged at once, and then the slowest of each interval.
REPORT_S = 10.0
#: Interval of the timer whose delay is measured, in seconds.
BEAT_S = 0.1
#: Bounds of the histogram buckets, in seconds.
_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class _SlowRequest(NamedTuple):
    seconds: float
    code: int
    address: str
    body_length: int


class LoopWatch:
    """Statistics of one server's event loop, or of a client's connections. Times are monotonic, in seconds.

    Without `start`, only requests are measured, not the timer's delay.

    Attributes:
        latencies: The latencies of the requests. None unless `measure_requests` was called.
    """

    def __init__(self, jobs: Jobs | None = None) -> None:
        self.latencies: RpcLatency | None = None
        self.rounds = Histogram(_BOUNDS)
        self.lateness = Histogram(_BOUNDS)
        self._job = (jobs or Jobs()).repeating("loop heartbeat", self.beat, BEAT_S)
        self._due = 0.0
        self._logged_at = -inf
        #: Number of slow requests after the last log line.
        self._slow = 0
        self._slowest: _SlowRequest | None = None

    def measure_requests(self) -> None:
        """Measures the latency of each request of the connections that are accepted from now on."""
        self.latencies = RpcLatency()

    def start(self) -> None:
        """Starts the timer whose delay is measured."""
        self._due = monotonic() + BEAT_S
        self._job.start()

    def stop(self) -> None:
        self._job.cancel()

    def round_ended(self, seconds: float) -> None:
        """Records the time of all requests in one loop iteration. Not called for `time_slices.SLICE_S` or less."""
        self.rounds.observe(seconds)

    def slow_request(self, code: int, address: str, seconds: float, body_length: int) -> None:
        """Records a request that took longer than SLOW_REQUEST_S."""
        self._slow += 1
        if self._slowest is None or seconds > self._slowest.seconds:
            self._slowest = _SlowRequest(seconds, code, address, body_length)
        self._report(monotonic())

    def metrics(self, labels: Mapping[str, str] = NO_LABELS) -> Iterator[Metric]:
        """Yields the Prometheus metrics with the server's `labels`."""
        if self.latencies is not None:
            yield self.latencies.metric(labels)
        yield Metric(
            "gantry_loop_iteration_seconds",
            Kind.HISTOGRAM,
            "Time of all requests in one event-loop iteration, if it exceeds 5 ms.",
            [(labels, self.rounds)],
        )
        yield Metric(
            "gantry_loop_lateness_seconds",
            Kind.HISTOGRAM,
            f"How late a timer of the event loop came that looks each {1000 * BEAT_S:g} ms.",
            [(labels, self.lateness)],
        )

    def beat(self) -> None:
        """Records the delay of the timer, and logs the slowest request if it is time."""
        now = monotonic()
        self.lateness.observe(max(now - self._due, 0.0))
        self._due = now + BEAT_S
        self._report(now)

    def _report(self, now: float) -> None:
        slowest = self._slowest
        if slowest is None or now - self._logged_at < REPORT_S:
            return
        log.warning(
            "slow request code=%d peer=%s ms=%d body=%d%s",
            slowest.code,
            slowest.address,
            1000 * slowest.seconds,
            slowest.body_length,
            f" (the slowest of {self._slow} since the last such line)" if self._slow > 1 else "",
        )
        self._logged_at = now
        self._slow = 0
        self._slowest = None
