"""Inputs that peers began and did not complete.

They share one limit and have a deadline. The oldest ones are disconnected first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest
from certificates import Pair
from wait_until import until

from gantrymq.background.jobs import Jobs
from gantrymq.remoting.incomplete_input import IncompleteInputs
from gantrymq.remoting.server_tls import ServerTls
from gantrymq.remoting.tls import TlsConfig, client_context
from gantrymq.remoting.tls_detection import HANDSHAKE_BYTES, TlsDetection
from gantrymq.system import network


class Peer:
    def __init__(self) -> None:
        self.refused: list[str] = []
        self.is_paused = False

    def input_refused(self, reason: str) -> None:
        self.refused.append(reason)


def test_the_oldest_are_disconnected_first() -> None:
    inputs = IncompleteInputs(max_bytes=100)
    first, second, third = (Peer() for _ in range(3))
    inputs.begin(first, 40, 0.0)
    inputs.begin(second, 40, 1.0)
    # A new input of the same peer counts as the youngest.
    inputs.begin(first, 40, 2.0)
    inputs.begin(third, 20, 3.0)
    assert inputs.bytes == 100
    inputs.resize(third, 30)
    assert (inputs.bytes, len(inputs)) == (70, 2)
    assert [len(peer.refused) for peer in (first, second, third)] == [0, 1, 0]
    # It was removed from the table, so it does not count.
    inputs.resize(second, 1000)
    inputs.complete(second)
    inputs.complete(first)
    assert inputs.bytes == 30
    # A single input can exceed the shared limit. Only its own limits apply.
    inputs.resize(third, 1000)
    assert not third.refused


def test_a_deadline_for_each_input() -> None:
    inputs = IncompleteInputs(deadline_s=10.0)
    slow, paused, idle, young = (Peer() for _ in range(4))
    for peer in (slow, paused, idle):
        inputs.begin(peer, 1, 0.0)
    inputs.begin(young, 1, 5.0)
    paused.is_paused = True
    inputs.lift_deadline(idle)
    inputs.resize(slow, 2)
    inputs.close_expired(10.0)
    assert not slow.refused
    inputs.close_expired(10.1)
    assert [len(peer.refused) for peer in (slow, paused, idle, young)] == [1, 0, 0, 0]
    paused.is_paused = False
    inputs.close_expired(15.1)
    assert [len(peer.refused) for peer in (slow, paused, idle, young)] == [1, 1, 0, 1]
    assert inputs.bytes == 1


# -- TLS handshakes -------------------------------------------------------------------------------------------------


class Accepted(asyncio.Protocol):
    """A connection whose handshake is complete."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(b"welcome")


@pytest.fixture
def inputs() -> IncompleteInputs:
    return IncompleteInputs(max_bytes=3 * HANDSHAKE_BYTES)


@pytest.fixture
async def port(certificate: Pair, inputs: IncompleteInputs) -> AsyncIterator[int]:
    tls = ServerTls(TlsConfig(tls_server_cert_path=certificate.cert, tls_server_key_path=certificate.key), Jobs())
    tls.load()
    accepted = TlsDetection(tls, Accepted, inputs)
    listening = network.bind("127.0.0.1", 0)
    listening.listen(10)
    listening.setblocking(False)
    loop = asyncio.get_running_loop()

    def accept() -> None:
        sock, _ = listening.accept()
        sock.setblocking(False)
        accepted.add(sock)

    loop.add_reader(listening, accept)
    yield listening.getsockname()[1]
    loop.remove_reader(listening)
    listening.close()
    await accepted.stop()
    assert inputs.bytes == 0


async def test_the_oldest_handshakes_are_ended(port: int, inputs: IncompleteInputs) -> None:
    peers = []
    for count in range(1, 6):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\x16\x03\x01")
        peers.append((reader, writer))
        await until(lambda count=count: len(inputs) == min(count, 3))
    for reader, _ in peers[:2]:
        assert await asyncio.wait_for(reader.read(), 10) == b""
    assert all(not reader.at_eof() for reader, _ in peers[2:])
    # A client that completes its handshake is served, and the oldest one is disconnected.
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_context(TlsConfig(tls_enable=True)))
    assert await asyncio.wait_for(reader.readexactly(7), 10) == b"welcome"
    await until(lambda: len(inputs) == 2)
    for _, other in [*peers, (reader, writer)]:
        other.close()
    await until(lambda: len(inputs) == 0)
