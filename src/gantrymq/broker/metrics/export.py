"""MetricsExport: sends the metrics of a broker at intervals, to an OpenTelemetry collector or to the log.

Source: `BrokerMetricsManager.init`. An export reads the metrics in the event loop. A request to a collector blocks, so
a thread sends it. A failed export is repeated after the interval.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from gantrymq.background.jobs import Jobs
from gantrymq.broker.config import BrokerConfig, MetricsExporterType
from gantrymq.metrics import Metric, render

log = logging.getLogger(__name__)

#: Timeout of the last export, which runs during `stop`, in seconds. A collector may hang.
LAST_EXPORT_S = 2.0

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
                # An error must not prevent the broker from stopping.
                log.warning("can't export the last metrics: %s", e)
            exporter, self._exporter = self._exporter, None
            await asyncio.get_running_loop().run_in_executor(None, exporter.close)

    async def _run(self) -> None:
        if self._exporter is not None:
            metrics = [metric.snapshot() for metric in self._collect()]
            await asyncio.get_running_loop().run_in_executor(None, self._exporter.export, metrics)


def metrics_export(config: BrokerConfig, collect: Collect, jobs: Jobs) -> MetricsExport | None:
    """Returns the configured export. Returns None with PROM or without metrics."""
    kind = config.metrics_exporter_type
    if kind is MetricsExporterType.LOG:
        interval_ms = config.metric_logging_exporter_interval_in_mills
        return MetricsExport(collect, LogExporter, interval_ms / 1000, jobs)
    if kind not in (MetricsExporterType.OTLP_GRPC, MetricsExporterType.OTLP_HTTP):
        return None

    def new_exporter() -> MetricsExporter:
        # Imported late, because only this kind of export needs the extra.
        from gantrymq.broker.metrics.otlp import OtlpExporter

        return OtlpExporter(
            config.metrics_grpc_exporter_target,
            is_grpc=kind is MetricsExporterType.OTLP_GRPC,
            headers=config.metrics_headers,
            timeout_s=config.metric_grpc_exporter_time_out_in_mills / 1000,
        )

    return MetricsExport(collect, new_exporter, config.metric_grpc_exporter_interval_in_mills / 1000, jobs)
