"""Metrics for Prometheus: their types, their text format, and an HTTP server on a separate port.

A server passes a callable that collects its metrics. Each HTTP request calls it; nothing is cached. Metrics that
RocketMQ also has get its names (`BrokerMetricsConstant`). Format: Prometheus text exposition 0.0.4.
"""

from __future__ import annotations

import asyncio
import logging
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from gantrymq.background.report import JobReport
from gantrymq.errors import GantryError

log = logging.getLogger(__name__)

K = TypeVar("K")

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: Timeout to receive a request and to send its response, in seconds. The server then closes the connection.
REQUEST_TIMEOUT_S = 5.0
MAX_REQUEST_BYTES = 16 * 1024
#: Maximum number of open connections, which is enough for Prometheus and a few people. Further ones are closed at once.
MAX_CONNECTIONS = 32


NO_LABELS: Mapping[str, str] = {}


class Kind(Enum):
    """The type of a metric.

    - A gauge can increase and decrease.
    - A counter only increases. Its name ends with `_total`.
    - A histogram counts observations by value, in buckets.
    """

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


def count_within(max_keys: int, counter: Counter[K], key: K, count: int = 1) -> None:
    """Adds `count` to a counter. Does nothing for a new key if the counter has `max_keys` keys."""
    if key in counter or len(counter) < max_keys:
        counter[key] += count


class Histogram:
    """Counts observations in buckets. `bounds`: upper limits, ascending. A further bucket counts larger values."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Counts `count` observations of the same value."""
        self._counts[bisect_left(self._bounds, value)] += count
        self.sum += value * count

    def observe_together(self, total: int, count: int) -> None:
        """Counts `count` observations with the sum `total` in the bucket of their mean, rounded down."""
        self._counts[bisect_left(self._bounds, total // count)] += count
        self.sum += total

    def add(self, counts: Sequence[int], total: float) -> None:
        """Adds observations that were counted elsewhere: their number by bucket, and their sum."""
        self._counts = [own + other for own, other in zip(self._counts, counts, strict=True)]
        self.sum += total

    def copy(self) -> Histogram:
        """Returns a histogram with the present observations."""
        copy = Histogram(self._bounds)
        copy.include(self)
        return copy

    def include(self, other: Histogram) -> None:
        """Adds the observations of a histogram with the same bounds."""
        self.add(other._counts, other.sum)

    @property
    def count(self) -> int:
        """The number of all observations."""
        return sum(self._counts)

    def buckets(self) -> Iterator[tuple[float, int]]:
        """Yields (upper limit, number of observations up to it) of each bucket, as Prometheus requires, to infinity."""
        count = 0
        for bound, here in zip((*self._bounds, math.inf), self._counts, strict=True):
            count += here
            yield bound, count


#: Labels, and the value: a Histogram for Kind.HISTOGRAM.
Sample = tuple[Mapping[str, str], float | Histogram]


@dataclass(frozen=True, slots=True)
class Metric:
    """A named metric with its samples."""

    name: str
    kind: Kind
    help: str
    samples: Iterable[Sample]

    def snapshot(self) -> Metric:
        """Returns a copy with the present values, for another thread."""
        samples = [(labels, value.copy() if isinstance(value, Histogram) else value) for labels, value in self.samples]
        return Metric(self.name, self.kind, self.help, samples)


def gauge(name: str, description: str, value: float) -> Metric:
    """Returns a gauge without labels."""
    return Metric(name, Kind.GAUGE, description, [({}, value)])


def job_metrics(jobs: Iterable[JobReport], labels: Mapping[str, str] = NO_LABELS) -> Iterator[Metric]:
    """Yields the metrics of a server's background jobs: runs, failures and last duration.

    `labels` are the labels of the server. They are added to every sample.
    """
    reports = [({**labels, "job": report.name}, report) for report in jobs]
    yield Metric(
        "gantry_job_runs_total", Kind.COUNTER, "Runs of background jobs.", [(of, job.runs) for of, job in reports]
    )
    yield Metric(
        "gantry_job_failures_total",
        Kind.COUNTER,
        "Runs of background jobs that failed.",
        [(of, job.failures) for of, job in reports],
    )
    yield Metric(
        "gantry_job_failing_since_seconds",
        Kind.GAUGE,
        "Since when a background job has only failed, seconds since 1970; 0 while it works.",
        [(of, job.failing_since_ms / 1000) for of, job in reports],
    )
    yield Metric(
        "gantry_job_last_duration_seconds",
        Kind.GAUGE,
        "How long a background job's last run took.",
        [(of, job.last_duration_s) for of, job in reports],
    )


class Page:
    """Metrics in Prometheus' text format.

    The samples of all metrics with one name follow the HELP line of the first, because the format allows no second one.
    """

    def __init__(self) -> None:
        self._families: dict[str, list[str]] = {}

    def add(self, metric: Metric) -> None:
        """Adds the present values of a metric."""
        lines = self._families.get(metric.name)
        if lines is None:
            help_line = f"# HELP {metric.name} {_escape(metric.help)}"
            lines = self._families[metric.name] = [help_line, f"# TYPE {metric.name} {metric.kind.value}"]
        for labels, value in metric.samples:
            if isinstance(value, Histogram):
                for bound, count in value.buckets():
                    lines.append(_line(f"{metric.name}_bucket", {**labels, "le": _number(bound)}, count))
                lines.append(_line(f"{metric.name}_sum", labels, value.sum))
                lines.append(_line(f"{metric.name}_count", labels, value.count))
            else:
                lines.append(_line(metric.name, labels, value))

    def encode(self) -> bytes:
        """Returns the text."""
        text = "".join(f"{line}\n" for lines in self._families.values() for line in lines)
        return text.encode(errors="backslashreplace")


def render(metrics: Iterable[Metric]) -> bytes:
    """Returns the metrics in Prometheus' text format."""
    page = Page()
    for metric in metrics:
        page.add(metric)
    return page.encode()


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    pairs = ",".join(f'{key}="{_escape(text, quotes=True)}"' for key, text in labels.items())
    return f"{name}{f'{{{pairs}}}' if pairs else ''} {_number(value)}"


def _escape(text: str, *, quotes: bool = False) -> str:
    """Escapes a help text. With `quotes`, escapes the value of a label."""
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text


def _number(value: float) -> str:
    """Returns a number in Prometheus' format."""
    if isinstance(value, int):
        return str(value)
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(value)


class MetricsServer:
    """Serves the metrics of `collect` at `GET /metrics`. If `port` is 0, `start` sets it to a free port."""

    def __init__(self, collect: Callable[[], Iterable[Metric]], *, host: str, port: int) -> None:
        self.collect = collect
        self._host = host
        self.port = port
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Starts to listen. Raises GantryError if this fails, for example because the port is in use."""
        try:
            self._server = await asyncio.start_server(self._connected, self._host, self.port, limit=MAX_REQUEST_BYTES)
        except OSError as e:
            raise GantryError(
                f"can't listen on {self._host}:{self.port} for metrics (metricsPort): {e.strerror or e}"
            ) from e
        self.port = self._server.sockets[0].getsockname()[1]
        log.info("metrics at http://%s:%d/metrics", self._host, self.port)

    async def stop(self) -> None:
        """Stops listening and closes all connections, including those with a pending response."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Starts a task for a new connection, or closes it if MAX_CONNECTIONS are open."""
        if self._server is None or len(self._connections) >= MAX_CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._answer(head))
                writer.close()
                await writer.wait_closed()
        except (OSError, EOFError, asyncio.LimitOverrunError):
            # The client disconnected, was too slow (TimeoutError, an OSError), or did not send HTTP.
            pass
        finally:
            writer.transport.abort()

    async def page(self) -> bytes:
        """Returns the page with all metrics."""
        return render(self.collect())

    async def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            return _http("405 Method Not Allowed", "text/plain", b"only GET\n")
        if path != b"/metrics":
            return _http("404 Not Found", "text/plain", b"the metrics are at /metrics\n")
        try:
            body = await self.page()
        except Exception:
            log.exception("metrics can't be collected")
            return _http("500 Internal Server Error", "text/plain", b"see the server's log\n")
        return _http("200 OK", CONTENT_TYPE, body, with_body=method == b"GET")


def _http(status: str, content_type: str, body: bytes, *, with_body: bool = True) -> bytes:
    """Returns an HTTP response. A response to HEAD has no body, but has the length of the body."""
    head = f"HTTP/1.0 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + (body if with_body else b"")
