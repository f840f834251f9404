"""Tests of the detection of leftovers."""

from __future__ import annotations

import socket
from functools import partial

import leftovers
import pytest
from wait_until import until


async def test_a_socket_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "until", partial(until, timeout_s=0.01))
    with socket.create_server(("127.0.0.1", 0)) as server:
        connected: list[socket.socket] = []

        async def connect() -> None:
            async with leftovers.nothing_left():
                connected.append(socket.create_connection(server.getsockname()))

        with pytest.raises(AssertionError, match=r"left behind: \['socket:"):
            await connect()
        connected[0].close()


async def test_what_somebody_elses_server_accepts_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "until", partial(until, timeout_s=0.01))
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as other:
        async with leftovers.nothing_left():
            other.connect(server.getsockname())
            accepted, _ = server.accept()
        accepted.close()
