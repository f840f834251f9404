"""`tls.protocols`, `tls.ciphers` and the passwords of private keys, which no server shows."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from certificates import Pair, make_certificate
from remoting_support import ECHO, calling, frame, serving

from gantrymq.auth.config import AuthConfig
from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig
from gantrymq.cli.main import run
from gantrymq.config import from_properties, parse_properties
from gantrymq.controller.config import ControllerConfig
from gantrymq.controller.server import Controller
from gantrymq.errors import ConfigError
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.namesrv.server import NameServer
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.proxy.config import ProxyConfig
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.tls import TlsConfig, client_context, server_context
from gantrymq.replication.config import ReplicationConfig
from gantrymq.store.config import StoreConfig

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command makes the certificates")

PASSWORD = "open-sesame"
#: The ciphers of TLS 1.3, which Python always uses together.
OF_13 = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_certificate(tmp_path_factory.mktemp("encrypted"), "127.0.0.1", passphrase=PASSWORD)


def limited(**keys: str) -> TlsConfig:
    """Returns the configuration of a client with these values of `tls.protocols` and `tls.ciphers`."""
    return from_properties(TlsConfig, {f"tls.{key}": value for key, value in keys.items()}, source="test")


async def handshake(server: TlsConfig, client: TlsConfig) -> tuple[str | None, str] | None:
    """Returns version and cipher of a connection between the two, or None if the handshake fails."""
    client.tls_enable = True
    async with serving(tls=server) as remoting_server:
        try:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", remoting_server.port, ssl=client_context(client)
            )
            writer.write(frame(ECHO))
            answer = await reader.read(1)
        except OSError:
            return None
        tls: ssl.SSLObject = writer.get_extra_info("ssl_object")
        writer.close()
        cipher = tls.cipher()
        assert cipher is not None
        return (tls.version(), cipher[0]) if answer else None


@pytest.mark.parametrize("self_made", [False, True])
async def test_both_sides_keep_to_their_limits(self_made: bool, certificate: Pair) -> None:
    files = {} if self_made else {"server.certPath": str(certificate.cert), "server.keyPath": str(certificate.key)}
    only_12 = {"protocols": "TLSv1.2", "ciphers": "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"}
    expected = ("TLSv1.2", "ECDHE-ECDSA-AES256-GCM-SHA384")
    assert await handshake(limited(**only_12, **files), TlsConfig()) == expected
    assert await handshake(limited(**files), limited(**only_12)) == expected
    assert await handshake(limited(**only_12, **files), limited(protocols="TLSv1.3")) is None
    assert await handshake(limited(protocols="TLSv1.3", **files), limited(protocols="TLSv1.2")) is None
    unlimited = await handshake(limited(**files), TlsConfig())
    assert unlimited is not None
    assert unlimited[0] == "TLSv1.3"


@pytest.mark.parametrize(
    ("keys", "versions", "ciphers"),
    [
        ({"protocols": "TLSv1.2, TLSv1.3"}, ("TLSv1_2", "TLSv1_3"), None),
        ({"protocols": "TLSv1.3"}, ("TLSv1_3", "TLSv1_3"), None),
        # A version without one of the ciphers is off, as in Java.
        ({"ciphers": ",".join(OF_13)}, ("TLSv1_3", "TLSv1_3"), None),
        ({"ciphers": "ECDHE-RSA-AES128-GCM-SHA256"}, ("TLSv1_2", "TLSv1_2"), {"ECDHE-RSA-AES128-GCM-SHA256"}),
        (
            {
                "ciphers": "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256,TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,"
                f"TLS_RSA_WITH_AES_256_GCM_SHA384,TLS_DHE_RSA_WITH_AES_256_CBC_SHA,{','.join(OF_13)}"
            },
            ("TLSv1_2", "TLSv1_3"),
            {"ECDHE-RSA-AES128-SHA256", "ECDHE-RSA-CHACHA20-POLY1305", "AES256-GCM-SHA384", "DHE-RSA-AES256-SHA"},
        ),
        ({"protocols": "TLSv1.2", "ciphers": f"AES256-SHA,{OF_13[0]}"}, ("TLSv1_2", "TLSv1_2"), {"AES256-SHA"}),
    ],
)
def test_limits(keys: dict[str, str], versions: tuple[str, str], ciphers: set[str] | None) -> None:
    config = limited(**keys)
    config.tls_enable = True
    context = client_context(config)
    assert context is not None
    assert (context.minimum_version.name, context.maximum_version.name) == versions
    if ciphers is not None:
        assert {cipher["name"] for cipher in context.get_ciphers()} - set(OF_13) == ciphers


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"protocols": "TLSv1.1"}, r"tls\.protocols: 'TLSv1\.1' must be TLSv1\.2 or TLSv1\.3"),
        ({"ciphers": "TLS_RSA_WITH_SECRET_42"}, r"tls\.ciphers: 'TLS_RSA_WITH_SECRET_42' is unknown"),
        ({"ciphers": "AES256-SHA,ALL"}, r"tls\.ciphers: 'ALL' is unknown"),
        ({"ciphers": "AES256-SHA,AES128-SHA:@SECLEVEL=0"}, r"SECLEVEL=0' is unknown"),
        ({"ciphers": OF_13[0]}, rf"add {OF_13[1]}, {OF_13[2]}"),
        ({"ciphers": "AES256-SHA", "protocols": "TLSv1.3"}, r"none of them works with tls\.protocols=TLSv1\.3"),
    ],
)
def test_invalid_limits(keys: dict[str, str], message: str) -> None:
    config = limited(**keys)
    with pytest.raises(ConfigError, match=message):
        server_context(config)
    config.tls_enable = True
    with pytest.raises(ConfigError, match=message):
        client_context(config)


# -- passwords ------------------------------------------------------------------------------------------------------


async def test_encrypted_keys_are_opened(encrypted: Pair) -> None:
    server = TlsConfig(
        tls_server_cert_path=encrypted.cert, tls_server_key_path=encrypted.key, tls_server_key_password=PASSWORD
    )
    client = TlsConfig(
        tls_client_cert_path=encrypted.cert, tls_client_key_path=encrypted.key, tls_client_key_password=PASSWORD
    )
    assert await handshake(server, client) is not None
    assert PASSWORD not in repr(server) + repr(client)


@pytest.mark.parametrize(
    ("password", "message"),
    [
        (None, r"the key is encrypted: set tls\.server\.keyPassword"),
        ("", r"the key is encrypted: set tls\.server\.keyPassword"),
        ("wrong-sesame", r"the key can't be decrypted: check tls\.server\.keyPassword"),
        ("sesame" * 1000, r"tls\.server\.keyPassword: .*1024"),
    ],
)
def test_wrong_passwords(password: str | None, message: str, encrypted: Pair) -> None:
    config = TlsConfig(
        tls_server_cert_path=encrypted.cert, tls_server_key_path=encrypted.key, tls_server_key_password=password
    )
    with pytest.raises(ConfigError, match=message) as error:
        server_context(config)
    assert "sesame" not in str(error.value)


def test_errors_have_the_keys_of_the_proxy(encrypted: Pair) -> None:
    config = ProxyConfig(tls_server_cert_path=encrypted.cert, tls_server_key_path=encrypted.key)
    with pytest.raises(ConfigError, match=r"^tlsCertPath=.*, tlsKeyPath=.*: set tlsKeyPassword$"):
        server_context(config)


def test_a_password_with_an_invalid_escape_is_not_in_the_error() -> None:
    with pytest.raises(ConfigError, match=r"line 1: .*four hexadecimal") as error:
        parse_properties("tls.server.keyPassword=sesame\\u1", source="broker.conf")
    assert "sesame" not in str(error.value)


def name_server(tmp_path: Path, keys: dict[str, str]) -> NameServer:
    keys |= {"kvConfigPath": str(tmp_path / "kv.json"), "configStorePath": str(tmp_path / "namesrv.properties")}
    return NameServer(from_properties(NamesrvConfig, keys, source="test"), keys)


def broker(tmp_path: Path, keys: dict[str, str]) -> Broker:
    config = from_properties(BrokerConfig, keys, source="test")
    config.store = StoreConfig(tmp_path / "store")
    config.replication, config.auth = ReplicationConfig(ha_listen_port=0), AuthConfig()
    return Broker(config)


def controller(tmp_path: Path, keys: dict[str, str]) -> Controller:
    keys |= {"controllerStorePath": str(tmp_path), "configStorePath": str(tmp_path / "controller.properties")}
    return Controller(from_properties(ControllerConfig, keys, source="test"), keys)


@pytest.mark.parametrize(
    ("new_server", "get", "update"),
    [
        (name_server, RequestCode.GET_NAMESRV_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG),
        (broker, RequestCode.GET_BROKER_CONFIG, RequestCode.UPDATE_BROKER_CONFIG),
        (controller, RequestCode.GET_CONTROLLER_CONFIG, RequestCode.UPDATE_CONTROLLER_CONFIG),
    ],
)
async def test_no_request_reads_or_changes_a_password(
    new_server: Callable[[Path, dict[str, str]], NameServer | Broker | Controller],
    get: int,
    update: int,
    encrypted: Pair,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "gantrymq")
    server = new_server(
        tmp_path,
        {
            "listenPort": "0",
            "tls.server.certPath": str(encrypted.cert),
            "tls.server.keyPath": str(encrypted.key),
            "tls.server.keyPassword": PASSWORD,
        },
    )
    await server.start()
    try:
        async with calling() as client:
            shown = await _response(client, server.address, get, b"")
            assert b"tls.server.keyPath" in shown.body
            assert b"assword" not in shown.body
            for value in (PASSWORD, "new-sesame"):
                refused = await _response(client, server.address, update, f"tls.server.keyPassword={value}".encode())
                assert refused.code == ResponseCode.NO_PERMISSION
                assert refused.remark is not None
                assert "sesame" not in refused.remark
    finally:
        await server.stop()
    assert "sesame" not in caplog.text


async def _response(client: RemotingClient, server: str, code: int, body: bytes) -> RemotingCommand:
    connection = await client.connection(server)
    return await connection.invoke(RemotingCommand.request(code, body=body))


@pytest.mark.parametrize("command", ["namesrv", "broker", "controller", "proxy"])
def test_print_config_omits_passwords(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = {"tls.client.keyPassword": PASSWORD, "tls.ciphers": "AES256-SHA"}
    keys["tlsKeyPassword" if command == "proxy" else "tls.server.keyPassword"] = PASSWORD
    file = tmp_path / ("rmq-proxy.json" if command == "proxy" else "server.conf")
    lines = "".join(f"{key}={value}\n" for key, value in keys.items())
    file.write_text(json.dumps(keys) if command == "proxy" else lines)
    assert run([command, "-c", str(file), "--printConfig"]) == 0
    captured = capsys.readouterr()
    assert "tls.ciphers=AES256-SHA" in captured.out
    assert PASSWORD not in captured.out + captured.err
    assert "not used here" not in captured.err
