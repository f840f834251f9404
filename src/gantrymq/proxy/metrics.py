"""The proxy's metrics: calls by method and result, remoting requests by code and result, clients, connections.

Java's proxy has only `rocketmq_proxy_up`, with the same labels (`ProxyMetricsManager`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from gantrymq.background.report import JobReport
from gantrymq.metrics import Histogram, Kind, Metric, job_metrics
from gantrymq.proxy.clients import Clients
from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.v2.definition_pb2 import ClientType
from gantrymq.system import network

_BOUNDS_S = (0.001, 0.003, 0.005, 0.01, 0.03, 0.05, 0.1, 0.3, 0.5, 1.0, 3.0, 5.0, 10.0, 30.0)


class CallFigures:
    """Completed calls: their number by method and result, and their durations by method."""

    def __init__(self) -> None:
        self.results: Counter[tuple[str, str]] = Counter()
        self.seconds: dict[str, Histogram] = {}

    def ended(self, method: str, result: str, seconds: float) -> None:
        """Counts a call. `result` is the name of the response's code, or of gRPC's status."""
        self.results[method, result] += 1
        histogram = self.seconds.get(method)
        if histogram is None:
            histogram = self.seconds[method] = Histogram(_BOUNDS_S)
        histogram.observe(seconds)


def labels_of(config: ProxyConfig) -> dict[str, str]:
    """Returns the labels of all metrics. Those of the configuration do not replace the proxy's own, as in Java."""
    return config.metrics_labels | {
        "node_type": "proxy",
        "cluster": config.proxy_cluster_name,
        "node_id": config.proxy_name or network.host_name(),
        "proxy_mode": "cluster",
    }


def collect(
    labels: Mapping[str, str],
    figures: CallFigures,
    remoting_figures: CallFigures,
    clients: Clients,
    jobs: Iterable[JobReport],
    *,
    connections: int,
    remoting_connections: int,
    buffered_bytes: int,
    request_bytes: int,
    unread_bytes: int,
) -> Iterator[Metric]:
    """Yields all metrics of a proxy. `figures` counts gRPC calls, `remoting_figures` counts remoting requests."""
    yield Metric("rocketmq_proxy_up", Kind.GAUGE, "1 while the proxy is up.", [(labels, 1)])
    yield Metric(
        "gantry_proxy_calls_total",
        Kind.COUNTER,
        "Calls that have ended, by method and result.",
        [
            ({**labels, "method": method, "result": result}, count)
            for (method, result), count in sorted(figures.results.items())
        ],
    )
    yield Metric(
        "gantry_proxy_call_seconds",
        Kind.HISTOGRAM,
        "How long calls took; those of consumers wait for messages.",
        [({**labels, "method": method}, histogram) for method, histogram in sorted(figures.seconds.items())],
    )
    yield Metric(
        "gantry_proxy_remoting_requests_total",
        Kind.COUNTER,
        "Requests by the remoting protocol that have ended, by request code and result.",
        [
            ({**labels, "request": name, "result": result}, count)
            for (name, result), count in sorted(remoting_figures.results.items())
        ],
    )
    yield Metric(
        "gantry_proxy_remoting_request_seconds",
        Kind.HISTOGRAM,
        "How long requests by the remoting protocol took; those of consumers wait for messages.",
        [({**labels, "request": name}, histogram) for name, histogram in sorted(remoting_figures.seconds.items())],
    )
    kinds = Counter(ClientType.Name(client.client_type).lower() for client in clients)
    yield Metric(
        "gantry_proxy_clients",
        Kind.GAUGE,
        "Clients that have sent their settings and are connected.",
        [({**labels, "kind": kind}, count) for kind, count in sorted(kinds.items())],
    )
    yield Metric("gantry_proxy_connections", Kind.GAUGE, "Connections of clients by gRPC.", [(labels, connections)])
    yield Metric(
        "gantry_proxy_remoting_connections",
        Kind.GAUGE,
        "Connections of clients by the remoting protocol.",
        [(labels, remoting_connections)],
    )
    yield Metric(
        "gantry_proxy_incomplete_bytes", Kind.GAUGE, "Bytes of incomplete messages.", [(labels, buffered_bytes)]
    )
    yield Metric("gantry_proxy_requests_bytes", Kind.GAUGE, "Bytes of requests in flight.", [(labels, request_bytes)])
    yield Metric(
        "gantry_proxy_unread_bytes",
        Kind.GAUGE,
        "Bytes of responses that clients have not read.",
        [(labels, unread_bytes)],
    )
    yield from job_metrics(jobs, labels)
