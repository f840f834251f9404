"""Many concurrent requests of one connection: they share writes and one timer."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from remoting_support import ECHO, address, calling, serving
from wait_until import until

from gantrymq.errors import ConnectionLost, RequestTimeout
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.connection import GATHER_LIMIT, LARGE_BODY, Connection, Reply
from gantrymq.remoting.pending_requests import PendingRequests


async def test_requests_of_one_turn_arrive_in_order() -> None:
    got: list[bytes] = []

    def handler(connection: Connection, request: RemotingCommand) -> Reply:
        got.append(request.body)
        return RemotingCommand.response()

    bodies = [bytes([n]) * size for n, size in enumerate([1, GATHER_LIMIT, 10, LARGE_BODY + 1, 5, 2 * LARGE_BODY, 3])]
    async with serving({7: handler}) as server, calling() as client:
        connection = await client.connection(address(server))
        for body in bodies:
            connection.send_oneway(RemotingCommand.request(7, body=body))
        await until(lambda: len(got) == len(bodies))
    assert got == bodies


async def test_closing_sends_what_was_gathered() -> None:
    got: list[bytes] = []

    def handler(connection: Connection, request: RemotingCommand) -> Reply:
        got.append(request.body)
        return None

    async with serving({7: handler}) as server, calling() as client:
        connection = await client.connection(address(server))
        connection.send_oneway(RemotingCommand.request(7, body=b"last words"))
        connection.close()
        await until(lambda: got)


async def test_each_request_has_its_own_timeout() -> None:
    async with serving({7: lambda connection, request: None}) as server, calling() as client:
        connection = await client.connection(address(server))
        loop = asyncio.get_running_loop()
        ended: dict[int, float] = {}

        async def ask(timeout_ms: int) -> None:
            with pytest.raises(RequestTimeout, match=f"{timeout_ms} ms"):
                await connection.invoke(RemotingCommand.request(7), timeout_ms)
            ended[timeout_ms] = loop.time() - began

        began = loop.time()
        # The other timeouts end before this one, so the timer is set again.
        longest = asyncio.create_task(connection.invoke(RemotingCommand.request(7), 60_000))
        await until(lambda: connection.awaits_answers)
        answered = connection.invoke(RemotingCommand.request(ECHO, body=b"x"), 20_000)
        timeouts = [300, 200, 100, 50, 60, 250]
        async with asyncio.timeout(20):
            *_, answer = await asyncio.gather(*(ask(timeout_ms) for timeout_ms in timeouts), answered)
        assert answer.body == b"x"
        assert ended.keys() == set(timeouts)
        longest.cancel()
        await until(longest.done)
        assert all(after >= timeout_ms / 1000 - 0.005 for timeout_ms, after in ended.items())
        assert not connection.awaits_answers


async def test_a_request_that_is_given_up_is_forgotten() -> None:
    async with serving({7: lambda connection, request: None}) as server, calling() as client:
        connection = await client.connection(address(server))
        task = asyncio.create_task(connection.invoke(RemotingCommand.request(7), 60_000))
        await until(lambda: connection.awaits_answers)
        task.cancel()
        await until(lambda: not connection.awaits_answers)


async def test_the_timer_ends_with_its_connection() -> None:
    pending = PendingRequests(asyncio.get_running_loop())
    waiting = pending.add(1, "127.0.0.1:1", 60_000)
    pending.connection_lost("the connection was closed")
    with pytest.raises(ConnectionLost):
        await waiting
    # The event loop would keep the timer, and the timer its object.
    left = weakref.ref(pending)
    del pending
    gc.collect()
    assert left() is None
