"""Server and client over TLS, with a certificate created for the test."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from remoting_support import ECHO, address, calling, frame, only_connection, peer_of, serving
from wait_until import until

from gantrymq.errors import ConnectFailed, ConnectionLost, RemotingError
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.connection import Connection, Reply
from gantrymq.remoting.tls import TlsConfig, TlsMode


@pytest.fixture
def server_tls(certificate: tuple[Path, Path]) -> TlsConfig:
    cert, key = certificate
    return TlsConfig(tls_server_mode=TlsMode.ENFORCING, tls_server_cert_path=cert, tls_server_key_path=key)


@pytest.fixture
def client_context(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certificate[0])


@pytest.mark.parametrize("size", [0, 100, 15 * 1024 * 1024])
async def test_request_and_response(size: int, server_tls: TlsConfig, client_context: ssl.SSLContext) -> None:
    async with serving(tls=server_tls) as server, calling(ssl_context=client_context) as client:
        answer = await client.call(address(server), RemotingCommand.request(ECHO, body=bytes(size)), timeout_ms=30_000)
    assert answer.body == bytes(size)


async def test_encoded_frames(server_tls: TlsConfig, client_context: ssl.SSLContext) -> None:
    def handler(connection: Connection, request: RemotingCommand) -> Reply:
        response = RemotingCommand.response()
        response.opaque = request.opaque
        return [response.encode_head(8), memoryview(b"01234567")]

    async with (
        serving({7: handler}, tls=server_tls) as server,
        calling(ssl_context=client_context) as client,
    ):
        answers = await asyncio.gather(*(client.call(address(server), RemotingCommand.request(7)) for _ in range(10)))
    assert {answer.body for answer in answers} == {b"01234567"}


async def test_the_server_asks_its_client(server_tls: TlsConfig, client_context: ssl.SSLContext) -> None:
    def on_client(connection: Connection, request: RemotingCommand) -> Reply:
        return RemotingCommand.response(body=b"here")

    async with (
        serving(tls=server_tls) as server,
        calling({40: on_client}, ssl_context=client_context) as client,
    ):
        await client.call(address(server), RemotingCommand.request(ECHO))
        connection = await only_connection(server)
        assert (await connection.invoke(RemotingCommand.request(40))).body == b"here"


async def test_a_certificate_that_is_not_trusted(server_tls: TlsConfig) -> None:
    async with (
        serving(tls=server_tls) as server,
        calling(ssl_context=ssl.create_default_context()) as client,
    ):
        with pytest.raises(ConnectFailed, match="certificate"):
            await client.call(address(server), RemotingCommand.request(ECHO))
        assert not server.connections


async def test_a_plain_client_of_a_tls_server(server_tls: TlsConfig, client_context: ssl.SSLContext) -> None:
    async with serving(tls=server_tls) as server:
        async with calling() as plain:
            with pytest.raises(RemotingError):
                await plain.call(address(server), RemotingCommand.request(ECHO), timeout_ms=5000)
        async with calling(ssl_context=client_context) as client:
            assert (await client.call(address(server), RemotingCommand.request(ECHO, body=b"x"))).body == b"x"


async def test_a_tls_client_of_a_plain_server(client_context: ssl.SSLContext) -> None:
    async with serving() as server:
        async with calling(ssl_context=client_context) as client:
            with pytest.raises(ConnectFailed):
                await client.call(address(server), RemotingCommand.request(ECHO))
        await until(lambda: not server.connections)


async def test_stop_during_a_handshake(server_tls: TlsConfig) -> None:
    async with serving(tls=server_tls) as server, peer_of(server) as peer:
        await asyncio.wait_for(server.stop(), 10)
        assert not server.connections
        await peer.send(frame(ECHO))
        await peer.closed_by_other()


@asynccontextmanager
async def raw_server(context: ssl.SSLContext | None) -> AsyncIterator[str]:
    """Runs a server that closes each connection, and yields its address.

    With a TLS context, it reads a little before.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if context is not None:
            await reader.read(100)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


async def test_a_client_certificate_that_is_missing_is_named(
    certificate: tuple[Path, Path], client_context: ssl.SSLContext
) -> None:
    """The error suggests a missing client certificate.

    With TLS 1.3, the client's handshake succeeds before the server checks the client certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    context.load_verify_locations(certificate[0])
    context.verify_mode = ssl.CERT_REQUIRED
    async with raw_server(context) as to, calling(ssl_context=client_context) as client:
        with pytest.raises(ConnectionLost, match="does the server want a client certificate"):
            await client.call(to, RemotingCommand.request(ECHO))


async def test_a_server_without_tls_is_named(client_context: ssl.SSLContext) -> None:
    """The error must name the handshake. A timeout message ("no answer in 3.0 s") would be misleading."""
    async with raw_server(None) as to, calling(ssl_context=client_context) as client:
        with pytest.raises(ConnectFailed, match=r"in the TLS handshake|reset by peer|EOF"):
            await client.call(to, RemotingCommand.request(ECHO))
