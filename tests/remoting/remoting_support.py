"""Helpers of the remoting tests: servers and clients that are closed at the end, and a peer that sends raw bytes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from wait_until import until

from gantrymq.protocol.command import RemotingCommand, SerializeType
from gantrymq.protocol.frame_reader import FrameReader
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.remoting.listener import ListenOptions
from gantrymq.remoting.server import RemotingServer

TIMEOUT_S = 20.0
ECHO = 1
SILENT = 2


def echo(connection: Connection, request: RemotingCommand) -> Reply:
    return RemotingCommand.response(body=request.body, fields=dict(request.ext_fields))


def silent(connection: Connection, request: RemotingCommand) -> Reply:
    return None


def frame(code: int, body: bytes = b"", opaque: int = 0, encoding: SerializeType = SerializeType.JSON) -> bytes:
    command = RemotingCommand.request(code, body=body)
    command.opaque = opaque
    command.serialize_type = encoding
    return command.encode()


@asynccontextmanager
async def serving(
    handlers: dict[int, RequestHandler] | None = None, *, port: int = 0, fast_listen: bool = False, **options: Any
) -> AsyncIterator[RemotingServer]:
    listen = ListenOptions("127.0.0.1", port, fast_listen=fast_listen)
    server = RemotingServer({ECHO: echo, SILENT: silent} | (handlers or {}), listen, **options)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def calling(handlers: dict[int, RequestHandler] | None = None, **options: Any) -> AsyncIterator[RemotingClient]:
    client = RemotingClient(handlers, **options)
    try:
        yield client
    finally:
        await client.close()


def address(server: RemotingServer) -> str:
    return f"127.0.0.1:{server.port}"


class Peer:
    """A socket through which the test sends raw bytes."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._reader = FrameReader()
        self._got: list[RemotingCommand] = []

    async def send(self, data: bytes) -> None:
        await asyncio.wait_for(asyncio.get_running_loop().sock_sendall(self.sock, data), TIMEOUT_S)

    def send_what_fits(self, data: bytes) -> int:
        """Sends as many bytes as the kernel accepts now, and returns their number."""
        try:
            return self.sock.send(data)
        except BlockingIOError:
            return 0

    async def commands(self, count: int) -> list[RemotingCommand]:
        """Waits for the next `count` commands. Raises EOFError if the other side closes the connection before."""
        while len(self._got) < count:
            data = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self.sock, 1 << 20), TIMEOUT_S)
            if not data:
                raise EOFError(f"closed after {len(self._got)} of {count} commands")
            self._got += self._reader.feed(data)
        got, self._got = self._got[:count], self._got[count:]
        return got

    async def closed_by_other(self) -> None:
        """Waits for the end of the stream or for a connection reset."""
        try:
            while await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self.sock, 1 << 20), TIMEOUT_S):
                pass
        except ConnectionResetError:
            pass

    def nothing_to_read(self) -> bool:
        try:
            self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        return False

    def close(self) -> None:
        self.sock.close()


@asynccontextmanager
async def peer_of(server: RemotingServer, receive_buffer: int | None = None) -> AsyncIterator[Peer]:
    sock = socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", server.port))
        yield Peer(sock)
    finally:
        sock.close()


async def only_connection(server: RemotingServer) -> Connection:
    await until(lambda: len(server.connections) == 1)
    (connection,) = server.connections
    return connection
