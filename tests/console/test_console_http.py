"""The console's HTTP server, with an application that never responds."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack

import httpx
import uvicorn
from starlette.types import Receive, Scope, Send
from wait_until import until

from gantrymq.console.connections import MAX_CONNECTIONS
from gantrymq.console.http import HttpServer

_PER_ADDRESS = 50


async def never(scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def connect(address: str, source: str) -> socket.socket:
    host, port = httpx.URL(address).host, httpx.URL(address).port
    assert port is not None
    return socket.create_connection((host, port), 10, (source, 0))


async def test_connections_that_are_closed_at_once() -> None:
    """All other connections are busy, so each new connection closes the previous one.

    The server removes closed ones.
    """
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    config = uvicorn.Config(never, http="h11", log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    server = HttpServer(config, "127.0.0.1", 0, listening.set_result)
    serving = asyncio.create_task(server.serve())
    address = await listening
    open_ones = server.server_state.connections
    with ExitStack() as stack:
        for number in range(MAX_CONNECTIONS):
            sock = stack.enter_context(connect(address, f"127.0.1.{1 + number // _PER_ADDRESS}"))
            sock.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            await asyncio.sleep(0)
        await until(lambda: len(server.server_state.tasks) == MAX_CONNECTIONS)
        for number in range(400):
            connect(address, f"127.0.2.{1 + number // _PER_ADDRESS}").close()
            if not number % 40:
                await asyncio.sleep(0.01)
    await until(lambda: not open_ones)
    server.should_exit = True
    await serving
