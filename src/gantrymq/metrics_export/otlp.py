"""OtlpExporter: sends metrics to an OpenTelemetry collector. Needs the extra `gantrymq[otel]`.

The names of metrics are Java's with `metricsExporterType=OTLP_GRPC`. They lack the unit that Prometheus appends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import cast

from gantrymq.errors import GantryError
from gantrymq.extras import missing

try:
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcExporter
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpExporter
    from opentelemetry.sdk.metrics import export as otel
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
except ImportError as e:
    raise missing("otel", "metricsExporterType=OTLP_GRPC or OTLP_HTTP", e) from e

from gantrymq.metrics import Histogram, Kind, Metric
from gantrymq.metrics_export.config import MetricsConfig, MetricsExporterType
from gantrymq.system.clock import now_ms

#: Units that Prometheus appends to names, and that OpenTelemetry keeps in a field. Java's other names contain their
#: unit.
_UNITS = {"_milliseconds": "ms", "_seconds": "s"}
_BYTES = {"rocketmq_storage_size_bytes"}


class OtlpExporter:
    """Sends metrics to the collector at `metrics_grpc_exporter_target`: a URL, or HOST:PORT with TLS, as in Java.

    `meter` is the name of the instrumentation scope.
    """

    def __init__(self, config: MetricsConfig, meter: str) -> None:
        self._target = target = config.metrics_grpc_exporter_target
        endpoint = target if target.startswith(("http://", "https://")) else f"https://{target}"
        headers = config.metrics_headers
        timeout_s = config.metric_grpc_exporter_time_out_in_mills / 1000
        self._scope = InstrumentationScope(meter)
        self._started_ns = now_ms() * 1_000_000
        self._exporter: otel.MetricExporter
        if config.metrics_exporter_type is MetricsExporterType.OTLP_GRPC:
            self._exporter = GrpcExporter(endpoint=endpoint, headers=headers, timeout=timeout_s)
        else:
            self._exporter = HttpExporter(endpoint=endpoint, headers=headers, timeout=timeout_s)

    def export(self, metrics: list[Metric]) -> None:
        """Sends the current values. Raises GantryError if the collector does not accept them."""
        scope = otel.ScopeMetrics(self._scope, list(self._converted(metrics)), "")
        data = otel.MetricsData([otel.ResourceMetrics(Resource.get_empty(), [scope], "")])
        if self._exporter.export(data) is not otel.MetricExportResult.SUCCESS:
            raise GantryError(f"the collector {self._target} (metricsGrpcExporterTarget) does not accept the metrics")

    def close(self) -> None:
        self._exporter.shutdown()

    def _converted(self, metrics: Iterable[Metric]) -> Iterator[otel.Metric]:
        now_ns = now_ms() * 1_000_000
        cumulative = otel.AggregationTemporality.CUMULATIVE
        for metric in metrics:
            points = [(dict(labels), value) for labels, value in metric.samples]
            if not points:
                continue
            name, unit = _name_and_unit(metric.name)
            data: otel.Sum | otel.Gauge | otel.Histogram
            if metric.kind is Kind.HISTOGRAM:
                data = otel.Histogram(
                    [
                        self._histogram(labels, value, now_ns)
                        for labels, value in points
                        if isinstance(value, Histogram)
                    ],
                    cumulative,
                )
            else:
                numbers = [
                    otel.NumberDataPoint(labels, self._started_ns, now_ns, value)
                    for labels, value in points
                    if not isinstance(value, Histogram)
                ]
                data = otel.Gauge(numbers) if metric.kind is Kind.GAUGE else otel.Sum(numbers, cumulative, True)
            yield otel.Metric(name, metric.help, unit, data)

    def _histogram(self, labels: dict[str, str], value: Histogram, now_ns: int) -> otel.HistogramDataPoint:
        bounds, counts, before = list[float](), list[int](), 0
        for bound, count in value.buckets():
            bounds.append(bound)
            counts.append(count - before)
            before = count
        # OpenTelemetry's last bucket has no bound. The encoder leaves out a smallest or largest value of None.
        unknown = cast("float", None)
        return otel.HistogramDataPoint(
            labels, self._started_ns, now_ns, before, value.sum, counts, bounds[:-1], unknown, unknown
        )


def _name_and_unit(name: str) -> tuple[str, str]:
    """Returns the name of a metric without the unit that Prometheus appends, and the unit."""
    if name in _BYTES:
        return name.removesuffix("_bytes"), "bytes"
    for suffix, unit in _UNITS.items():
        if name.endswith(suffix):
            return name.removesuffix(suffix), unit
    return name, ""
