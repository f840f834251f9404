"""LoopWatch: how long an event loop is kept busy, and by which requests.

Everything of a server happens in one loop, so what holds it up is what every client waits for. It is measured in two
ways: what the requests of each round took together if that was long, and how late a timer comes, whatever the reason
was. Requests that were much too slow are named in the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from typing import NamedTuple

from gantrymq.background.jobs import Jobs
from gantrymq.logs import peer_log
from gantrymq.metrics import NO_LABELS, Histogram, Kind, Metric
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: A request that keeps the loop busy for longer is logged.
SLOW_REQUEST_S = 0.1
#: The first of them at once, then the slowest of so many seconds.
REPORT_S = 10.0
#: How often a timer looks how late it is, s.
BEAT_S = 0.1
#: Bounds of the histograms, s.
_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class _SlowRequest(NamedTuple):
    seconds: float
    code: int
    address: str
    body_length: int


class LoopWatch:
    """Of one server, or of one client's connections, whose loop nobody's timer watches. Times are `monotonic`'s, s."""

    def __init__(self, jobs: Jobs | None = None) -> None:
        self.rounds = Histogram(_BOUNDS)
        self.lateness = Histogram(_BOUNDS)
        self._job = (jobs or Jobs()).repeating("loop heartbeat", self._beat, BEAT_S)
        self._due = 0.0
        self._logged_at = -inf
        #: Since the last line of the log.
        self._slow = 0
        self._slowest: _SlowRequest | None = None

    def start(self) -> None:
        """Begins to look how late timers are."""
        self._due = monotonic() + BEAT_S
        self._job.start()

    def stop(self) -> None:
        self._job.cancel()

    def round_ended(self, seconds: float) -> None:
        """So long took all connections' requests in one round of the loop; not told for `turns.TURN_S` or less."""
        self.rounds.observe(seconds)

    def slow_request(self, code: int, address: str, seconds: float, body_length: int) -> None:
        """One request has taken longer than SLOW_REQUEST_S."""
        self._slow += 1
        if self._slowest is None or seconds > self._slowest.seconds:
            self._slowest = _SlowRequest(seconds, code, address, body_length)
        self._report(monotonic())

    def metrics(self, labels: Mapping[str, str] = NO_LABELS) -> Iterator[Metric]:
        """What Prometheus is told; `labels` are the server's."""
        yield Metric(
            "gantry_loop_turn_seconds",
            Kind.HISTOGRAM,
            "What the requests of all connections in one turn of the event loop took together, if more than 5 ms.",
            [(labels, self.rounds)],
        )
        yield Metric(
            "gantry_loop_lateness_seconds",
            Kind.HISTOGRAM,
            f"How late a timer of the event loop came that looks each {1000 * BEAT_S:g} ms.",
            [(labels, self.lateness)],
        )

    def _beat(self) -> None:
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
