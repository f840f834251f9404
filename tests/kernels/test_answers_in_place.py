"""Tests that a body received in place equals a body joined from pieces.

In place means that the socket writes the body directly into its final buffer.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_code import use_python

from gantrymq.errors import ConnectionLost, FrameError
from gantrymq.kernels import native
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.frame_reader import LARGE_FRAME, FrameReader, NewReceiveBuffer
from gantrymq.remoting import client as client_module
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import Connection, Reply
from gantrymq.remoting.listener import ListenOptions
from gantrymq.remoting.server import RemotingServer
from gantrymq.remoting.tls import TlsConfig, TlsMode

pytestmark = pytest.mark.skipif(native is None, reason="gantrymq-native isn't there")
ECHO, HALF = 1, 2
TIMEOUT_MS = 60_000


def frame(opaque: int, body: bytes) -> bytes:
    command = RemotingCommand.request(ECHO, body=body)
    command.opaque = opaque
    return command.encode()


def read(stream: bytes, cuts: list[int], new_buffer: NewReceiveBuffer | None) -> list[tuple[int, bytes]]:
    """Reads a stream in pieces with the sizes `cuts`, repeated cyclically, and returns (opaque, body) of each frame."""
    reader = FrameReader(new_buffer=new_buffer)
    found, at, turn = [], 0, 0
    while at < len(stream):
        count = min(cuts[turn % len(cuts)], len(stream) - at)
        turn += 1
        buffer = reader.receive_buffer()
        if buffer is None:
            commands = list(reader.feed(stream[at : at + count]))
        else:
            count = min(count, len(buffer))
            buffer[:count] = stream[at : at + count]
            commands = list(reader.filled(count))
        at += count
        found += [(command.opaque, command.body) for command in commands]
    assert (reader.buffered_bytes, reader.frame_length) == (0, 0)
    return found


SIZES = st.sampled_from([0, 1, 100, LARGE_FRAME - 90, LARGE_FRAME, LARGE_FRAME + 1, 3 * LARGE_FRAME])


@given(
    st.lists(SIZES, max_size=5), st.lists(st.integers(5_000, 2 * LARGE_FRAME), min_size=1, max_size=4), st.booleans()
)
@settings(max_examples=50, deadline=None)
def test_frames_come_back_however_the_stream_is_cut(sizes: list[int], cuts: list[int], small: bool) -> None:
    assert native is not None
    bodies = [os.urandom(size) for size in sizes]
    stream = b"".join(frame(number, body) for number, body in enumerate(bodies))
    # Adds a piece of a few bytes to each cycle.
    cuts = [*cuts, 7] if small else cuts
    assert read(stream, cuts, native.ReceiveBuffer) == list(enumerate(bodies)) == read(stream, cuts, None)


def test_a_frame_that_feed_completes() -> None:
    assert native is not None
    body = os.urandom(2 * LARGE_FRAME)
    reader = FrameReader(new_buffer=native.ReceiveBuffer)
    stream = frame(1, body) + frame(2, b"small")
    assert list(reader.feed(stream[:LARGE_FRAME])) == []
    assert reader.buffered_bytes > 0
    found = list(reader.feed(stream[LARGE_FRAME:]))
    assert [(command.opaque, command.body) for command in found] == [(1, body), (2, b"small")]
    with pytest.raises(FrameError):
        list(reader.feed(b"\xff" * 100))


def test_a_buffer_becomes_bytes() -> None:
    assert native is not None
    buffer = native.ReceiveBuffer(5)
    memoryview(buffer)[:] = b"01234"
    done = buffer.finish()
    assert (done, type(done)) == (b"01234", bytes)
    with pytest.raises(BufferError, match="finished"):
        memoryview(buffer)
    assert native.ReceiveBuffer(0).finish() == b""


def echo(connection: Connection, request: RemotingCommand) -> Reply:
    return RemotingCommand.response(body=request.body)


def half(connection: Connection, request: RemotingCommand) -> Reply:
    response = RemotingCommand.response()
    response.opaque = request.opaque
    connection.reply(request, [response.encode_head(4 * LARGE_FRAME), bytes(LARGE_FRAME)])
    connection.close()
    return None


async def check_answers(client: RemotingClient, server: RemotingServer) -> None:
    """Checks small and large bodies in parallel, then a connection that ends within a body, then a new connection."""
    address = f"127.0.0.1:{server.port}"
    bodies = [os.urandom(size) for size in (10, 3_000_000, 0, LARGE_FRAME, 700_000, 100)]
    for _ in range(3):
        requests = [client.call(address, RemotingCommand.request(ECHO, body=body), TIMEOUT_MS) for body in bodies]
        assert [answer.body for answer in await asyncio.gather(*requests)] == bodies
    with pytest.raises(ConnectionLost):
        await client.call(address, RemotingCommand.request(HALF), TIMEOUT_MS)
    assert (await client.call(address, RemotingCommand.request(ECHO, body=bodies[1]), TIMEOUT_MS)).body == bodies[1]


@pytest.mark.parametrize("natively", [True, False], ids=["native", "python"])
async def test_answers(monkeypatch: pytest.MonkeyPatch, natively: bool) -> None:
    if not natively:
        use_python(monkeypatch, client_module)
    server = RemotingServer({ECHO: echo, HALF: half}, ListenOptions("127.0.0.1"))
    client = RemotingClient(in_place=True)
    await server.start()
    try:
        await check_answers(client, server)
    finally:
        await client.close()
        await server.stop()


async def test_answers_over_tls(certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    tls = TlsConfig(tls_server_mode=TlsMode.ENFORCING, tls_server_cert_path=cert, tls_server_key_path=key)
    server = RemotingServer({ECHO: echo, HALF: half}, ListenOptions("127.0.0.1"), tls=tls)
    client = RemotingClient(ssl_context=ssl.create_default_context(cafile=cert), in_place=True)
    await server.start()
    try:
        await check_answers(client, server)
    finally:
        await client.close()
        await server.stop()
