"""TLS modes of a server, its certificates and their replacement, with files created by openssl."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop
from certificates import Pair, make_certificate
from constants import change_constant
from other_end import other_end
from remoting_support import ECHO, address, calling, frame, peer_of, serving
from wait_until import until

from gantrymq.config import from_properties, to_properties
from gantrymq.errors import ConfigError, ConnectFailed, RemotingError
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.connection import Connection, Reply
from gantrymq.remoting.listener import ListenOptions
from gantrymq.remoting.server import RemotingServer
from gantrymq.remoting.time_slices import SLICE_S
from gantrymq.remoting.tls import ClientAuth, TlsConfig, TlsMode, client_context, server_context

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command makes the certificates")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    directory = tmp_path_factory.mktemp("made")
    return {name: make_certificate(directory, name) for name in ("first", "second", "client", "stranger")}


@pytest.fixture
def config(made: dict[str, Pair], tmp_path: Path) -> TlsConfig:
    """A TLS configuration whose certificate and key are copies that the test can change."""
    shutil.copy(made["first"].cert, tmp_path / "cert.pem")
    shutil.copy(made["first"].key, tmp_path / "key.pem")
    return TlsConfig(tls_server_cert_path=tmp_path / "cert.pem", tls_server_key_path=tmp_path / "key.pem")


def trusting(*pairs: Pair, own: Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    for pair in pairs:
        context.load_verify_locations(pair.cert)
    if own is not None:
        context.load_cert_chain(*own)
    return context


async def answered(server: RemotingServer, context: ssl.SSLContext | None) -> bool:
    """Returns true if a new client gets a response."""
    async with calling(ssl_context=context) as client:
        try:
            return (await client.call(address(server), RemotingCommand.request(ECHO, body=b"x"))).body == b"x"
        except RemotingError:
            return False


def open_files() -> int:
    return len(os.listdir("/dev/fd"))


@pytest.mark.parametrize(
    ("mode", "takes_plain", "takes_tls"),
    [(TlsMode.DISABLED, True, False), (TlsMode.PERMISSIVE, True, True), (TlsMode.ENFORCING, False, True)],
)
async def test_modes(
    mode: TlsMode, takes_plain: bool, takes_tls: bool, config: TlsConfig, made: dict[str, Pair]
) -> None:
    async with serving(tls=replace(config, tls_server_mode=mode)) as server:
        for _ in range(2):
            assert await answered(server, None) is takes_plain
            assert await answered(server, trusting(made["first"])) is takes_tls
        await until(lambda: not server.connections)


def test_both_kinds_on_asyncio_s_own_loop(config: TlsConfig, made: dict[str, Pair]) -> None:
    async def both() -> None:
        async with serving(tls=config) as server:
            assert await answered(server, None)
            assert await answered(server, trusting(made["first"]))
            async with peer_of(server):
                await server.stop()

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(both())


@pytest.mark.parametrize("loop_factory", [asyncio.SelectorEventLoop, uvloop.new_event_loop])
@pytest.mark.parametrize("over_tls", [True, False])
def test_requests_that_take_several_turns_of_either_loop(
    over_tls: bool, loop_factory: Callable[[], asyncio.AbstractEventLoop], config: TlsConfig, made: dict[str, Pair]
) -> None:
    def slow(connection: Connection, request: RemotingCommand) -> Reply:
        time.sleep(1.1 * SLICE_S)
        return RemotingCommand.response(body=request.body)

    async def all_at_once() -> None:
        context = trusting(made["first"]) if over_tls else None
        async with serving({7: slow}, tls=config) as server, calling(ssl_context=context) as client:
            for size in (10, 100_000):
                requests = [RemotingCommand.request(7, body=b"%d" % n * size) for n in range(10)]
                answers = await asyncio.gather(*(client.call(address(server), request) for request in requests))
                assert [answer.body for answer in answers] == [request.body for request in requests]

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(all_at_once())


async def test_a_request_in_single_bytes(config: TlsConfig) -> None:
    async with serving(tls=config) as server, peer_of(server) as peer:
        for byte in frame(ECHO, b"slow", opaque=7):
            await peer.send(bytes([byte]))
        (answer,) = await peer.commands(1)
    assert (answer.opaque, answer.body) == (7, b"slow")


async def test_small_answers_are_not_held_back(config: TlsConfig) -> None:
    async with serving(tls=config) as server, peer_of(server) as peer:
        await peer.send(frame(ECHO))
        await peer.commands(1)
        with other_end(peer.sock) as sock:
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_many_connections_leave_nothing_open(config: TlsConfig, made: dict[str, Pair]) -> None:
    async with serving(tls=config) as server:
        await answered(server, None)
        before = open_files()
        contexts = [None, trusting(made["first"]), trusting(made["second"])] * 10
        results = await asyncio.gather(*(answered(server, context) for context in contexts))
        assert results == [True, True, False] * 10
        await until(lambda: not server.connections)
        await until(lambda: open_files() <= before)


# -- a self-made certificate -------------------------------------------------------------------------------------------

BOTH_MAKERS = pytest.mark.parametrize("maker", ["cryptography", "openssl"])


def use(maker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if maker == "openssl":
        monkeypatch.setitem(sys.modules, "cryptography", None)
    else:
        monkeypatch.setenv("PATH", "")


@BOTH_MAKERS
async def test_a_server_without_a_certificate_makes_one(
    maker: str, made: dict[str, Pair], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    use(maker, monkeypatch)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    unchecked = client_context(TlsConfig(tls_enable=True))
    async with serving(tls=TlsConfig()) as server:
        assert await answered(server, None)
        assert not caplog.records
        # Concurrent clients get the same certificate.
        assert await asyncio.gather(*(answered(server, unchecked) for _ in range(5))) == [True] * 5
        assert len([record for record in caplog.records if "proves nothing" in record.getMessage()]) == 1
        assert unchecked is not None
        first = await certificate_of(server, unchecked)
        assert first == await certificate_of(server, unchecked)
        # A client that verifies certificates rejects it.
        assert not await answered(server, trusting(made["first"]))
        assert await answered(server, None)
    async with serving(tls=TlsConfig()) as another:
        assert await certificate_of(another, unchecked) != first
    assert os.listdir(tmp_path) == []


async def test_a_server_that_can_make_no_certificate_is_plain(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gantrymq.remoting")
    monkeypatch.setitem(sys.modules, "cryptography", None)
    monkeypatch.setenv("PATH", "")
    async with serving(tls=TlsConfig()) as server:
        for _ in range(2):
            assert not await answered(server, client_context(TlsConfig(tls_enable=True)))
            assert await answered(server, None)
    (line,) = [record.getMessage() for record in caplog.records if "there is no certificate" in record.getMessage()]
    assert "gantrymq[tls]" in line


@pytest.mark.parametrize(
    "change",
    [
        {"tls_test_mode_enable": False},
        {"tls_server_mode": TlsMode.DISABLED},
        {"tls_server_need_client_auth": ClientAuth.REQUIRE},
    ],
)
async def test_when_no_certificate_is_made(change: dict[str, Any]) -> None:
    async with serving(tls=replace(TlsConfig(), **change)) as server:
        assert not await answered(server, client_context(TlsConfig(tls_enable=True)))
        assert await answered(server, None)


async def test_a_given_certificate_counts_in_test_mode(config: TlsConfig, made: dict[str, Pair]) -> None:
    assert config.tls_test_mode_enable
    async with serving(tls=config) as server:
        assert await certificate_of(server, trusting(made["first"])) == der(made["first"])


# -- slow handshakes ------------------------------------------------------------------------------------------------


async def test_a_silent_connection_is_closed_in_time(config: TlsConfig) -> None:
    async with serving(tls=config, max_idle_s=0.05) as server, peer_of(server) as peer:
        await peer.closed_by_other()


async def test_a_silent_connection_is_closed_by_stop(config: TlsConfig) -> None:
    async with serving(tls=config) as server, peer_of(server) as peer, peer_of(server) as begun:
        await begun.send(b"\x16")
        assert await answered(server, None)
        await server.stop()
        await peer.closed_by_other()
        await begun.closed_by_other()


async def test_a_handshake_that_stops_is_given_up(config: TlsConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    change_constant(monkeypatch, "tls_detection.HANDSHAKE_TIMEOUT_S", 0.05)
    async with serving(tls=config) as server, peer_of(server) as peer:
        await peer.send(b"\x16\x03\x01")
        await peer.closed_by_other()
        assert not server.connections


async def test_a_peer_that_leaves_before_its_first_byte(config: TlsConfig) -> None:
    async with serving(tls=config) as server:
        async with peer_of(server):
            pass
        assert await answered(server, None)


# -- client certificates --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("auth", "without", "trusted", "untrusted"),
    [
        (ClientAuth.NONE, True, True, True),
        (ClientAuth.OPTIONAL, True, True, False),
        (ClientAuth.REQUIRE, False, True, False),
    ],
)
async def test_certificates_of_clients(
    auth: ClientAuth, without: bool, trusted: bool, untrusted: bool, config: TlsConfig, made: dict[str, Pair]
) -> None:
    config = replace(config, tls_server_need_client_auth=auth, tls_server_trust_cert_path=made["client"].cert)
    async with serving(tls=config) as server:
        assert await answered(server, trusting(made["first"])) is without
        assert await answered(server, trusting(made["first"], own=made["client"])) is trusted
        assert await answered(server, trusting(made["first"], own=made["stranger"])) is untrusted


async def test_what_a_client_s_configuration_checks(config: TlsConfig, made: dict[str, Pair]) -> None:
    assert client_context(TlsConfig()) is None
    trusted = replace(config, tls_enable=True, tls_client_auth_server=True)
    async with serving(tls=config) as server:
        assert await answered(server, client_context(TlsConfig(tls_enable=True)))
        right = replace(trusted, tls_client_trust_cert_path=made["first"].cert)
        assert await answered(server, client_context(right))
        wrong = replace(trusted, tls_client_trust_cert_path=made["second"].cert)
        assert not await answered(server, client_context(wrong))
        assert not await answered(server, client_context(trusted))


@pytest.mark.parametrize(
    ("names", "host", "is_right"),
    [
        ("IP:127.0.0.1", "127.0.0.1", True),
        ("IP:127.0.0.2", "127.0.0.1", False),
        ("DNS:localhost", "localhost", True),
        ("IP:127.0.0.1", "localhost", False),
        ("DNS:localhost", "127.0.0.1", False),
        ("DNS:broker.example.org", "127.0.0.1", False),
    ],
)
async def test_a_client_checks_the_name_too(names: str, host: str, is_right: bool, tmp_path: Path) -> None:
    pair = make_certificate(tmp_path, "named", names=names)
    config = TlsConfig(tls_server_cert_path=pair.cert, tls_server_key_path=pair.key)
    checking = TlsConfig(tls_enable=True, tls_client_auth_server=True, tls_client_trust_cert_path=pair.cert)

    async def called(config: TlsConfig) -> bool:
        async with calling(ssl_context=client_context(config)) as client:
            try:
                await client.call(f"{host}:{server.port}", RemotingCommand.request(ECHO))
            except ConnectFailed as e:
                return "certificate is not valid for" not in str(e)
            return True

    async with serving(tls=config) as server:
        assert await called(checking) is is_right
        # As in Java.
        assert await called(replace(checking, tls_client_check_server_name=False))
        assert await called(TlsConfig(tls_enable=True))


async def test_a_client_shows_its_certificate(config: TlsConfig, made: dict[str, Pair]) -> None:
    config = replace(
        config, tls_server_need_client_auth=ClientAuth.REQUIRE, tls_server_trust_cert_path=made["client"].cert
    )
    own = TlsConfig(tls_enable=True, tls_client_cert_path=made["client"].cert, tls_client_key_path=made["client"].key)
    async with serving(tls=config) as server:
        assert await answered(server, client_context(own))


# -- replaced certificates ------------------------------------------------------------------------------------------


async def certificate_of(server: RemotingServer, context: ssl.SSLContext) -> bytes | None:
    """Returns the certificate that a new connection gets, in DER."""
    _, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
    certificate: bytes | None = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return certificate


def der(pair: Pair) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pair.cert.read_text())


@pytest.fixture
def quick_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a server look for changed files almost at once."""
    change_constant(monkeypatch, "server_tls.WATCH_INTERVAL_S", 0.01)


@pytest.mark.usefixtures("quick_watch")
async def test_a_replaced_certificate_is_used_while_connections_go_on(
    config: TlsConfig,
    made: dict[str, Pair],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "gantrymq.remoting.server_tls")
    assert config.tls_server_cert_path is not None
    assert config.tls_server_key_path is not None
    context = trusting(made["first"], made["second"])
    async with serving(tls=config) as server, calling(ssl_context=context) as old:
        await old.call(address(server), RemotingCommand.request(ECHO))
        connection = await old.connection(address(server))
        assert await certificate_of(server, context) == der(made["first"])

        # A certificate without its new key: the server keeps the old pair.
        shutil.copy(made["second"].cert, config.tls_server_cert_path)
        await until(lambda: "can't be used" in caplog.text)
        assert await certificate_of(server, context) == der(made["first"])

        # As secret managers do it: a new file replaces the old one.
        incoming = config.tls_server_key_path.with_name("incoming")
        shutil.copy(made["second"].key, incoming)
        incoming.replace(config.tls_server_key_path)
        await until(lambda: "new connections use the changed" in caplog.text)
        assert await certificate_of(server, context) == der(made["second"])
        assert (await old.call(address(server), RemotingCommand.request(ECHO, body=b"still"))).body == b"still"
        assert await old.connection(address(server)) is connection
        assert caplog.text.count("can't be used") == 1


@pytest.mark.usefixtures("quick_watch")
async def test_who_may_connect_changes_with_the_file(config: TlsConfig, made: dict[str, Pair], tmp_path: Path) -> None:
    trust = tmp_path / "trust.pem"
    shutil.copy(made["client"].cert, trust)
    config = replace(config, tls_server_need_client_auth=ClientAuth.REQUIRE, tls_server_trust_cert_path=trust)
    async with serving(tls=config) as server, asyncio.timeout(20):
        assert not await answered(server, trusting(made["first"], own=made["stranger"]))
        shutil.copy(made["stranger"].cert, trust)
        await until(lambda: answered(server, trusting(made["first"], own=made["stranger"])))
        assert not await answered(server, trusting(made["first"], own=made["client"]))


# -- configuration --------------------------------------------------------------------------------------------------


def test_java_s_keys() -> None:
    text = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": "/etc/rocketmq/server.pem",
        "tls.server.keyPath": "/etc/rocketmq/server.key",
        "tls.server.trustCertPath": "/etc/rocketmq/ca.pem",
        "tls.server.need.client.auth": "require",
        "tls.enable": "true",
        "tls.client.authServer": "true",
    }
    config = from_properties(TlsConfig, text, source="test")
    assert config.tls_server_mode is TlsMode.ENFORCING
    assert config.tls_server_need_client_auth is ClientAuth.REQUIRE
    assert to_properties(config) == text | {"tls.test.mode.enable": "true", "tls.client.checkServerName": "true"}
    with pytest.raises(ConfigError, match=r"tls\.server\.mode=sometimes: must be one of disabled, permissive, enforc"):
        from_properties(TlsConfig, {"tls.server.mode": "sometimes"}, source="test")


def test_files_that_can_t_be_used(config: TlsConfig, made: dict[str, Pair], tmp_path: Path) -> None:
    encrypted = make_certificate(tmp_path, "encrypted", passphrase="secret")
    text = tmp_path / "text"
    text.write_text("no certificate")
    for change, message in (
        ({"tls_server_mode": TlsMode.ENFORCING, "tls_server_cert_path": None}, "enforcing needs tls.server.certPath"),
        ({"tls_server_cert_path": tmp_path / "gone"}, "certPath=.*gone.*No such file"),
        ({"tls_server_key_path": tmp_path / "gone"}, "keyPath=.*gone.*No such file"),
        ({"tls_server_key_path": None}, r"\(in tls\.server\.certPath\)"),
        ({"tls_server_cert_path": text}, "certPath=.*text"),
        ({"tls_server_key_path": made["second"].key}, "(?i)mismatch"),
        (
            {"tls_server_cert_path": encrypted.cert, "tls_server_key_path": encrypted.key},
            "the key is encrypted: set tls.server.keyPassword",
        ),
        ({"tls_server_need_client_auth": ClientAuth.REQUIRE}, "require needs tls.server.trustCertPath"),
        (
            {"tls_server_need_client_auth": ClientAuth.OPTIONAL, "tls_server_trust_cert_path": text},
            "trustCertPath=.*text",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            server_context(replace(config, **change))  # type: ignore[arg-type]


async def test_a_server_does_not_start_with_them(config: TlsConfig, tmp_path: Path) -> None:
    server = RemotingServer({}, ListenOptions("127.0.0.1"), tls=replace(config, tls_server_key_path=tmp_path / "gone"))
    with pytest.raises(ConfigError, match="gone"):
        await server.start()
    await server.stop()


async def test_a_client_does_not_go_on_with_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tls\.client\.trustCertPath=.*gone"):
        client_context(
            TlsConfig(tls_enable=True, tls_client_auth_server=True, tls_client_trust_cert_path=tmp_path / "gone")
        )


async def test_a_stranger_is_told(config: TlsConfig, made: dict[str, Pair]) -> None:
    async with serving(tls=config) as server, calling(ssl_context=trusting(made["second"])) as client:
        with pytest.raises(ConnectFailed, match="certificate"):
            await client.call(address(server), RemotingCommand.request(ECHO))
