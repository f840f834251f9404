"""Tests of the Prometheus text format and of the metrics port."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from constants import change_constant
from ports import free_port

from gantrymq import metrics
from gantrymq.errors import GantryError
from gantrymq.metrics import Histogram, Kind, Metric, MetricsServer, gauge, render
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.namesrv.server import NameServer
from gantrymq.protocol.bodies.topic_config import (
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    encode_register_body,
)
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.namesrv import RegisterBrokerRequestHeader
from gantrymq.protocol.headers.topic import TopicRequestHeader
from gantrymq.remoting.client import RemotingClient


def test_text() -> None:
    topics = Metric(
        "rocketmq_messages_in_total",
        Kind.COUNTER,
        "Messages stored, \\ and\nmore",
        [({"topic": 'a"b\\c\nd', "cluster": "c"}, 3), ({}, 2.5)],
    )
    assert render([topics, gauge("rocketmq_topic_number", "Topics", 10**15)]).decode() == (
        "# HELP rocketmq_messages_in_total Messages stored, \\\\ and\\nmore\n"
        "# TYPE rocketmq_messages_in_total counter\n"
        'rocketmq_messages_in_total{topic="a\\"b\\\\c\\nd",cluster="c"} 3\n'
        "rocketmq_messages_in_total 2.5\n"
        "# HELP rocketmq_topic_number Topics\n"
        "# TYPE rocketmq_topic_number gauge\n"
        "rocketmq_topic_number 1000000000000000\n"
    )


def test_metrics_with_one_name_have_one_help_line() -> None:
    runs = [Metric("runs_total", Kind.COUNTER, f"Runs of {server}.", [({"server": server}, 1)]) for server in "ab"]
    assert render([runs[0], gauge("x", "X", 1), runs[1]]).decode() == (
        "# HELP runs_total Runs of a.\n"
        "# TYPE runs_total counter\n"
        'runs_total{server="a"} 1\n'
        'runs_total{server="b"} 1\n'
        "# HELP x X\n"
        "# TYPE x gauge\n"
        "x 1\n"
    )


def test_a_histogram() -> None:
    stalls = Histogram((0.01, 0.1, 1))
    for seconds in (0.001, 0.01, 0.011, 0.5, 7):
        stalls.observe(seconds)
    assert render([Metric("stalls", Kind.HISTOGRAM, "Stalls", [({"broker": "b"}, stalls)])]).decode() == (
        "# HELP stalls Stalls\n"
        "# TYPE stalls histogram\n"
        'stalls_bucket{broker="b",le="0.01"} 2\n'
        'stalls_bucket{broker="b",le="0.1"} 3\n'
        'stalls_bucket{broker="b",le="1"} 4\n'
        'stalls_bucket{broker="b",le="+Inf"} 5\n'
        'stalls_sum{broker="b"} 7.522\n'
        'stalls_count{broker="b"} 5\n'
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [(math.inf, "+Inf"), (-math.inf, "-Inf"), (math.nan, "NaN"), (0.1, "0.1"), (1e300, "1e+300")],
)
def test_values(value: float, text: str) -> None:
    assert render([gauge("x", "", value)]).decode().splitlines()[-1].split()[1] == text


def test_a_name_that_is_no_text_can_be_told() -> None:
    assert render([Metric("x", Kind.GAUGE, "", [({"topic": "\udc80"}, 1)])]).endswith(b'x{topic="\\udc80"} 1\n')


def figures() -> Iterator[Metric]:
    yield gauge("rocketmq_topic_number", "Topics", 7)


@pytest.fixture
async def server() -> AsyncIterator[MetricsServer]:
    server = MetricsServer(figures, host="127.0.0.1", port=0)
    await server.start()
    yield server
    await server.stop()


async def ask(port: int, request: bytes) -> tuple[str, dict[str, str], str]:
    """Returns (status line, header, body) of the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = (await asyncio.wait_for(reader.read(), 10)).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    status, *fields = head.split("\r\n")
    return status, dict(field.split(": ", 1) for field in fields), body


async def nothing_told(port: int) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
        return not await asyncio.wait_for(reader.read(), 10)
    except ConnectionError:
        return True
    finally:
        writer.close()


@pytest.mark.parametrize("path", [b"/metrics", b"/metrics?name[]=x"])
@pytest.mark.parametrize("version", [b"HTTP/1.0", b"HTTP/1.1"])
async def test_metrics_are_told(server: MetricsServer, path: bytes, version: bytes) -> None:
    request = b"GET %s %s\r\nHost: x\r\nAccept: */*\r\n\r\n" % (path, version)
    status, header, body = await ask(server.port, request)
    assert status == "HTTP/1.0 200 OK"
    assert header == {"Content-Type": metrics.CONTENT_TYPE, "Content-Length": str(len(body))}
    assert body == render(figures()).decode()


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET / HTTP/1.1", "404 Not Found"),
        (b"GET /metricss HTTP/1.1", "404 Not Found"),
        (b"POST /metrics HTTP/1.1", "405 Method Not Allowed"),
        (b"\x16\x03\x01", "405 Method Not Allowed"),
        (b"", "405 Method Not Allowed"),
    ],
)
async def test_other_requests(server: MetricsServer, request_line: bytes, status: str) -> None:
    assert (await ask(server.port, request_line + b"\r\n\r\n"))[0] == f"HTTP/1.0 {status}"


async def test_head_has_no_body(server: MetricsServer) -> None:
    status, header, body = await ask(server.port, b"HEAD /metrics HTTP/1.1\r\n\r\n")
    assert (status, body) == ("HTTP/1.0 200 OK", "")
    assert header["Content-Length"] == str(len(render(figures())))


async def test_a_request_without_end_is_dropped(server: MetricsServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 20_000)
    with pytest.raises((ConnectionError, EOFError)):
        await asyncio.wait_for(reader.readexactly(1), 10)
    writer.close()


async def test_one_that_says_nothing_is_dropped(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    change_constant(monkeypatch, "metrics.REQUEST_TIMEOUT_S", 0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    with pytest.raises((ConnectionError, EOFError)):
        await asyncio.wait_for(reader.readexactly(1), 10)
    writer.close()


async def test_connections_over_the_limit_are_closed(server: MetricsServer) -> None:
    opened = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(metrics.MAX_CONNECTIONS)]
    for _, writer in opened:
        writer.write(b"GET ")
    assert await nothing_told(server.port)
    for reader, writer in opened:
        writer.write(b"/metrics HTTP/1.0\r\n\r\n")
        assert (await asyncio.wait_for(reader.readline(), 10)).endswith(b"200 OK\r\n")
        writer.close()


async def test_metrics_that_can_t_be_told_end_one_answer_only(caplog: pytest.LogCaptureFixture) -> None:
    fails = [True]

    def failing() -> Iterator[Metric]:
        if fails.pop():
            raise RuntimeError("no figures")
        yield gauge("x", "", 1)

    fails.insert(0, False)
    server = MetricsServer(failing, host="127.0.0.1", port=0)
    await server.start()
    assert (await ask(server.port, b"GET /metrics HTTP/1.0\r\n\r\n"))[0] == "HTTP/1.0 500 Internal Server Error"
    assert "no figures" in caplog.text
    assert (await ask(server.port, b"GET /metrics HTTP/1.0\r\n\r\n"))[0] == "HTTP/1.0 200 OK"
    await server.stop()


async def test_a_taken_port_is_named(server: MetricsServer) -> None:
    with pytest.raises(GantryError, match=f"127.0.0.1:{server.port} for metrics"):
        await MetricsServer(figures, host="127.0.0.1", port=server.port).start()


async def test_stop_does_not_wait_for_who_says_nothing(server: MetricsServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET ")
    await asyncio.wait_for(server.stop(), 2)
    with pytest.raises((ConnectionError, EOFError)):
        await asyncio.wait_for(reader.readexactly(1), 10)
    writer.close()


# -- metrics of a NameServer ----------------------------------------------------------------------------------------


def namesrv_config(directory: Path, metrics_port: int) -> NamesrvConfig:
    return NamesrvConfig(
        listen_port=0,
        bind_address="127.0.0.1",
        metrics_port=metrics_port,
        kv_config_path=directory / "kvConfig.json",
        config_store_path=directory / "namesrv.properties",
    )


async def test_name_server(tmp_path: Path) -> None:
    port = free_port()
    server = NameServer(namesrv_config(tmp_path, port))
    await server.start()
    client = RemotingClient()
    for broker_id in (0, 1):
        header = RegisterBrokerRequestHeader(
            broker_name="broker-a",
            broker_addr=f"127.0.0.1:{broker_id}",
            cluster_name="C",
            broker_id=broker_id,
            ha_server_addr="",
        )
        body = RegisterBrokerBody(TopicConfigTable({name: TopicConfig(name) for name in ("A", "B", "C")}))
        request = RemotingCommand.request(RequestCode.REGISTER_BROKER, header, encode_register_body(body))
        await client.call(server.address, request)
    for topic in ("A", "B", "none"):
        request = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, TopicRequestHeader(topic=topic))
        await client.invoke(server.address, request)
    for code in (9999, 9998):
        await client.invoke(server.address, RemotingCommand.request(code))
    _, _, body_text = await ask(port, b"GET /metrics HTTP/1.0\r\n\r\n")
    lines = body_text.splitlines()
    for line in (
        'rocketmq_namesrv_brokers{cluster="C",role="master"} 1',
        'rocketmq_namesrv_brokers{cluster="C",role="slave"} 1',
        "rocketmq_topic_number 3",
        "rocketmq_namesrv_connections 1",
        "# TYPE gantry_loop_iteration_seconds histogram",
        "# TYPE gantry_loop_lateness_seconds histogram",
        'rocketmq_namesrv_requests_total{request_code="register_broker",response_code="success"} 2',
        'rocketmq_namesrv_requests_total{request_code="get_routeinfo_by_topic",response_code="success"} 2',
        'rocketmq_namesrv_requests_total{request_code="get_routeinfo_by_topic",response_code="topic_not_exist"} 1',
        'rocketmq_namesrv_requests_total{request_code="unknown",response_code="request_code_not_supported"} 2',
    ):
        assert line in lines
    await client.close()
    await server.stop()
    with pytest.raises(ConnectionError):
        await ask(port, b"")


async def test_a_name_server_whose_metrics_port_is_taken_does_not_start(server: MetricsServer, tmp_path: Path) -> None:
    name_server = NameServer(namesrv_config(tmp_path, server.port))
    with pytest.raises(GantryError, match="metricsPort"):
        await name_server.start()
    # The NameServer has released its own port.
    host, port = name_server.address.split(":")
    socket.create_server((host, int(port))).close()


def test_observations_with_a_common_sum() -> None:
    histogram = Histogram((10, 20))
    histogram.observe_together(32, 3)
    histogram.observe_together(21, 2)
    assert list(histogram.buckets()) == [(10, 5), (20, 5), (math.inf, 5)]
    assert histogram.sum == 53
