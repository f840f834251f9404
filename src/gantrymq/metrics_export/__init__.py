"""Where a server's metrics go: a page for Prometheus, an OpenTelemetry collector, or the log.

Brokers, proxies and controllers have the same keys for this (`MetricsConfig`), as in Java.
"""

from gantrymq.metrics_export.config import SECRET_KEYS, MetricsConfig, MetricsExporterType
from gantrymq.metrics_export.export import MetricsOutput, with_labels

__all__ = ["SECRET_KEYS", "MetricsConfig", "MetricsExporterType", "MetricsOutput", "with_labels"]
