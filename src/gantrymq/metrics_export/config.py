"""The keys that say where a server's metrics go (`BrokerConfig`, `ProxyConfig` and `ControllerConfig` of Java)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum

from gantrymq.config import DAY_MS, bounded
from gantrymq.errors import ConfigError

#: Keys that are not shown, because they contain secrets.
SECRET_KEYS = frozenset({"metricsGrpcExporterHeader"})
#: The characters that a label name must not contain, as in the Prometheus exporter of OpenTelemetry.
_NOT_IN_LABEL_NAMES = re.compile(r"^[^a-zA-Z_]|[^a-zA-Z0-9_]")


class MetricsExporterType(Enum):
    """The destination of the metrics (`MetricsExporterType`)."""

    DISABLE = "DISABLE"
    #: A page for Prometheus.
    PROM = "PROM"
    #: An OpenTelemetry collector, over gRPC or HTTP. Java has gRPC only.
    OTLP_GRPC = "OTLP_GRPC"
    OTLP_HTTP = "OTLP_HTTP"
    #: The server's log.
    LOG = "LOG"


_OTLP = (MetricsExporterType.OTLP_GRPC, MetricsExporterType.OTLP_HTTP)


@dataclass
class MetricsConfig:
    """The destination of the metrics. Defaults are Java's."""

    metrics_exporter_type: MetricsExporterType = MetricsExporterType.DISABLE
    #: Port and address of the page for Prometheus if the exporter is PROM. Port 0 selects any free port. An empty
    #: address is `bind_address`.
    metrics_prom_exporter_port: int = bounded(5557, 0, 65535)
    metrics_prom_exporter_host: str = ""
    #: Labels that are added to every metric: NAME:VALUE, separated by commas.
    metrics_label: str = ""
    #: Endpoint of the OTLP collector, a URL or HOST:PORT.
    metrics_grpc_exporter_target: str = ""
    #: Headers of the requests to the collector: NAME:VALUE, separated by commas.
    metrics_grpc_exporter_header: str = field(default="", repr=False)
    #: Timeout and interval of requests to the collector, in ms.
    metric_grpc_exporter_time_out_in_mills: int = bounded(3_000, 100, DAY_MS)
    metric_grpc_exporter_interval_in_mills: int = bounded(60_000, 100, DAY_MS)
    #: Interval at which the exporter LOG writes metrics to the log, in ms.
    metric_logging_exporter_interval_in_mills: int = bounded(10_000, 100, DAY_MS)

    def check_metrics(self) -> None:
        """Raises ConfigError if a key is invalid or missing."""
        if self.has_collector:
            if not self.metrics_grpc_exporter_target:
                kind = self.metrics_exporter_type.value
                raise ConfigError(f"metricsExporterType={kind}: metricsGrpcExporterTarget is missing")
            _ = self.metrics_headers
        _ = self.metrics_labels

    @property
    def has_exporter(self) -> bool:
        """Whether `metrics_exporter_type` exports the metrics: to a page, to a collector or to the log."""
        return self.metrics_exporter_type is not MetricsExporterType.DISABLE

    @property
    def has_collector(self) -> bool:
        """Whether the metrics go to an OpenTelemetry collector."""
        return self.metrics_exporter_type in _OTLP

    def page_address(self, bind_address: str, metrics_port: int = 0) -> tuple[str, int] | None:
        """Returns the address and the port of the page for Prometheus. None if the page is off.

        Args:
            bind_address: The server's own address.
            metrics_port: Port of a page that does not need the exporter PROM; 0 for none.
        """
        if metrics_port:
            return bind_address, metrics_port
        if self.metrics_exporter_type is MetricsExporterType.PROM:
            return self.metrics_prom_exporter_host or bind_address, self.metrics_prom_exporter_port
        return None

    @property
    def metrics_labels(self) -> dict[str, str]:
        """The labels of `metrics_label`. Characters that Prometheus does not allow in a name become `_`, as in Java."""
        labels = {}
        for pair in filter(None, self.metrics_label.split(",")):
            name, _, value = pair.partition(":")
            if not name or not value or ":" in value:
                raise ConfigError(f"metricsLabel={self.metrics_label[:200]}: NAME:VALUE, several separated by commas")
            labels[_NOT_IN_LABEL_NAMES.sub("_", name)] = value
        return labels

    @property
    def metrics_headers(self) -> dict[str, str]:
        """The headers of the requests to the OTLP collector. Raises ConfigError."""
        headers = {}
        for pair in filter(None, self.metrics_grpc_exporter_header.split(",")):
            name, separator, value = pair.partition(":")
            if not separator:
                raise ConfigError("metricsGrpcExporterHeader: NAME:VALUE, several of them separated by commas")
            # gRPC allows lower case only.
            headers[name.strip().lower()] = value.strip()
        return headers
