"""Start and stop of a NameServer.

The tests cover the grace period at the start, pending requests at the stop, the log, and TLS.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import ssl
from pathlib import Path
from urllib.request import urlopen

import pytest
from constants import change_constant
from namesrv_support import broker_header, registration, topics_body
from ports import free_port
from wait_until import until

from gantrymq.cli.main import run
from gantrymq.config import parse_properties
from gantrymq.errors import BrokerError, ConfigError, RefusalReason, RemotingError
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.namesrv.server import NameServer
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.frame_reader import FrameReader
from gantrymq.protocol.headers.namesrv import PutKVConfigRequestHeader
from gantrymq.protocol.headers.topic import TopicRequestHeader
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import Connection
from gantrymq.remoting.listener import ListenOptions
from gantrymq.remoting.server import RemotingServer
from gantrymq.remoting.tls import TlsMode


def route_request(topic: str = "A") -> RemotingCommand:
    return RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, TopicRequestHeader(topic=topic))


async def test_requests_that_have_arrived_are_answered_at_the_stop(server: NameServer) -> None:
    host, port = server.address.split(":")
    loop = asyncio.get_running_loop()
    with socket.socket() as sock:
        sock.setblocking(False)
        await loop.sock_connect(sock, (host, int(port)))
        await loop.sock_sendall(sock, route_request().encode())
        assert await asyncio.wait_for(loop.sock_recv(sock, 1 << 20), 10)
        # There is no await before the stop, so the server cannot have read any of these requests.
        requests = b"".join(route_request().encode() for _ in range(200))
        assert sock.send(requests) == len(requests)
        async with asyncio.timeout(10):
            await server.stop()
        reader, answers = FrameReader(), []
        while data := await asyncio.wait_for(loop.sock_recv(sock, 1 << 20), 10):
            answers += reader.feed(data)
    assert [answer.code for answer in answers] == [ResponseCode.TOPIC_NOT_EXIST] * 200


async def test_a_busy_client_does_not_keep_a_server_from_stopping(server: NameServer, client: RemotingClient) -> None:
    async def ask_on() -> None:
        while True:
            await client.invoke(server.address, route_request())

    asking = asyncio.create_task(ask_on())
    await until(lambda: client.is_connected(server.address))
    await asyncio.wait_for(server.stop(), 10)
    with pytest.raises(RemotingError):
        await asyncio.wait_for(asking, 10)


async def test_brokers_hear_nothing_of_each_other_from_a_server_that_stops(
    server: NameServer, client: RemotingClient, config: NamesrvConfig
) -> None:
    config.notify_min_broker_id_changed = True
    told: list[RemotingCommand] = []

    def notified(connection: Connection, request: RemotingCommand) -> None:
        told.append(request)

    broker = RemotingServer({RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: notified}, ListenOptions("127.0.0.1"))
    await broker.start()
    slave = f"127.0.0.1:{broker.port}"
    body = topics_body("A", "B")
    await client.call(server.address, registration(broker_header("a", slave, broker_id=1, acting=True), body))
    master = RemotingClient()
    await master.call(server.address, registration(broker_header("a", "127.0.0.1:1", acting=True), body))
    await until(lambda: len(told) == 1)
    await server.stop()
    assert server.table.cluster_info().broker_addr_table == {}
    await broker.drain()
    assert len(told) == 1
    await master.close()
    await broker.stop()


async def test_no_route_in_the_first_seconds(config: NamesrvConfig, client: RemotingClient) -> None:
    config.need_wait_for_service = True
    config.wait_seconds_for_service = 1
    server = NameServer(config)
    await server.start()
    await client.call(server.address, registration(broker_header(), topics_body("A", "B")))
    with pytest.raises(BrokerError, match="name server not ready") as raised:
        await client.call(server.address, route_request())
    assert raised.value.reason is RefusalReason.NAME_SERVER_NOT_READY

    async def is_found() -> bool:
        return (await client.invoke(server.address, route_request())).code == ResponseCode.SUCCESS

    await until(is_found)
    await server.stop()


async def test_the_kv_configuration_is_logged_again_and_again(
    config: NamesrvConfig,
    client: RemotingClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    change_constant(monkeypatch, "server.KV_LOG_DELAY_S", 0.02)
    change_constant(monkeypatch, "server.KV_LOG_INTERVAL_S", 0.02)
    caplog.set_level(logging.INFO, "gantrymq.namesrv.server")
    server = NameServer(config)
    await server.start()
    put = PutKVConfigRequestHeader(namespace="ORDER_TOPIC_CONFIG", key="orders", value="broker-a:8")
    await client.call(server.address, RemotingCommand.request(RequestCode.PUT_KV_CONFIG, put))
    await until(lambda: caplog.text.count("KV config ORDER_TOPIC_CONFIG/orders: broker-a:8") >= 2)
    await server.stop()


def raising(*args: object) -> None:
    raise RuntimeError("it can't")


@pytest.mark.parametrize(
    ("part", "method"),
    [
        ("_server", "bind"),
        ("_kv_config", "load"),
        ("_taking_away", "start"),
        ("_server", "serve"),
        ("_metrics", "start"),
        ("_scanning", "start"),
        ("_logging", "start"),
    ],
)
async def test_a_start_that_fails_half_way_leaves_nothing_behind(
    config: NamesrvConfig, monkeypatch: pytest.MonkeyPatch, part: str, method: str
) -> None:
    config.listen_port, config.metrics_port = free_port(), free_port()
    server = NameServer(config)
    attributes = set(vars(server))
    monkeypatch.setattr(getattr(server, part), method, raising)
    with pytest.raises(RuntimeError, match="it can't"):
        await server.start()
    await server.stop()
    await server.stop()
    assert set(vars(server)) == attributes
    # Both ports are free.
    again = NameServer(config)
    await again.start()
    assert set(vars(again)) == attributes
    await again.stop()


@pytest.mark.parametrize("part", ["_changes", "_long_requests", "notifications"])
async def test_a_part_that_raises_keeps_no_other_from_stopping(
    config: NamesrvConfig, client: RemotingClient, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    server = NameServer(config)
    monkeypatch.setattr(getattr(server, part), "stop", raising)
    await server.start()
    await client.call(server.address, registration(broker_header(), topics_body("A", "B")))
    with pytest.raises(RuntimeError, match="it can't"):
        await server.stop()
    assert server.table.cluster_info().broker_addr_table == {}
    with socket.socket() as sock:
        assert sock.connect_ex(("127.0.0.1", int(server.address.rpartition(":")[2])))
    await server.stop()


async def test_jobs_survive_errors_and_tell_of_them(
    config: NamesrvConfig, client: RemotingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.metrics_port = free_port()
    server = NameServer(config)
    await server.start()
    job = server.jobs
    with monkeypatch.context() as patch:
        patch.setattr(server.table, "expire", raising)
        await until(lambda: [report.name for report in job.failing()] == ["look for silent brokers"])
        figures = (await asyncio.to_thread(urlopen, f"http://127.0.0.1:{config.metrics_port}/metrics")).read().decode()
    assert re.search(r'^gantry_job_failures_total\{job="look for silent brokers"\} [1-9]', figures, re.MULTILINE)
    await until(lambda: not job.failing())
    # The background task continues.
    await client.call(server.address, registration(broker_header(timeout_ms=50), topics_body("A", "B")))
    await until(lambda: server.table.route("A") is None)
    await server.stop()


def test_printed_configuration_is_the_effective_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "namesrv.properties"
    config.write_text("listenPort = 12345\ntls.server.mode=disabled\nmetricsPort=9090\n")
    assert run(["namesrv", "-c", str(config), "-p"]) == 0
    out = capsys.readouterr().out
    printed = parse_properties(out, source="the output")
    assert printed["listenPort"] == "12345"
    assert printed["tls.server.mode"] == "disabled"
    assert printed["metricsPort"] == "9090"
    assert printed["scanNotActiveBrokerInterval"] == "5000"
    config.write_text(out)
    assert run(["namesrv", "-c", str(config), "-p"]) == 0
    assert capsys.readouterr().out == out


# -- TLS ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def tls_config(config: NamesrvConfig, certificate: tuple[Path, Path]) -> NamesrvConfig:
    config.tls_server_cert_path, config.tls_server_key_path = certificate
    return config


async def test_plain_brokers_and_tls_clients_together(tls_config: NamesrvConfig, client: RemotingClient) -> None:
    server = NameServer(tls_config)
    await server.start()
    await client.call(server.address, registration(broker_header(), topics_body("A", "B")))
    secure = RemotingClient(ssl_context=ssl.create_default_context(cafile=tls_config.tls_server_cert_path))
    assert (await secure.call(server.address, route_request())).body
    # When a TLS connection closes, its broker is removed, too.
    await secure.call(server.address, registration(broker_header("b", "10.0.0.2:1"), topics_body("C", "D")))
    await secure.close()
    await until(lambda: server.table.route("C") is None)
    assert server.table.route("A") is not None
    await server.stop()


async def test_enforcing(tls_config: NamesrvConfig, client: RemotingClient) -> None:
    tls_config.tls_server_mode = TlsMode.ENFORCING
    server = NameServer(tls_config)
    await server.start()
    with pytest.raises(RemotingError):
        await client.call(server.address, route_request())
    await server.stop()


async def test_enforcing_without_a_certificate_does_not_start(config: NamesrvConfig) -> None:
    config.tls_server_mode = TlsMode.ENFORCING
    server = NameServer(config)
    with pytest.raises(ConfigError, match=r"tls\.server\.certPath"):
        await server.start()
    await server.stop()


async def test_tls_is_not_changed_over_the_network(server: NameServer, client: RemotingClient) -> None:
    request = RemotingCommand.request(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"tls.server.certPath=/tmp/mine.pem\n")
    with pytest.raises(BrokerError, match=r"black list: tls\.server\.certPath"):
        await client.call(server.address, request)
