"""Collectors of OpenTelemetry metrics, over gRPC and over HTTP, that keep the requests that they received."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


class Collector:
    """The requests that a collector received: (headers, body)."""

    def __init__(self) -> None:
        self.received: list[tuple[dict[str, str], bytes]] = []

    def scope(self) -> Any:
        """Returns the only instrumentation scope of the last request."""
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

        request = ExportMetricsServiceRequest.FromString(self.received[-1][1])
        [of_resource] = request.resource_metrics
        [scope] = of_resource.scope_metrics
        return scope

    def metrics(self) -> dict[str, Any]:
        """Returns the metrics of the last request by name."""
        return {metric.name: metric for metric in self.scope().metrics}


@contextmanager
def collector_over_grpc() -> Iterator[tuple[str, Collector]]:
    """Yields the target of a collector, and the collector."""
    import grpc

    collector = Collector()

    def export(body: bytes, context: Any) -> bytes:
        collector.received.append((dict(context.invocation_metadata()), body))
        return b""

    server = grpc.server(ThreadPoolExecutor(1))
    handler = grpc.unary_unary_rpc_method_handler(export)
    service = "opentelemetry.proto.collector.metrics.v1.MetricsService"
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {"Export": handler})])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}", collector
    finally:
        server.stop(None)


@contextmanager
def collector_over_http() -> Iterator[tuple[str, Collector]]:
    """Yields the target of a collector, and the collector."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.received.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/metrics", collector
    finally:
        server.shutdown()
        server.server_close()


def labels_of(point: Any) -> dict[str, str]:
    """Returns the labels of a data point."""
    return {label.key: label.value.string_value for label in point.attributes}
