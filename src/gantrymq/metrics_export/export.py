"""Sends the metrics of a server at intervals to an OpenTelemetry collector or to the log, or serves them on a page.

An export reads the metrics in the event loop, in slices: a broker can have thousands of groups and queues. A request to
a collector blocks, so a thread sends it. A failed export is repeated after the interval.

Source: `BrokerMetricsManager.init`, `ProxyMetricsManager.start`, `ControllerMetricsManager`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Protocol

from gantrymq.background.jobs import Jobs
from gantrymq.metrics import Metric, MetricsServer, Page, Sample, render
from gantrymq.metrics_export.config import MetricsConfig, MetricsExporterType
from gantrymq.system.clock import monotonic

log = logging.getLogger(__name__)

#: Timeout of the last export, which runs during `stop`, in seconds. A collector may hang.
LAST_EXPORT_S = 2.0
#: Length of a slice that reads metrics, and of the pause after it, in seconds.
_SLICE_S = 0.005

#: Returns the current metrics. The tables of the server can change between two metrics.
Collect = Callable[[], Iterable[Metric]]


class MetricsExporter(Protocol):
    """Sends metrics."""

    def export(self, metrics: list[Metric]) -> None:
        """Sends the current values. May block. Raises GantryError."""

    def close(self) -> None:
        """Ends a running export."""


class LogExporter:
    """Writes each sample as a line of the log."""

    def export(self, metrics: list[Metric]) -> None:
        # Only "\n" ends a sample: names of clients in labels may contain other line separators.
        for line in render(metrics).decode().removesuffix("\n").split("\n"):
            if not line.startswith("#"):
                log.info("%s", line)

    def close(self) -> None:
        pass


class MetricsExport:
    """Exports the result of `collect` every `interval_s` seconds, from `start` to `stop`."""

    def __init__(
        self, collect: Collect, new_exporter: Callable[[], MetricsExporter], interval_s: float, jobs: Jobs
    ) -> None:
        self._collect = collect
        self._new_exporter = new_exporter
        self._exporter: MetricsExporter | None = None
        self._job = jobs.repeating("export metrics", self._run, interval_s, after_error_s=interval_s)

    def start(self) -> None:
        """Starts the export. Raises MissingExtra if a package is missing."""
        self._exporter = self._new_exporter()
        self._job.start()

    async def stop(self) -> None:
        """Exports the metrics one last time, and ends."""
        await self._job.stop()
        if self._exporter is not None:
            try:
                async with asyncio.timeout(LAST_EXPORT_S):
                    await self._run()
            except TimeoutError:
                log.warning("the last metrics are not exported: no response within %g s", LAST_EXPORT_S)
            except Exception as e:
                # An error must not prevent the server from stopping.
                log.warning("can't export the last metrics: %s", e)
            exporter, self._exporter = self._exporter, None
            await asyncio.get_running_loop().run_in_executor(None, exporter.close)

    async def _run(self) -> None:
        if self._exporter is not None:
            metrics = await _snapshots(self._collect())
            await asyncio.get_running_loop().run_in_executor(None, self._exporter.export, metrics)


async def _in_slices(metrics: Iterable[Metric]) -> AsyncIterator[Metric]:
    """Yields the metrics, and pauses between two of them after `_SLICE_S`, so that the server serves requests."""
    deadline = monotonic() + _SLICE_S
    for metric in metrics:
        yield metric
        if monotonic() >= deadline:
            await asyncio.sleep(_SLICE_S)
            deadline = monotonic() + _SLICE_S


async def _snapshots(metrics: Iterable[Metric]) -> list[Metric]:
    """Returns the present values for another thread, with one metric for each name."""
    found: dict[str, tuple[Metric, list[Sample]]] = {}
    async for metric in _in_slices(metrics):
        found.setdefault(metric.name, (metric, []))[1].extend(metric.snapshot().samples)
    return [replace(metric, samples=samples) for metric, samples in found.values()]


class _PageServer(MetricsServer):
    """Serves a page that is made in slices."""

    async def page(self) -> bytes:
        page = Page()
        async for metric in _in_slices(self.collect()):
            page.add(metric)
        return page.encode()


def metrics_export(config: MetricsConfig, collect: Collect, jobs: Jobs, meter: str) -> MetricsExport | None:
    """Returns the configured export. Returns None with PROM or without metrics."""
    if config.metrics_exporter_type is MetricsExporterType.LOG:
        interval_ms = config.metric_logging_exporter_interval_in_mills
        return MetricsExport(collect, LogExporter, interval_ms / 1000, jobs)
    if not config.has_collector:
        return None

    def new_exporter() -> MetricsExporter:
        # Imported late, because only this kind of export needs the extra.
        from gantrymq.metrics_export.otlp import OtlpExporter

        return OtlpExporter(config, meter)

    return MetricsExport(collect, new_exporter, config.metric_grpc_exporter_interval_in_mills / 1000, jobs)


class MetricsOutput:
    """The page for Prometheus and the export of a server's metrics, as far as they are configured."""

    def __init__(
        self, config: MetricsConfig, page: tuple[str, int] | None, collect: Collect, jobs: Jobs, *, meter: str
    ) -> None:
        """Creates the output; `start` begins it.

        Args:
            config: The destination of the metrics.
            page: The address and the port of the page for Prometheus; None for no page.
            collect: Returns the current metrics.
            jobs: Background jobs of the server.
            meter: Java's name for the meter of this kind of server. A collector receives it.

        Raises:
            ConfigError: A key is invalid or missing.
        """
        config.check_metrics()
        self._server = _PageServer(collect, host=page[0], port=page[1]) if page is not None else None
        self._export = metrics_export(config, collect, jobs, meter)

    @property
    def is_used(self) -> bool:
        """Whether the metrics go anywhere."""
        return self._server is not None or self._export is not None

    @property
    def page_port(self) -> int:
        """The port of the page for Prometheus; 0 without a page."""
        return self._server.port if self._server is not None else 0

    async def start(self) -> None:
        """Starts the page and the export.

        Raises GantryError if the port is in use, and MissingExtra if the export needs a package that is not installed.
        """
        if self._server is not None:
            await self._server.start()
        if self._export is not None:
            self._export.start()

    async def stop(self) -> None:
        """Exports the metrics one last time, and stops the page. Can be called without `start`."""
        if self._export is not None:
            await self._export.stop()
        if self._server is not None:
            await self._server.stop()


def with_labels(metrics: Iterable[Metric], labels: Mapping[str, str]) -> Iterator[Metric]:
    """Adds labels to every sample. A label that a sample has already keeps its value."""
    for metric in metrics:
        samples = [({**labels, **own}, value) for own, value in metric.samples]
        yield Metric(metric.name, metric.kind, metric.help, samples)
