"""Listening sockets: two ports, and a process that runs out of file descriptors."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager

import pytest
from ports import free_port
from remoting_support import ECHO, Peer, address, calling, frame, peer_of, serving
from wait_until import until

from gantrymq.errors import GantryError
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.listener import Listener, ListenOptions, most_connections, reserved_descriptors
from gantrymq.remoting.server import RemotingServer


@contextmanager
def descriptors(more: int) -> Iterator[int]:
    """Limits this process to `more` additional file descriptors, and yields the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = max(map(int, os.listdir("/dev/fd"))) + 1 + more
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield limit
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    taken: list[int] = []
    try:
        while True:
            try:
                taken.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        yield
    finally:
        for fd in taken:
            os.close(fd)


async def is_served(peer: Peer) -> bool:
    try:
        await peer.send(frame(ECHO, b"x"))
        return (await peer.commands(1))[0].body == b"x"
    except (EOFError, ConnectionError):
        return False


async def test_connections_are_refused_before_files_starve(caplog: pytest.LogCaptureFixture) -> None:
    with descriptors(200) as limit:
        async with serving() as server, AsyncExitStack() as stack:
            served: list[Peer] = []
            refused = 0
            while refused < 20:
                peer = await stack.enter_async_context(peer_of(server))
                if await is_served(peer):
                    served.append(peer)
                else:
                    refused += 1
                    peer.close()
            # This process owns both ends of each connection.
            reserve = reserved_descriptors(limit)
            assert len(served) >= (200 - reserve) // 2 - 5
            files = [os.open(os.devnull, os.O_RDONLY) for _ in range(reserve - 3)]
            for fd in files:
                os.close(fd)
            # Existing connections are served, and new ones are accepted when descriptors are free again.
            assert await is_served(served[0])
            served.pop().close()
            await until(lambda: len(server.connections) == len(served))
            assert await is_served(await stack.enter_async_context(peer_of(server)))
    lines = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    # Logged at most once a second.
    assert lines[0].startswith(
        f"1 connections were refused: there are {len(served) + 1}, and the other descriptors (of"
    )
    assert len(lines) <= 5


async def test_an_eighth_is_for_files_which_may_be_opened_later() -> None:
    accepted: list[socket.socket] = []
    count = 0
    with descriptors(1000) as limit:
        listener = Listener(ListenOptions("127.0.0.1"), accepted.append, lambda: count)
        listener.start()
        most = most_connections(limit)
        assert 0.8 * limit < most < 0.9 * limit
        for count in (0, most - 1, most, 10 * most, 0):
            before = len(accepted)
            with socket.socket() as sock:
                sock.setblocking(False)
                await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", listener.port))
                if count < most:
                    await until(lambda before=before: len(accepted) > before)
                else:
                    await Peer(sock).closed_by_other()
                    assert len(accepted) == before
        listener.stop()
    for sock in accepted:
        sock.close()


def test_nobody_waits_when_there_is_no_descriptor_left() -> None:
    async def run() -> None:
        async with serving() as server, peer_of(server) as served:
            assert await is_served(served)
            sockets = [socket.socket() for _ in range(3)]
            with no_descriptor_left():
                for sock in sockets:
                    sock.setblocking(False)
                    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", server.port))
                    await Peer(sock).closed_by_other()
                    assert await is_served(served)
            for sock in sockets:
                sock.close()
            async with peer_of(server) as late:
                assert await is_served(late)

    for factory in (asyncio.SelectorEventLoop, None):
        with descriptors(100), asyncio.Runner(loop_factory=factory) as runner:
            runner.run(run())


async def test_accepting_goes_on_after_the_system_had_no_room(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving() as server:
        # Simulates ENFILE: not even the reserved descriptor helps.
        monkeypatch.setattr(Listener, "_refuse_without_descriptor", lambda listener, listening: False)
        waiting = socket.socket()
        waiting.setblocking(False)
        with descriptors(50), no_descriptor_left():
            await asyncio.get_running_loop().sock_connect(waiting, ("127.0.0.1", server.port))
            await until(lambda: "can't accept connections, trying again" in caplog.text)
        peer = Peer(waiting)
        assert await is_served(peer)
        peer.close()


async def test_two_ports() -> None:
    async with serving(fast_listen=True) as server, calling() as client:
        for port in (server.port, server.port - 2):
            answer = await client.call(f"127.0.0.1:{port}", RemotingCommand.request(ECHO, body=b"x"))
            assert answer.body == b"x"
        assert len(server.connections) == 2
        await server.stop()
        await server.start()
        await client.call(f"127.0.0.1:{server.port - 2}", RemotingCommand.request(ECHO))


async def test_the_second_port_is_taken() -> None:
    # The port two above is also free.
    async with serving(port=free_port()) as server:
        with pytest.raises(GantryError, match=f"127.0.0.1:{server.port}.*is another server using it"):
            RemotingServer({}, ListenOptions("127.0.0.1", server.port + 2, fast_listen=True))
        async with serving(port=server.port + 2) as above:
            assert above.port == server.port + 2


def test_a_port_that_is_none() -> None:
    with pytest.raises(GantryError, match="can't listen"):
        RemotingServer({}, ListenOptions("127.0.0.1", 1, fast_listen=True))


async def test_a_burst_of_connections(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with serving() as server, AsyncExitStack() as stack:
        peers = await asyncio.gather(*(stack.enter_async_context(peer_of(server)) for _ in range(300)))
        assert all(await asyncio.gather(*map(is_served, peers)))
        async with calling() as client:
            await client.call(address(server), RemotingCommand.request(ECHO))
        assert len(server.connections) >= 300
    assert not caplog.records
