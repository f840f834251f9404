"""The exporters of `metricsExporterType`: a page for Prometheus, an OpenTelemetry collector, the log."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import httpx
import pytest
from broker_support import Peer, config
from constants import change_constant
from otlp_collector import Collector, collector_over_grpc, collector_over_http, labels_of
from wait_until import until

from gantrymq.background.jobs import Jobs
from gantrymq.broker.broker import Broker
from gantrymq.broker.metrics import BrokerMetrics
from gantrymq.errors import ConfigError, GantryError, MissingExtra
from gantrymq.metrics import Kind, Metric
from gantrymq.metrics_export import MetricsExporterType
from gantrymq.metrics_export import export as export_module
from gantrymq.metrics_export.export import MetricsExport
from gantrymq.remoting.client import RemotingClient

_SECRET = "Authorization:Bearer of rings,x-tenant: a"


def metrics_of(broker: Broker) -> BrokerMetrics:
    [metrics] = [feature for feature in broker.features.all if isinstance(feature, BrokerMetrics)]
    return metrics


async def test_prom(tmp_path: Path) -> None:
    settings = config(
        tmp_path / "store",
        metrics_exporter_type=MetricsExporterType.PROM,
        metrics_prom_exporter_port=0,
        metrics_prom_exporter_host="127.0.0.1",
    )
    broker = Broker(settings)
    await broker.start()
    try:
        async with httpx.AsyncClient() as client:
            page = (await client.get(f"http://127.0.0.1:{metrics_of(broker).page_port}/metrics")).text
        assert "\nrocketmq_topic_number{" in page
    finally:
        await broker.stop()


async def test_configured_labels(tmp_path: Path) -> None:
    settings = config(
        tmp_path / "store",
        metrics_exporter_type=MetricsExporterType.PROM,
        metrics_prom_exporter_port=0,
        metrics_prom_exporter_host="127.0.0.1",
        metrics_label="zone:eu-1,,data-center:2,9th:x,node_id:other",
    )
    broker = Broker(settings)
    await broker.start()
    try:
        async with httpx.AsyncClient() as client:
            page = (await client.get(f"http://127.0.0.1:{metrics_of(broker).page_port}/metrics")).text
    finally:
        await broker.stop()
    samples = [line for line in page.splitlines() if not line.startswith("#")]
    assert samples
    for sample in samples:
        for label in ('zone="eu-1"', 'data_center="2"', '_th="x"', f'node_id="{settings.broker_name}"'):
            assert label in sample
        assert sample.count("node_id=") == 1


@pytest.mark.parametrize("label", ["zone", "zone:", ":eu", "zone:eu:1"])
def test_wrong_labels(tmp_path: Path, label: str) -> None:
    with pytest.raises(ConfigError, match=f"metricsLabel={label}: NAME:VALUE"):
        config(tmp_path, metrics_label=label)


async def test_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = config(
        tmp_path / "store",
        metrics_exporter_type=MetricsExporterType.LOG,
        metric_logging_exporter_interval_in_mills=100,
    )
    broker = Broker(settings)
    with caplog.at_level(logging.INFO, "gantrymq.metrics_export.export"):
        await broker.start()
        try:
            assert metrics_of(broker).page_port == 0
            await until(lambda: "rocketmq_topic_number{" in caplog.text)
        finally:
            await broker.stop()


@pytest.fixture(params=[MetricsExporterType.OTLP_GRPC, MetricsExporterType.OTLP_HTTP], ids=str)
def otlp(request: pytest.FixtureRequest) -> Iterator[tuple[MetricsExporterType, str, Collector]]:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc")
    is_grpc = request.param is MetricsExporterType.OTLP_GRPC
    with collector_over_grpc() if is_grpc else collector_over_http() as (target, collector):
        yield request.param, target, collector


async def test_otlp(
    tmp_path: Path,
    remoting: RemotingClient,
    otlp: tuple[MetricsExporterType, str, Collector],
) -> None:
    kind, target, collector = otlp
    settings = config(
        tmp_path / "store",
        metrics_exporter_type=kind,
        metrics_grpc_exporter_target=target,
        metrics_grpc_exporter_header=_SECRET,
        metric_grpc_exporter_interval_in_mills=100,
    )
    broker = Broker(settings)
    await broker.start()
    try:
        peer = Peer(await remoting.connection(f"127.0.0.1:{broker.port}"))
        for body in (b"small", b"x" * 2000):
            assert (await peer.send("orders", body)).code == 0

        async def is_received() -> bool:
            return bool(collector.received) and "rocketmq_message_size" in collector.metrics()

        await until(is_received)
        metrics = collector.metrics()
        assert metrics["rocketmq_topic_number"].gauge.data_points[0].as_int == len(
            broker.topics.table.topic_config_table
        )
        received = metrics["rocketmq_messages_in_total"].sum
        assert (received.is_monotonic, received.aggregation_temporality) == (True, 2)
        assert sum(point.as_int for point in received.data_points) == 2
        [sizes] = metrics["rocketmq_message_size"].histogram.data_points
        assert (sizes.count, list(sizes.bucket_counts)) == (2, [1, 1, 0, 0, 0, 0, 0])
        assert list(sizes.explicit_bounds)[:2] == [1024, 4096]
        assert not sizes.HasField("max")
        assert labels_of(sizes)["topic"] == "orders"
        assert collector.scope().scope.name == "broker-meter"
        # Units are not part of the names.
        assert metrics["rocketmq_rpc_latency"].unit == "ms"
        headers, _ = collector.received[-1]
        assert (headers["authorization"], headers["x-tenant"]) == ("Bearer of rings", "a")
    finally:
        await broker.stop()


async def test_a_collector_that_does_not_answer_stops_nothing(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc")
    settings = config(
        tmp_path / "store",
        metrics_exporter_type=MetricsExporterType.OTLP_HTTP,
        metrics_grpc_exporter_target="http://127.0.0.1:9/v1/metrics",
        metric_grpc_exporter_interval_in_mills=100,
        metric_grpc_exporter_time_out_in_mills=100,
    )
    broker = Broker(settings)
    await broker.start()
    try:
        [report] = [job for job in broker.context.jobs if job.name == "export metrics"]
        await until(lambda: report.failures > 1)
    finally:
        await asyncio.wait_for(broker.stop(), 20)


async def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.metric_exporter", None)
    monkeypatch.delitem(sys.modules, "gantrymq.metrics_export.otlp", raising=False)
    settings = config(
        tmp_path / "store",
        metrics_exporter_type=MetricsExporterType.OTLP_GRPC,
        metrics_grpc_exporter_target="127.0.0.1:4317",
    )
    broker = Broker(settings)
    with pytest.raises(MissingExtra, match=r"metricsExporterType=OTLP_GRPC or OTLP_HTTP needs .*\[otel\]"):
        await broker.start()
    await broker.stop()


def test_wrong_settings(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="metricsGrpcExporterTarget is missing"):
        config(tmp_path, metrics_exporter_type=MetricsExporterType.OTLP_GRPC)
    with pytest.raises(ConfigError, match="NAME:VALUE"):
        config(
            tmp_path,
            metrics_exporter_type=MetricsExporterType.OTLP_HTTP,
            metrics_grpc_exporter_target="http://127.0.0.1:1",
            metrics_grpc_exporter_header="token",
        )


class FakeExporter:
    """Counts its calls. An export raises `error`, or waits for `released`."""

    def __init__(self, error: Exception | None = None, released: Event | None = None) -> None:
        self.exports = 0
        self.metrics: list[Metric] = []
        self.is_closed = False
        self._error = error
        self._released = released

    def export(self, metrics: list[Metric]) -> None:
        self.exports += 1
        self.metrics = metrics
        if self._released is not None:
            self._released.wait(30)
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("error", [None, GantryError("refused"), RuntimeError("unexpected")], ids=repr)
async def test_the_stop_exports_once_more_and_closes(error: Exception | None) -> None:
    exporter = FakeExporter(error)
    export = MetricsExport(list, lambda: exporter, 3600, Jobs())
    export.start()
    await export.stop()
    assert (exporter.exports, exporter.is_closed) == (1, True)


async def test_an_export_has_each_name_once() -> None:
    """A broker makes the samples of a metric in several parts."""
    parts = [Metric("m", Kind.GAUGE, "help", [({"group": name}, 1.0)]) for name in "ab"]
    exporter = FakeExporter()
    export = MetricsExport(lambda: [*parts, Metric("n", Kind.GAUGE, "help", [])], lambda: exporter, 3600, Jobs())
    export.start()
    await export.stop()
    assert [(metric.name, list(metric.samples)) for metric in exporter.metrics] == [
        ("m", [({"group": "a"}, 1.0), ({"group": "b"}, 1.0)]),
        ("n", []),
    ]


async def test_the_stop_does_not_wait_for_a_hung_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    change_constant(monkeypatch, "export.LAST_EXPORT_S", 0.05)
    released = Event()
    exporter = FakeExporter(released=released)
    export = MetricsExport(list, lambda: exporter, 3600, Jobs())
    export.start()
    try:
        async with asyncio.timeout(20):
            await export.stop()
        assert (exporter.exports, exporter.is_closed) == (1, True)
    finally:
        released.set()


def test_a_log_line_has_a_whole_sample(caplog: pytest.LogCaptureFixture) -> None:
    metric = Metric("m", Kind.GAUGE, "help", [({"group": "a\u2028# b\x0bc\x85d"}, 1.0)])
    with caplog.at_level(logging.INFO, export_module.__name__):
        export_module.LogExporter().export([metric])
    assert len(caplog.records) == 1
