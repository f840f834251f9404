"""Time slices: the work for one peer in an event-loop iteration.

The tests also cover how it is measured, and the limits for pending responses of one peer.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace

import pytest
from constants import change_constant
from remoting_support import ECHO, address, calling, echo, frame, only_connection, peer_of, serving
from transports import Swallowing
from wait_until import until

from gantrymq.errors import RequestTimeout
from gantrymq.limits import RESPONSE_TASKS
from gantrymq.metrics import render
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting import connection as connection_module
from gantrymq.remoting import flow_control, loop_watch
from gantrymq.remoting.connection import Connection, Reply
from gantrymq.remoting.connection_limits import ConnectionLimits
from gantrymq.remoting.flow_control import ONEWAY_LIMIT, UNTAKEN_LIMIT, WRITE_HIGH_WATER
from gantrymq.remoting.loop_watch import SLOW_REQUEST_S, LoopWatch
from gantrymq.remoting.time_slices import (
    CROWDED_SLICE_S,
    MOST_S,
    ROUND_S,
    SHORT_SLICE_S,
    SLICE_S,
    WAITING_S,
    TimeSlices,
)


def busy(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


@pytest.fixture
def own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measures time slices in CPU time of this thread, so that load from other processes does not count."""
    for module in (connection_module, flow_control):
        monkeypatch.setattr(module, "monotonic", time.thread_time)


@contextmanager
def longest_turns() -> Iterator[list[float]]:
    """Yields a list of the CPU time of this thread in each event-loop iteration.

    Other processes do not count. Garbage collection is off, because it would scan all objects of pytest.
    """
    loop = asyncio.get_running_loop()
    slices: list[float] = []
    last = time.thread_time()
    handle: asyncio.Handle

    def turn() -> None:
        nonlocal last, handle
        now = time.thread_time()
        slices.append(now - last)
        last = now
        handle = loop.call_soon(turn)

    handle = loop.call_soon(turn)
    gc.disable()
    try:
        yield slices
    finally:
        gc.enable()
        handle.cancel()


@pytest.mark.parametrize("code", [ECHO, 999])
async def test_a_read_of_very_many_requests_goes_on_in_later_turns(code: int) -> None:
    count = 100_000
    handled: list[int] = []

    def handler(connection: Connection, request: RemotingCommand) -> Reply:
        handled.append(request.opaque)
        return RemotingCommand.response()

    turns_of_all = TimeSlices()
    connection = Connection({ECHO: handler}, is_server=True, limits=ConnectionLimits(turns_of_all))
    transport = Swallowing()
    connection.connection_made(transport)
    answer = len(frame(code))
    read = b"".join(frame(code, opaque=n) for n in range(count))
    with longest_turns() as slices:
        connection.data_received(read)
        assert not transport.is_read
        await until(lambda: transport.is_read)
    assert transport.written > count * answer // 2
    assert handled == (list(range(count)) if code == ECHO else [])
    assert max(slices) < 0.05
    assert turns_of_all.watch.rounds.sum >= count * 0.000001
    connection.connection_lost(None)


async def test_each_command_of_a_read_has_its_own_start() -> None:
    began: list[tuple[float, float]] = []

    def handler(connection: Connection, request: RemotingCommand) -> Reply:
        began.append((connection.command_began, time.monotonic()))
        return RemotingCommand.response()

    connection = Connection({ECHO: handler}, is_server=True)
    connection.connection_made(Swallowing())
    before = time.monotonic()
    connection.data_received(frame(ECHO) * 3)
    times = [before, *(at for pair in began for at in pair)]
    assert len(began) == 3
    assert times == sorted(times)
    connection.connection_lost(None)


async def test_answers_that_nobody_asked_for_take_turns_too() -> None:
    connection = Connection({}, is_server=True)
    transport = Swallowing()
    connection.connection_made(transport)
    answer = RemotingCommand.response()
    read = answer.encode() * 100_000
    with longest_turns() as slices:
        connection.data_received(read)
        assert not transport.is_read
        await until(lambda: transport.is_read)
    assert max(slices) < 0.05
    connection.connection_lost(None)


def connections_of(count: int, request_s: float) -> tuple[list[Connection], TimeSlices]:
    """Returns connections of one server whose requests each take `request_s` seconds."""

    def handler(connection: Connection, request: RemotingCommand) -> Reply:
        busy(request_s)
        return RemotingCommand.response()

    slices = TimeSlices()
    connections = [
        Connection({7: handler, ECHO: echo}, is_server=True, limits=ConnectionLimits(slices)) for _ in range(count)
    ]
    for connection in connections:
        connect(connection)
    return connections, slices


def connect(connection: Connection) -> None:
    """Opens the connection with a transport for `is_read` and `written_to`."""
    connection.attributes[Swallowing] = transport = Swallowing()
    connection.connection_made(transport)


def is_read(connection: Connection) -> bool:
    transport: Swallowing = connection.attributes[Swallowing]
    return transport.is_read


def written_to(connection: Connection) -> int:
    transport: Swallowing = connection.attributes[Swallowing]
    return transport.written


@pytest.mark.usefixtures("own_time")
async def test_a_turn_is_shared_by_the_connections_that_have_much_to_ask() -> None:
    connections, slices = connections_of(20, 0.0002)
    began = time.thread_time()
    for connection in connections:
        connection.data_received(frame(7) * 1000)
    assert time.thread_time() - began < SLICE_S + 20 * (CROWDED_SLICE_S + 0.001)
    assert slices.slice_s == CROWDED_SLICE_S
    await asyncio.sleep(0)
    for connection in connections:
        connection.connection_lost(None)


@pytest.mark.usefixtures("own_time")
@pytest.mark.parametrize("request_s", [0.004, 0.03], ids=["short slices", "long steps"])
async def test_what_many_connections_ask_at_once_is_many_rounds(request_s: float) -> None:
    """The requests of many connections are spread over several event-loop iterations.

    Each connection sends one request. All requests in one iteration would block the event loop.
    """
    connections, slices = connections_of(40, request_s)
    innocent, *others = connections
    innocent.data_received(frame(ECHO))
    answer = written_to(innocent)
    rounds = 0
    with longest_turns() as taken:
        for connection in others:
            connection.data_received(frame(7))
        # This connection is served in the same iteration, because it is cheap.
        innocent.data_received(frame(ECHO))
        assert written_to(innocent) == 2 * answer
        while any(not written_to(connection) for connection in others):
            await asyncio.sleep(0)
            innocent.data_received(frame(ECHO))
            rounds += 1
    assert written_to(innocent) == answer * (2 + rounds)
    assert max(taken) < ROUND_S + WAITING_S + request_s + 0.01
    assert slices.watch.rounds.sum > 0.9 * 39 * request_s
    await until(lambda: not any(connection.is_behind for connection in connections))
    for connection in connections:
        connection.connection_lost(None)


@pytest.mark.usefixtures("own_time")
async def test_reads_that_wait_hold_no_more_than_all_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit, only cheap connections are read. All are read again when half of the input is served."""
    read = frame(7) * 1000
    change_constant(monkeypatch, "time_slices.WAITING_READS_BYTES", 20 * len(read))
    connections, slices = connections_of(60, 0.00003)
    innocent, *others = connections
    innocent.data_received(frame(ECHO))
    waiting = 0
    for connection in others:
        if is_read(connection):
            connection.data_received(read)
            waiting += connection.is_behind
    assert waiting <= 21
    assert slices.is_full
    assert is_read(innocent)
    assert not any(is_read(connection) for connection in others)
    late = Connection({ECHO: echo}, is_server=True, limits=ConnectionLimits(slices))
    connect(late)
    assert not is_read(late)
    with longest_turns():
        await until(lambda: not slices.is_full)
        assert is_read(late)
        assert sum(is_read(connection) for connection in others) >= 38
        await until(lambda: all(is_read(connection) for connection in others))
    for connection in (*connections, late):
        connection.connection_lost(None)
    assert not slices.connections


@pytest.mark.usefixtures("own_time")
async def test_who_was_put_off_is_served_in_turn() -> None:
    connections, _ = connections_of(10, 0.01)
    for connection in connections:
        connection.data_received(frame(7) * 5)
    with longest_turns():
        while any(connection.is_behind for connection in connections):
            await asyncio.sleep(0)
            done = [written_to(connection) for connection in connections]
            # Every second time slice goes to a connection that was served before. All of these have equal shares after
            # they used `MOST_S`.
            assert max(done) - min(done) <= MOST_S / 0.01 * len(RemotingCommand.response().encode())
    for connection in connections:
        connection.connection_lost(None)


@pytest.mark.usefixtures("own_time")
async def test_of_those_that_take_much_who_took_least_comes_first() -> None:
    """A cheap connection does not wait for many expensive ones."""
    connections, _ = connections_of(41, 0.03)
    *others, innocent = connections
    for connection in connections:
        connection.charge(1.0 if connection in others else 0.02)
        connection.data_received(frame(ECHO if connection is innocent else 7))
    assert all(connection.is_busy() and connection.is_behind for connection in connections[1:])
    while innocent.is_behind:
        await asyncio.sleep(0)
    assert written_to(innocent)
    assert sum(written_to(connection) > 0 for connection in others) < 5
    for connection in connections:
        connection.connection_lost(None)


async def test_what_others_take_on_the_machine_is_not_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time without a processor does not count for the connection.

    Here, other processes ran while the event loop handled a small request.
    """
    (innocent,), slices = connections_of(1, 0.0)
    times = itertools.count(time.monotonic(), MOST_S)
    monkeypatch.setattr(connection_module, "monotonic", lambda: next(times))
    innocent.data_received(frame(ECHO))
    assert slices.used > MOST_S
    assert not innocent.is_busy()
    innocent.connection_lost(None)


@pytest.mark.usefixtures("own_time")
async def test_who_took_much_comes_before_those_that_came_two_seconds_later() -> None:
    connections, slices = connections_of(3, 0.03)
    first, heavy, light = connections
    first.data_received(frame(7))
    heavy.charge(1.0)
    heavy.data_received(frame(7))
    # Simulates that the connection was deferred at that time.
    light.last_read += 2.1
    light.charge(0.02)
    light.last_read += 2.1
    light.data_received(frame(7))
    assert heavy.is_behind
    assert light.is_behind
    # The request uses up the time of a round.
    slices.new_round()
    assert written_to(heavy)
    assert not written_to(light)
    slices.new_round()
    assert written_to(light)
    for connection in connections:
        connection.connection_lost(None)


@pytest.mark.usefixtures("own_time")
async def test_new_ones_whose_turns_are_a_round_each_keep_no_known_one_waiting() -> None:
    connections, _ = connections_of(41, 0.03)
    *others, known = connections
    known.charge(0.02)
    for connection in connections:
        connection.data_received(frame(7))
    while known.is_behind:
        await asyncio.sleep(0)
    assert sum(written_to(connection) > 0 for connection in others) < 5
    for connection in connections:
        connection.connection_lost(None)


@pytest.mark.usefixtures("own_time")
async def test_a_large_frame_waits_for_another_round() -> None:
    """A large frame is deferred, even if its connection was cheap until then."""
    connections, slices = connections_of(10, 0.0075)
    for connection in connections:
        connection.data_received(frame(ECHO))
        connection.data_received(frame(7, bytes(200_000))[:-1])
    began = [written_to(connection) for connection in connections]
    for connection in connections:
        assert not connection.is_busy()
        connection.data_received(b"\0")
    assert slices.used > ROUND_S
    assert sum(connection.is_behind for connection in connections) == 7
    while any(connection.is_behind for connection in connections):
        await asyncio.sleep(0)
    assert all(written_to(connection) > before for connection, before in zip(connections, began, strict=True))
    for connection in connections:
        connection.connection_lost(None)


@pytest.mark.usefixtures("own_time")
async def test_many_short_turns_are_served_when_the_round_is_used_up() -> None:
    """A connection with short time slices is served even after the budget of the iteration is used up.

    On a slow machine, 100 small messages a second take more than the share of a cheap connection.
    """
    (client, flooder), slices = connections_of(2, SHORT_SLICE_S / 5)

    def receive_when_used_up(connection: Connection) -> bool:
        slices.used = 2 * ROUND_S
        slices.used_much()
        connection.data_received(frame(7))
        return not connection.is_behind

    for _ in range(100):
        client.data_received(frame(7))
    assert client.is_busy()
    assert receive_when_used_up(client)
    # After one long time slice, the connection is deferred.
    client.charge(SLICE_S)
    assert not receive_when_used_up(client)
    # A connection is also deferred if requests are left after its time slices.
    flooder.data_received(frame(7))
    flooder.data_received(frame(7) * 300)
    await until(lambda: not flooder.is_behind)
    assert flooder.is_busy()
    assert not receive_when_used_up(flooder)
    for connection in (client, flooder):
        connection.connection_lost(None)


@pytest.mark.usefixtures("own_time")
async def test_who_has_nothing_left_is_not_put_off() -> None:
    """A connection without pending requests is not deferred, however long its last one took.

    Otherwise its next request would wait for many other connections.
    """
    (slow,), slices = connections_of(1, 0.03)
    slow.data_received(frame(7))
    assert slices.used > ROUND_S
    assert not slow.is_behind
    assert is_read(slow)
    slow.connection_lost(None)


@pytest.mark.usefixtures("own_time")
async def test_a_connection_that_is_lost_while_it_waits_for_its_turn_is_forgotten() -> None:
    connections, slices = connections_of(5, 0.03)
    for connection in connections:
        connection.data_received(frame(7) * 2)
    for connection in connections:
        connection.connection_lost(None)
    assert slices.used > ROUND_S
    await until(lambda: not slices.used)
    assert not any(connection.is_behind for connection in connections)


@pytest.mark.usefixtures("own_time")
async def test_a_busy_connection_is_cheap_again_when_it_was_idle() -> None:
    (busy_one,), _ = connections_of(1, 0.03)
    busy_one.data_received(frame(7))
    assert busy_one.is_busy()
    busy_one.last_read -= 2.1
    assert not busy_one.is_busy()
    busy_one.connection_lost(None)


async def test_requests_behind_a_slow_one_wait_for_the_next_turn() -> None:
    order: list[str] = []

    def slow(connection: Connection, request: RemotingCommand) -> Reply:
        asyncio.get_running_loop().call_soon(order.append, "others")
        busy(2 * SLICE_S)
        order.append("slow")
        return RemotingCommand.response()

    def quick(connection: Connection, request: RemotingCommand) -> Reply:
        order.append("quick")
        return RemotingCommand.response()

    async with serving({7: slow, 8: quick}) as server, peer_of(server) as peer:
        await peer.send(frame(7, opaque=1) + frame(8, opaque=2) + frame(8, opaque=3))
        answers = await peer.commands(3)
        assert [answer.opaque for answer in answers] == [1, 2, 3]
        # New input arrives, so the connection is read again.
        await peer.send(frame(8, opaque=4))
        assert (await peer.commands(1))[0].opaque == 4
    assert order == ["slow", "others", "quick", "quick", "quick"]


async def test_a_peer_that_ends_its_half_gets_the_answers_of_later_turns() -> None:
    def slow(connection: Connection, request: RemotingCommand) -> Reply:
        busy(1.1 * SLICE_S)
        return RemotingCommand.response()

    async with serving({7: slow}) as server, peer_of(server) as peer:
        await peer.send(b"".join(frame(7, opaque=n) for n in range(5)))
        peer.sock.shutdown(1)
        assert [answer.opaque for answer in await peer.commands(5)] == list(range(5))
        await peer.closed_by_other()


async def test_stop_answers_what_has_arrived_though_it_takes_several_turns() -> None:
    began = asyncio.Event()

    def slow(connection: Connection, request: RemotingCommand) -> Reply:
        began.set()
        busy(1.1 * SLICE_S)
        return RemotingCommand.response()

    async with serving({7: slow}) as server, peer_of(server) as peer:
        await peer.send(b"".join(frame(7, opaque=n) for n in range(10)))
        await began.wait()
        answers, _ = await asyncio.gather(peer.commands(10), server.drain())
        assert len(answers) == 10


# -- measurements ---------------------------------------------------------------------------------------------------


async def test_slow_requests_are_logged_the_first_at_once_then_the_slowest(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(loop_watch, "monotonic", lambda: now)
    watch = LoopWatch()
    for seconds in (0.2, 0.3, 0.5, 0.4):
        watch.slow_request(10, "127.0.0.1:1", seconds, 4)
    assert [record.getMessage() for record in caplog.records] == ["slow request code=10 peer=127.0.0.1:1 ms=200 body=4"]
    watch.beat()
    assert len(caplog.records) == 1
    now += loop_watch.REPORT_S
    watch.beat()
    watch.beat()
    assert [record.getMessage() for record in caplog.records[1:]] == [
        "slow request code=10 peer=127.0.0.1:1 ms=500 body=4 (the slowest of 3 since the last such line)"
    ]


async def test_a_stall_is_in_the_metrics() -> None:
    def slow(connection: Connection, request: RemotingCommand) -> Reply:
        busy(1.1 * SLOW_REQUEST_S)
        return RemotingCommand.response()

    async with serving({7: slow}) as server, calling() as client:
        await until(lambda: server.loop_watch.lateness.count)
        beats = server.loop_watch.lateness.count
        await client.invoke(address(server), RemotingCommand.request(ECHO))
        await client.invoke(address(server), RemotingCommand.request(7))
        await until(lambda: server.loop_watch.lateness.count > beats)
        text = render(server.loop_watch.metrics({"broker": "b"})).decode()
    assert 'gantry_loop_iteration_seconds_bucket{broker="b",le="0.1"} 0\n' in text
    assert 'gantry_loop_iteration_seconds_bucket{broker="b",le="+Inf"} 1\n' in text
    assert 'gantry_loop_iteration_seconds_count{broker="b"} 1\n' in text
    assert "# TYPE gantry_loop_lateness_seconds histogram\n" in text
    # The iteration was late by the duration of the request, minus the time before it was due.
    assert server.loop_watch.lateness.sum > 0.1 * SLOW_REQUEST_S


# -- limits for one peer --------------------------------------------------------------------------------------------


async def test_answers_by_tasks_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    change_constant(monkeypatch, "server.RESPONSE_TASKS", replace(RESPONSE_TASKS, items_of_one=3))
    go_on = asyncio.Event()

    async def work() -> RemotingCommand:
        await go_on.wait()
        return RemotingCommand.response()

    def relay(connection: Connection, request: RemotingCommand) -> Reply:
        connection.respond_with(request, work())
        return None

    async with serving({7: relay}) as server, peer_of(server) as peer, peer_of(server) as other:
        await peer.send(b"".join(frame(7, opaque=n) for n in range(10)) + frame(ECHO, opaque=10))
        answers = await peer.commands(8)
        assert [(answer.opaque, answer.code) for answer in answers] == [
            *((n, ResponseCode.SYSTEM_BUSY) for n in range(3, 10)),
            (10, 0),
        ]
        assert (answers[0].remark or "").startswith("[OVERLOAD]system busy")
        # Each connection has its own limit.
        await other.send(frame(7, opaque=1) + frame(ECHO, opaque=2))
        assert [answer.opaque for answer in await other.commands(1)] == [2]
        go_on.set()
        assert sorted(answer.opaque for answer in await peer.commands(3)) == [0, 1, 2]
        await peer.send(frame(7, opaque=11))
        assert (await peer.commands(1))[0].code == 0


async def test_bodies_of_answers_by_tasks_have_a_bound_for_all_connections() -> None:
    began: list[int] = []

    async def work(number: int) -> RemotingCommand:
        began.append(number)
        await asyncio.Event().wait()
        raise AssertionError

    def relay(connection: Connection, request: RemotingCommand) -> Reply:
        connection.respond_with(request, work(request.opaque))
        return None

    body = bytes(4 * 1024 * 1024)
    async with serving({7: relay}) as server, AsyncExitStack() as stack:
        for number in range(8):
            peer = await stack.enter_async_context(peer_of(server))
            for _ in range(5):
                await peer.send(frame(7, body, number))
            await peer.send(frame(ECHO, opaque=99))
            answers = await peer.commands(1)
            while answers[-1].opaque != 99:
                answers += await peer.commands(1)
            assert {answer.code for answer in answers[:-1]} <= {ResponseCode.SYSTEM_BUSY}
            refused = len(answers) - 1
            assert began.count(number) == 5 - refused
        # With the overhead of tasks, three requests fit into the limit of one connection. The limit of a host can leave
        # less.
        assert began == [0, 0, 0, 1, 1, 2]
        # A smaller request still fits.
        await peer.send(frame(7, bytes(100_000), 100) + frame(ECHO, opaque=101))
        assert [answer.opaque for answer in await peer.commands(1)] == [101]
        assert began[-1] == 100


async def test_a_peer_that_does_not_read_is_not_sent_notifications_without_end() -> None:
    notification = RemotingCommand.request(40, body=bytes(100_000))
    async with serving() as server, peer_of(server, receive_buffer=65536):
        connection = await only_connection(server)

        def notify() -> None:
            for _ in range(1000):
                connection.send_oneway(notification)

        with pytest.raises(RequestTimeout, match="doesn't take"):
            notify()
        assert connection.unwritten_bytes <= ONEWAY_LIMIT + 200_000


@pytest.mark.parametrize("is_server", [False, True])
async def test_answers_by_tasks_to_a_peer_that_does_not_read_end(is_server: bool) -> None:
    """Servers and clients both answer requests, because a server can send requests to its client."""

    async def answer() -> RemotingCommand:
        await asyncio.sleep(0)
        return RemotingCommand.response(body=bytes(1 << 20))

    def handler(connection: Connection, request: RemotingCommand) -> Reply:
        connection.respond_with(request, answer())
        return None

    class Untaken(Swallowing):
        """A transport whose peer reads nothing."""

        aborted = False

        def write(self, data: bytes | bytearray | memoryview) -> None:
            super().write(data)
            if self.written > WRITE_HIGH_WATER and not connection.is_full:
                connection.pause_writing()

        def get_write_buffer_size(self) -> int:
            return self.written

        def abort(self) -> None:
            self.aborted = True

    connection = Connection({7: handler}, is_server=is_server)
    transport = Untaken()
    connection.connection_made(transport)
    connection.data_received(frame(7) * 500)
    await until(lambda: transport.aborted)
    assert transport.written <= (UNTAKEN_LIMIT if is_server else ONEWAY_LIMIT) + (2 << 20)
    connection.connection_lost(None)


# -- log lines that a peer causes -----------------------------------------------------------------------------------


async def test_unknown_codes_do_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gantrymq.remoting")
    async with serving() as server, peer_of(server) as peer:
        await peer.send(b"".join(frame(999, opaque=n) for n in range(1000)))
        await peer.commands(1000)
    assert 1 <= len(caplog.records) < 50


async def test_a_peer_s_text_begins_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def failing(connection: Connection, request: RemotingCommand) -> Reply:
        raise RuntimeError(f"no topic {request.body.decode()}")

    caplog.set_level(logging.INFO, "gantrymq.remoting")
    async with serving({7: failing}) as server, peer_of(server) as peer:
        await peer.send(frame(7, b"x\n2026-01-01 INFO forged"))
        await peer.commands(1)
    assert caplog.records
    assert all("\n" not in record.getMessage() for record in caplog.records)
