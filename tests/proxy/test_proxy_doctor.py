"""Findings of `gantry doctor --proxy` about proxies and other servers."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from certificates import Pair
from proxy_support import new_topic

from gantrymq.cli.main import run
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.doctor.finding import Finding, Severity
from gantrymq.errors import ConnectFailed
from gantrymq.protocol.bodies.topic_config import (
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    encode_register_body,
)
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.namesrv import RegisterBrokerRequestHeader
from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.doctor.diagnosis import diagnose_proxy, judge
from gantrymq.proxy.doctor.observation import ProxySeen
from gantrymq.proxy.doctor.proxy_client import Answer, ProxyClient
from gantrymq.proxy.http2 import frames
from gantrymq.proxy.http2.hpack import literal
from gantrymq.proxy.proxy import Proxy
from gantrymq.proxy.v2 import definition_pb2 as pb
from gantrymq.proxy.v2 import service_pb2 as rpc_pb
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.tls import TlsConfig, TlsMode, client_context
from gantrymq.testing.embedded import EmbeddedCluster


def complaints(findings: list[Finding]) -> list[Finding]:
    for finding in findings:
        assert finding.what
        assert bool(finding.why) is bool(finding.remedy) is (finding.severity is not Severity.OK)
    return [finding for finding in findings if finding.severity is not Severity.OK]


def only(findings: list[Finding], severity: Severity = Severity.PROBLEM) -> Finding:
    (finding,) = complaints(findings)
    assert finding.severity is severity
    return finding


@asynccontextmanager
async def proxy_with(name_server: str, **config: Any) -> AsyncIterator[Proxy]:
    ports = {"grpc_server_port": 0, "remoting_listen_port": 0}
    proxy = Proxy(ProxyConfig(namesrv_addr=name_server, bind_address="127.0.0.1", **{**ports, **config}))
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()


# -- proxies --------------------------------------------------------------------------------------------------------


async def test_one_that_is_well(proxy: Proxy, admin: AdminClient) -> None:
    topic = await new_topic(admin, "FIFO")
    findings = await diagnose_proxy(proxy.address, topic)
    assert complaints(findings) == []
    text = "\n".join(finding.what for finding in findings)
    for part in (
        f"proxy {proxy.address} accepts plain and TLS connections; its certificate: CN=gantrymq, until ",
        f"topic {topic} has 2 queues on broker-a and accepts FIFO messages; the query took ",
        "bodies of at most 4194304 bytes, 3 attempts",
        "the proxy reaches broker-a",
    ):
        assert part in text
    # The client has unregistered.
    assert len(proxy.clients) == 0


async def test_without_a_topic(proxy: Proxy) -> None:
    findings = await diagnose_proxy(proxy.address)
    assert complaints(findings) == []
    assert any("its NameServers answer it" in finding.what for finding in findings)


async def test_a_topic_that_isn_t_there(proxy: Proxy) -> None:
    finding = only(await diagnose_proxy(proxy.address, "there_is_none"))
    assert finding.what.startswith("the proxy knows no topic there_is_none")
    assert "gantry admin updateTopic" in finding.remedy


async def test_a_topic_s_name_that_is_none(proxy: Proxy) -> None:
    assert "refuses the topic's name" in only(await diagnose_proxy(proxy.address, "a b")).what


async def test_a_proxy_without_a_name_server() -> None:
    async with proxy_with("127.0.0.1:1") as proxy:
        finding = only(await diagnose_proxy(proxy.address))
    assert finding.what.startswith("the proxy gets no answer of its NameServers")
    assert "namesrvAddr" in finding.remedy


async def test_a_broker_that_the_proxy_does_not_reach() -> None:
    with EmbeddedCluster() as cluster:
        async with AdminClient(cluster.name_server) as admin:
            topic = await new_topic(admin)
        header = RegisterBrokerRequestHeader(
            broker_name="broker-x",
            broker_addr="127.0.0.1:1",
            cluster_name="DefaultCluster",
            broker_id=0,
            ha_server_addr="",
        )
        body = encode_register_body(
            RegisterBrokerBody(TopicConfigTable({name: TopicConfig(name) for name in ("broker-x", topic)}))
        )
        client = RemotingClient()
        await client.call(cluster.name_server, RemotingCommand.request(RequestCode.REGISTER_BROKER, header, body))
        async with proxy_with(cluster.name_server) as proxy:
            findings = await diagnose_proxy(proxy.address, topic)
        # The registration ends with the connection.
        await client.close()
    finding = only(findings)
    assert finding.what.startswith("the proxy does not reach broker-x: ")
    assert "brokerIP1" in finding.remedy
    assert any(each.what.startswith("the proxy reaches broker-a") for each in findings)


async def test_a_proxy_with_tls_alone(cluster: EmbeddedCluster, certificate: Pair) -> None:
    config = {
        "tls_server_mode": TlsMode.ENFORCING,
        "tls_server_cert_path": certificate.cert,
        "tls_server_key_path": certificate.key,
    }
    async with proxy_with(cluster.name_server, **config) as proxy:
        findings = await diagnose_proxy(proxy.address)
        assert complaints(findings) == []
        assert "accepts only TLS connections; its certificate: CN=127.0.0.1, until " in findings[0].what
        trusting = client_context(
            TlsConfig(tls_enable=True, tls_client_auth_server=True, tls_client_trust_cert_path=certificate.cert)
        )
        assert complaints(await diagnose_proxy(proxy.address, ssl_context=trusting)) == []
        doubting = client_context(TlsConfig(tls_enable=True, tls_client_auth_server=True))
        finding = only(await diagnose_proxy(proxy.address, ssl_context=doubting))
    assert "no trusted CA signed the server's certificate" in finding.why


async def test_a_proxy_without_tls(cluster: EmbeddedCluster) -> None:
    async with proxy_with(cluster.name_server, tls_test_mode_enable=False) as proxy:
        finding = only(await diagnose_proxy(proxy.address), Severity.WARNING)
        assert finding.what.startswith(f"proxy {proxy.address} accepts no TLS")
        given = client_context(TlsConfig(tls_enable=True))
        assert "can't be used" in only(await diagnose_proxy(proxy.address, ssl_context=given)).what


async def test_routes_that_name_a_port_where_nobody_is(proxy: Proxy, admin: AdminClient) -> None:
    """As for a container whose port is published under another number."""
    topic = await new_topic(admin)

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = proxy.address.rpartition(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                target.write(data)
            target.close()

        await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer), return_exceptions=True)

    async with await asyncio.start_server(pass_on, "127.0.0.1", 0) as server:
        here = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        findings = await diagnose_proxy(here, topic)
        assert complaints(findings) == []
        assert f"routes name {proxy.address} as the proxy, which answers, too" in [each.what for each in findings]
    seen = ProxySeen(here, topic, None, False, certificate=None, over_tls=None)
    seen.named[proxy.address] = ConnectFailed("can't connect", proxy.address)
    seen.over_tls = ConnectFailed("no TLS", here)
    seen.route = Answer(rpc_pb.QueryRouteResponse(status=pb.Status(code=pb.OK)), 0, "", 1.0)
    seen.settings = Answer(rpc_pb.TelemetryCommand(status=pb.Status(code=pb.OK)), 0, "", 1.0)
    finding = next(each for each in complaints(judge(seen)) if each.severity is Severity.PROBLEM)
    assert finding.what.startswith(f"routes name {proxy.address} as the proxy, which can't be used from here")
    assert "useEndpointPortFromRequest" in finding.remedy


# -- servers that are not proxies -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("127.0.0.1:1", "nobody listens"),
        ("nowhere.invalid:8081", "can't resolve the host name"),
        ("127.0.0.1", "an address is HOST:PORT"),
    ],
)
async def test_nobody_there(address: str, why: str) -> None:
    finding = only(await diagnose_proxy(address))
    assert finding.what.startswith(f"proxy {address} can't be used")
    assert why in finding.why


async def test_a_name_server_s_address(cluster: EmbeddedCluster) -> None:
    finding = only(await diagnose_proxy(cluster.name_server))
    assert "doesn't begin as a proxy does" in finding.why
    assert "a NameServer's 9876" in finding.remedy


async def test_one_that_hangs() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert "can't be used" in only(await diagnose_proxy(address, timeout_ms=50)).what


Answers = Callable[[int, int, int, bytes], bytes]


@asynccontextmanager
async def http2_server(answer: Answers) -> AsyncIterator[str]:
    """Starts a server that responds with `answer` for a frame's type, flags, stream and payload."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            assert await reader.readexactly(len(frames.PREFACE)) == frames.PREFACE
            writer.write(frames.settings({}))
            while True:
                length, flags, stream = frames.read_header(await reader.readexactly(9), 0)
                writer.write(answer(length & 0xFF, flags, stream, await reader.readexactly(length >> 8)))
        except (asyncio.IncompleteReadError, AssertionError, OSError):
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


def headers(stream: int, *fields: tuple[bytes, bytes], flags: int = frames.END_HEADERS) -> bytes:
    block = b"".join(literal(name, value) for name, value in fields)
    return frames.frame_head(frames.HEADERS, flags, stream, len(block)) + block


GRPC = ((b":status", b"200"), (b"content-type", b"application/grpc"))


async def test_a_web_server() -> None:
    def answer(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        if kind != frames.HEADERS:
            return b""
        fields = ((b":status", b"404"), (b"content-type", b"text/html"))
        return headers(stream, *fields, flags=frames.END_HEADERS | frames.END_STREAM)

    async with http2_server(answer) as address:
        problems = [each for each in complaints(await diagnose_proxy(address)) if each.severity is Severity.PROBLEM]
    assert "HTTP status 404, content type text/html" in problems[0].what


async def test_another_grpc_server() -> None:
    def answer(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        if kind != frames.HEADERS:
            return b""
        status = ((b"grpc-status", b"12"), (b"grpc-message", b"no%20such%20method"))
        return headers(stream, *GRPC, *status, flags=frames.END_HEADERS | frames.END_STREAM)

    async with http2_server(answer) as address:
        problems = [each for each in complaints(await diagnose_proxy(address)) if each.severity is Severity.PROBLEM]
    assert "answers with gRPC's UNIMPLEMENTED: no such method" in problems[0].what


async def test_what_passes_no_streams_on() -> None:
    """The server responds to complete calls, but delays streams until their end."""
    status = rpc_pb.QueryRouteResponse(status=pb.Status(code=pb.TOPIC_NOT_FOUND)).SerializeToString()
    framed = b"\x00" + len(status).to_bytes(4, "big") + status

    def answer(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        if kind != frames.DATA or not flags & frames.END_STREAM:
            return b""
        return headers(stream, *GRPC) + frames.frame_head(frames.DATA, 0, stream, len(framed)) + framed

    async with http2_server(answer) as address:
        findings = await diagnose_proxy(address, timeout_ms=2000)
    problems = [each for each in complaints(findings) if each.severity is Severity.PROBLEM]
    assert "nothing comes on a stream" in problems[0].what
    assert "load balancer" in problems[0].why


async def test_an_answer_in_pieces() -> None:
    """Header fields in a CONTINUATION frame, padded data, pings, and fields of other calls in between."""
    status = rpc_pb.QueryRouteResponse(status=pb.Status(code=pb.OK, message="x" * 300)).SerializeToString()
    framed = b"\x00" + len(status).to_bytes(4, "big") + status
    pongs: list[bytes] = []

    def data(stream: int, payload: bytes, padding: int = 0) -> bytes:
        if not padding:
            return frames.frame_head(frames.DATA, 0, stream, len(payload)) + payload
        payload = bytes((padding,)) + payload + b"\x00" * padding
        return frames.frame_head(frames.DATA, frames.PADDED, stream, len(payload)) + payload

    def answer(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        if kind == frames.PING:
            pongs.append(payload)
        if kind != frames.DATA:
            return b""
        first, second = (literal(*field) for field in GRPC)
        return (
            frames.frame_head(frames.HEADERS, 0, stream, len(first))
            + first
            + frames.frame_head(frames.CONTINUATION, frames.END_HEADERS, stream, len(second))
            + second
            + frames.ping(b"12345678")
            + frames.window_update(0, 100)
            + headers(99, (b"x", b"y"))
            + data(stream, framed[:3])
            + data(stream, framed[3:100], 7)
            + data(stream, framed[100:])
        )

    async with http2_server(answer) as address, ProxyClient(address) as client:
        for _ in range(2):
            response = (await client.call("QueryRoute", rpc_pb.QueryRouteRequest())).response
            assert response.status.message == "x" * 300
    assert pongs


# -- the command ----------------------------------------------------------------------------------------------------


async def test_the_command(proxy: Proxy, cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    async def doctor(*args: str) -> tuple[int, list[dict[str, str]]]:
        code = await asyncio.to_thread(run, ["doctor", "--json", "--proxy", proxy.address, *args])
        return code, json.loads(capsys.readouterr().out)

    code, findings = await doctor()
    assert code == 0
    assert all(proxy.address in each["what"] or "NameServer " not in each["what"] for each in findings)
    code, findings = await doctor("-n", cluster.name_server)
    assert code == 0
    assert any(each["what"].startswith(f"NameServer {cluster.name_server} answers") for each in findings)
    assert any(each["what"].startswith(f"proxy {proxy.address} accepts") for each in findings)
    code, findings = await doctor("there_is_none")
    assert code == 1


async def test_a_group_and_a_proxy(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--proxy", "127.0.0.1:1", "--group", "g"]) == 2
    assert "without --proxy" in re.sub(r"[\s│]+", " ", capsys.readouterr().err)


def test_its_keys_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = tmp_path / "tools.yml"
    keys.write_text("accessKey: root\n")
    assert run(["doctor", "--proxy", "127.0.0.1:1", "--acl-config", str(keys)]) == 1
    assert "needs accessKey and secretKey" in capsys.readouterr().err
