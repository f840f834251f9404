"""A server that stops while connections begin: each protocol that has a connection is notified of its end."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import cast

import pytest
from certificates import Pair
from wait_until import until

from gantrymq.background.jobs import Jobs
from gantrymq.remoting.server_tls import ServerTls
from gantrymq.remoting.tls import TlsConfig, client_context
from gantrymq.remoting.tls_detection import TlsDetection
from gantrymq.system import network


class Accepted(asyncio.Protocol):
    """Stops the server as soon as the connection is made."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.lost = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._server.stopping = asyncio.ensure_future(self._server.detection.stop())

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost += 1


class Server:
    def __init__(self, tls: ServerTls | None) -> None:
        self.accepted: list[Accepted] = []
        self.stopping: asyncio.Future[None] | None = None
        self.detection = TlsDetection(tls, self._connected)
        self._listening = network.bind("127.0.0.1", 0)
        self._listening.listen(10)
        self.port = self._listening.getsockname()[1]
        asyncio.get_running_loop().add_reader(self._listening, self._accept)

    def _connected(self) -> Accepted:
        self.accepted.append(Accepted(self))
        return self.accepted[-1]

    def _accept(self) -> None:
        sock, _ = self._listening.accept()
        sock.setblocking(False)
        self.detection.add(sock)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._listening)
        self._listening.close()


def server_tls(certificate: Pair) -> ServerTls:
    tls = ServerTls(TlsConfig(tls_server_cert_path=certificate.cert, tls_server_key_path=certificate.key), Jobs())
    tls.load()
    return tls


@pytest.mark.parametrize("is_tls", [False, True])
async def test_a_connection_that_is_made_while_the_server_stops(certificate: Pair, is_tls: bool) -> None:
    server = Server(server_tls(certificate) if is_tls else None)
    context = client_context(TlsConfig(tls_enable=True)) if is_tls else None
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
        await until(lambda: server.stopping is not None and server.stopping.done())
        (protocol,) = server.accepted
        if not protocol.lost:
            # The transport can be used like that of any other connection.
            protocol.transport.write(b"welcome")
            protocol.transport.abort()
        await until(lambda: protocol.lost)
        writer.close()
    finally:
        server.close()
    assert protocol.lost == 1


async def test_a_handshake_in_progress_does_not_stop_the_end(certificate: Pair) -> None:
    server = Server(server_tls(certificate))
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"\x16\x03\x01")
        await until(lambda: server.accepted)
        await asyncio.wait_for(server.detection.stop(), 5)
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
    finally:
        server.close()
    assert [protocol.lost for protocol in server.accepted] == [0]


async def test_a_peer_that_resets_its_handshake_when_the_server_stops(
    certificate: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(server_tls(certificate))
    peer = socket.create_connection(("127.0.0.1", server.port))
    try:
        peer.send(b"\x16\x03\x01")
        await until(lambda: server.accepted)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        await server.detection.stop()
    finally:
        server.close()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(server.detection) == 0


async def test_a_connection_that_is_cancelled_twice() -> None:
    server = Server(None)
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        await until(lambda: server.stopping is not None)
        again = asyncio.ensure_future(server.detection.stop())
        await until(again.done)
        (protocol,) = server.accepted
        protocol.transport.abort()
        await until(lambda: protocol.lost)
        writer.close()
    finally:
        server.close()
    assert protocol.lost == 1
