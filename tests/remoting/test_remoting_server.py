"""The server on real sockets.

The tests cover order, errors, misbehaving peers, and the buffers for peers that do not read.
"""

from __future__ import annotations

import asyncio
import gc
import mmap
import socket
import time
import warnings
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from struct import pack

import pytest
from constants import change_constant
from remoting_support import (
    ECHO,
    SILENT,
    Peer,
    address,
    calling,
    frame,
    only_connection,
    peer_of,
    serving,
)
from wait_until import until

from gantrymq.errors import GantryError, HeaderError, RequestRefused
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import MAX_FRAME_LENGTH, ONEWAY_FLAG, RemotingCommand, SerializeType
from gantrymq.protocol.frame_reader import FrameReader
from gantrymq.remoting import connection as connection_module
from gantrymq.remoting.connection import BATCH_LIMIT, Connection, Reply
from gantrymq.remoting.flow_control import WRITE_HIGH_WATER
from gantrymq.remoting.listener import ListenOptions
from gantrymq.remoting.loop_watch import SLOW_REQUEST_S
from gantrymq.remoting.server import RemotingServer

ENCODINGS = pytest.mark.parametrize("encoding", SerializeType)


async def test_a_request_that_holds_up_the_loop_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def slow(connection: Connection, request: RemotingCommand) -> Reply:
        until = time.monotonic() + 1.1 * SLOW_REQUEST_S
        while time.monotonic() < until:
            pass
        return RemotingCommand.response()

    async with serving({7: slow}) as server, calling() as client:
        await client.invoke(address(server), RemotingCommand.request(ECHO))
        await client.invoke(address(server), RemotingCommand.request(7, body=b"four"))
    lines = [record.getMessage() for record in caplog.records]
    (line,) = [line for line in lines if line.startswith("slow request code=7 ")]
    assert "peer=127.0.0.1:" in line
    assert line.endswith("body=4")


# -- responses ------------------------------------------------------------------------------------------------------


@ENCODINGS
async def test_requests_of_one_write_are_answered_in_one_write_in_order(
    encoding: SerializeType, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All in one time slice: it ends after 5 ms, which a slow machine could exceed.
    monkeypatch.setattr(connection_module, "monotonic", lambda: 1000.0)
    peers: list[Peer] = []
    early: list[int] = []

    def handler(connection: Connection, request: RemotingCommand) -> Reply:
        if not peers[0].nothing_to_read():
            early.append(request.opaque)
        # Returns encoded frames and commands in turn.
        if request.opaque % 2:
            return RemotingCommand.response(body=request.body)
        response = RemotingCommand.response()
        response.opaque = request.opaque
        response.serialize_type = request.serialize_type
        return [response.encode_head(len(request.body)), memoryview(request.body)]

    async with serving({7: handler}) as server, peer_of(server) as peer:
        peers.append(peer)
        await peer.send(b"".join(frame(7, b"body %d" % n, n, encoding) for n in range(32)))
        answers = await peer.commands(32)

    assert [(answer.opaque, answer.body) for answer in answers] == [(n, b"body %d" % n) for n in range(32)]
    assert {answer.serialize_type for answer in answers} == {encoding}
    assert all(answer.is_response for answer in answers)
    assert early == []


@ENCODINGS
@pytest.mark.parametrize("opaque", [-5, -(2**31), 2**31 - 1, 0])
async def test_opaque_numbers_of_java_that_wrapped_around(opaque: int, encoding: SerializeType) -> None:
    async with serving() as server, peer_of(server) as peer:
        await peer.send(frame(ECHO, b"x", opaque, encoding))
        (answer,) = await peer.commands(1)
    assert (answer.opaque, answer.body) == (opaque, b"x")


async def test_one_byte_at_a_time() -> None:
    async with serving() as server, peer_of(server) as peer:
        peer.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in frame(ECHO, b"slow"):
            await peer.send(bytes([byte]))
            await asyncio.sleep(0)
        (answer,) = await peer.commands(1)
    assert answer.body == b"slow"


async def test_oneway_requests_get_no_answer() -> None:
    def refusing(connection: Connection, request: RemotingCommand) -> Reply:
        raise RequestRefused(17, "no")

    oneway = []
    for code in (ECHO, 7, 999):
        command = RemotingCommand.request(code)
        command.flag = 2
        oneway.append(command.encode())
    async with serving({7: refusing}) as server, peer_of(server) as peer:
        await peer.send(b"".join(oneway) + frame(ECHO, b"the only answer"))
        (answer,) = await peer.commands(1)
    assert answer.body == b"the only answer"


async def test_a_late_answer() -> None:
    waiting: list[tuple[Connection, RemotingCommand]] = []

    def long_poll(connection: Connection, request: RemotingCommand) -> Reply:
        waiting.append((connection, request))
        return None

    async with serving({7: long_poll}) as server, peer_of(server) as peer:
        await peer.send(frame(7, opaque=1) + frame(ECHO, opaque=2))
        (second,) = await peer.commands(1)
        connection, request = waiting[0]
        connection.reply(request, RemotingCommand.response(ResponseCode.PULL_NOT_FOUND))
        (first,) = await peer.commands(1)
    assert (second.opaque, first.opaque, first.code) == (2, 1, 19)


async def test_a_command_of_another_server_is_passed_on_in_the_peers_encoding() -> None:
    original = RemotingCommand.response(fields={"a": "b"}, body=b"x")
    original.serialize_type = SerializeType.ROCKETMQ
    (decoded,) = FrameReader().feed(original.encode())

    async with serving({7: lambda connection, request: decoded}) as server, peer_of(server) as peer:
        await peer.send(frame(7, opaque=5, encoding=SerializeType.JSON))
        (answer,) = await peer.commands(1)
    assert (answer.ext_fields, answer.serialize_type, answer.opaque) == ({"a": "b"}, SerializeType.JSON, 5)


# -- errors ---------------------------------------------------------------------------------------------------------


@ENCODINGS
@pytest.mark.parametrize(
    ("error", "code", "remark"),
    [
        (RequestRefused(ResponseCode.TOPIC_NOT_EXIST, "topic[x] not exist"), 17, "topic[x] not exist"),
        (HeaderError("missing `topic`"), 1, "HeaderError: missing `topic`"),
        (RuntimeError("a bug"), 1, "RuntimeError: a bug"),
        (RuntimeError("\ud800"), 1, "RuntimeError: \\ud800"),
        (RuntimeError("x" * 100_000), 1, ("RuntimeError: " + "x" * 100_000)[:2000]),
    ],
)
async def test_a_handler_that_raises(error: Exception, code: int, remark: str, encoding: SerializeType) -> None:
    def handler(connection: Connection, request: RemotingCommand) -> Reply:
        raise error

    async with serving({7: handler}) as server, peer_of(server) as peer:
        await peer.send(frame(7, opaque=1, encoding=encoding) + frame(ECHO, opaque=2, encoding=encoding))
        refused, served = await peer.commands(2)
    assert (refused.opaque, refused.code, refused.remark, refused.is_response) == (1, code, remark, True)
    assert (served.opaque, served.code) == (2, 0)


async def test_a_one_way_request_that_is_refused_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def handler(connection: Connection, request: RemotingCommand) -> Reply:
        raise RequestRefused(ResponseCode.SYSTEM_BUSY, "too much waits")

    request = RemotingCommand.request(7)
    request.flag |= ONEWAY_FLAG
    async with serving({7: handler}) as server, peer_of(server) as peer:
        await peer.send(request.encode() + frame(7, opaque=2))
        (refused,) = await peer.commands(1)
    assert refused.opaque == 2
    (line,) = caplog.messages
    assert line.startswith("one-way request 7 of 127.0.0.1:")
    assert line.endswith(" is dropped: too much waits")


async def test_an_unknown_request_code() -> None:
    async with serving() as server, peer_of(server) as peer:
        await peer.send(frame(12345, opaque=1) + frame(513, opaque=2) + frame(ECHO, opaque=3))
        unknown, static_topic, served = await peer.commands(3)
    assert (unknown.code, unknown.remark) == (3, " request type 12345 not supported")
    assert (static_topic.remark or "").startswith(" request type 513 not supported: static topics are not supported: ")
    assert served.code == 0


@pytest.mark.parametrize(
    "answer",
    [
        RemotingCommand.response(200050),
        RemotingCommand.response(0, "\ud800"),
        RemotingCommand.response(fields={"a": "\ud800"}),
    ],
)
async def test_an_answer_that_cannot_be_written(answer: RemotingCommand) -> None:
    async with serving({7: lambda connection, request: answer}) as server, peer_of(server) as peer:
        await peer.send(frame(7, opaque=1, encoding=SerializeType.ROCKETMQ) + frame(ECHO, opaque=2))
        failed, served = await peer.commands(2)
    assert (failed.opaque, failed.code) == (1, ResponseCode.SYSTEM_ERROR)
    assert failed.remark is not None
    assert failed.remark.startswith("HeaderError: ")
    assert served.opaque == 2


BAD_HEADER = pack(">iI", 4 + 5, 5) + b"{nope"


@pytest.mark.parametrize(
    "garbage",
    [
        pack(">iI", MAX_FRAME_LENGTH + 1, 0),
        pack(">iI", -1, 0),
        pack(">iI", 0, 0),
        b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
        BAD_HEADER,
        pack(">iI", 4 + 2, 9 << 24 | 2) + b"{}",
        pack(">iI", 4, 0xFFFFFF),
    ],
)
async def test_garbage_ends_its_connection_alone(garbage: bytes) -> None:
    async with serving() as server, peer_of(server) as good, peer_of(server) as bad:
        await bad.send(frame(ECHO, b"before") + garbage + frame(ECHO, b"after"))
        (before,) = await bad.commands(1)
        assert before.body == b"before"
        await bad.closed_by_other()

        await good.send(frame(ECHO, b"others are served"))
        (answer,) = await good.commands(1)
        assert answer.body == b"others are served"
        await until(lambda: len(server.connections) == 1)


async def test_a_handler_that_closes_the_connection() -> None:
    handled: list[int] = []

    def closing(connection: Connection, request: RemotingCommand) -> Reply:
        handled.append(request.opaque)
        if request.opaque == 2:
            connection.close()
        return RemotingCommand.response()

    async with serving({7: closing}) as server, peer_of(server) as peer:
        await peer.send(b"".join(frame(7, opaque=n) for n in (1, 2, 3)))
        (answer,) = await peer.commands(1)
        await peer.closed_by_other()
    assert answer.opaque == 1
    assert handled == [1, 2]


# -- responses of tasks ---------------------------------------------------------------------------------------------


async def test_respond_with() -> None:
    async def work(request: RemotingCommand) -> RemotingCommand:
        await asyncio.sleep(0)
        if request.body == b"refuse":
            raise RequestRefused(16, "no permission")
        if request.body == b"cancel":
            raise asyncio.CancelledError
        return RemotingCommand.response(body=request.body)

    def handler(connection: Connection, request: RemotingCommand) -> Reply:
        connection.respond_with(request, work(request))
        return None

    async with serving({7: handler}) as server, peer_of(server) as peer:
        await peer.send(frame(7, b"do", 1) + frame(7, b"refuse", 2) + frame(7, b"cancel", 3))
        answers = {answer.opaque: answer for answer in await peer.commands(3)}
    assert (answers[1].code, answers[1].body) == (0, b"do")
    assert (answers[2].code, answers[2].remark) == (16, "no permission")
    assert answers[3].code == ResponseCode.SYSTEM_ERROR


async def test_work_ends_with_its_connection() -> None:
    states: list[str] = []

    async def work() -> RemotingCommand:
        states.append("started")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            states.append("cancelled")
            raise
        raise AssertionError

    def handler(connection: Connection, request: RemotingCommand) -> Reply:
        connection.respond_with(request, work())
        return None

    async with serving({7: handler}) as server:
        async with peer_of(server) as peer:
            await peer.send(frame(7))
            await until(lambda: states)
        await until(lambda: len(states) == 2)
        assert states == ["started", "cancelled"]
        await until(lambda: not server.response_tasks.all.items)


async def test_work_for_a_peer_that_is_gone_never_starts() -> None:
    async def work() -> RemotingCommand:
        raise AssertionError

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "coroutine was never awaited"
        async with serving() as server:
            async with peer_of(server):
                connection = await only_connection(server)
            await until(lambda: not server.connections)
            connection.respond_with(RemotingCommand.request(SILENT), work())
        gc.collect()


# -- misbehaving peers ----------------------------------------------------------------------------------------------


async def test_a_peer_that_ends_its_half_still_gets_its_answer() -> None:
    async with serving() as server, peer_of(server) as peer:
        await peer.send(frame(ECHO, b"last words"))
        peer.sock.shutdown(socket.SHUT_WR)
        (answer,) = await peer.commands(1)
        await peer.closed_by_other()
    assert answer.body == b"last words"


async def test_a_peer_that_resets() -> None:
    closed: list[Connection] = []
    async with serving(on_close=closed.append) as server:
        async with peer_of(server) as peer:
            await peer.send(frame(SILENT) + frame(ECHO)[:10])
            await only_connection(server)
            peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
        await until(lambda: len(closed) == 1)
        assert not server.connections
        assert closed[0].is_closed
        closed[0].reply(RemotingCommand.request(SILENT), RemotingCommand.response())  # Too late, and no error.


ANSWER = 16 * 1024


async def fill(peer: Peer, connection: Connection, handled: Callable[[], int], code: int) -> int:
    """Sends requests without reading until the server stops reading, and returns their number."""
    sent = 0
    while not connection.is_full:
        assert sent < 10_000, "the server goes on reading"
        await peer.send(b"".join(frame(code, opaque=sent + n) for n in range(16)))
        sent += 16
        await until(lambda sent=sent: handled() == sent or connection.is_full)
    return sent


async def test_a_slow_reader_is_not_read_any_further_and_others_are_served() -> None:
    handled = 0
    body = bytes(ANSWER)

    def handler(connection: Connection, request: RemotingCommand) -> Reply:
        nonlocal handled
        handled += 1
        return RemotingCommand.response(body=body)

    async with serving({7: handler}) as server, peer_of(server, receive_buffer=65536) as slow:
        connection = await only_connection(server)
        sent = await fill(slow, connection, lambda: handled, 7)
        handled_when_full = handled

        # From here on, all input waits in the kernel, however much it is.
        more = b"".join(frame(7, opaque=sent + n) for n in range(2000))
        taken = slow.send_what_fits(more)
        async with calling() as client:
            for n in range(200):
                answer = await client.invoke(address(server), RemotingCommand.request(ECHO, body=b"%d" % n))
                assert answer.body == b"%d" % n
        assert handled - handled_when_full <= 16
        assert connection.unwritten_bytes <= WRITE_HIGH_WATER + 32 * (ANSWER + 1000)

        # The peer reads again. It gets every response in order, including those to the later requests.
        rest = asyncio.ensure_future(slow.send(more[taken:]))
        answers = await slow.commands(sent + 2000)
        await rest
        assert [answer.opaque for answer in answers] == list(range(sent + 2000))
        assert handled == sent + 2000
        assert not connection.is_full


async def test_large_answers_to_one_read_wait_for_the_peer() -> None:
    handled = 0
    body = memoryview(bytes(4 * 1024 * 1024))

    def handler(connection: Connection, request: RemotingCommand) -> Reply:
        nonlocal handled
        handled += 1
        response = RemotingCommand.response()
        response.opaque = request.opaque
        return [response.encode_head(len(body)), body]

    async with serving({7: handler}) as server, peer_of(server, receive_buffer=65536) as slow:
        connection = await only_connection(server)
        # All in one read, or in a few.
        await slow.send(b"".join(frame(7, opaque=n) for n in range(40)))
        await until(lambda: connection.is_full)
        for _ in range(20):
            await asyncio.sleep(0)
            assert connection.unwritten_bytes <= WRITE_HIGH_WATER + BATCH_LIMIT + len(body) + 1000
        assert handled < 8

        # Later requests wait as well, and their responses come in order.
        await slow.send(frame(ECHO, b"last", opaque=40))
        answers = [await slow.commands(1) for _ in range(41)]
        assert [answer.opaque for (answer,) in answers] == list(range(41))
        assert answers[-1][0].body == b"last"
        assert handled == 40
        assert not connection.is_full


async def test_a_peer_that_leaves_large_answers_behind() -> None:
    async with serving({7: large}) as server:
        async with peer_of(server, receive_buffer=65536) as slow:
            connection = await only_connection(server)
            await slow.send(b"".join(frame(7, opaque=n) for n in range(100)))
            await until(lambda: connection.is_full)
        await until(lambda: not server.connections)


async def test_stop_while_requests_wait_for_the_peer() -> None:
    async with serving({7: large}) as server, peer_of(server, receive_buffer=65536) as slow:
        connection = await only_connection(server)
        await slow.send(b"".join(frame(7, opaque=n) for n in range(100)))
        await until(lambda: connection.is_full)
        await asyncio.wait_for(server.stop(), 10)
        assert not server.connections


def large(connection: Connection, request: RemotingCommand) -> Reply:
    return RemotingCommand.response(body=bytes(4 * 1024 * 1024))


async def test_a_slow_reader_that_leaves_takes_nothing_along() -> None:
    handled = 0

    def handler(connection: Connection, request: RemotingCommand) -> Reply:
        nonlocal handled
        handled += 1
        return RemotingCommand.response(body=bytes(ANSWER))

    async with serving({7: handler}) as server:
        async with peer_of(server, receive_buffer=65536) as slow:
            connection = await only_connection(server)
            await fill(slow, connection, lambda: handled, 7)
        # A close with unread bytes resets the connection. The next write detects it.
        await until(lambda: not server.connections)
        assert not connection.is_full


@pytest.mark.parametrize("how", ["read", "reset", "abort"])
async def test_memory_of_a_mapped_file_is_held_until_it_is_sent(how: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"0123456789abcdef" * 1024 * 1024)
    with path.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)

    def handler(connection: Connection, request: RemotingCommand) -> Reply:
        response = RemotingCommand.response()
        response.opaque = request.opaque
        size = 12 * 1024 * 1024
        return [response.encode_head(size), memoryview(mapped)[:size]]

    async with serving({7: handler}) as server, peer_of(server, receive_buffer=65536) as peer:
        await peer.send(frame(7))
        connection = await only_connection(server)
        await until(lambda: connection.is_full)
        with pytest.raises(BufferError):
            mapped.close()

        if how == "read":
            (answer,) = await peer.commands(1)
            assert answer.body == b"0123456789abcdef" * (12 * 1024 * 64)
        elif how == "reset":
            peer.close()
        else:
            connection.abort()
        await until(lambda: connection.is_closed or not connection.unwritten_bytes)

        def unmapped() -> bool:
            try:
                mapped.close()
            except BufferError:
                return False
            return True

        await until(unmapped)


async def test_idle_connections_are_closed() -> None:
    async with serving(max_idle_s=120) as server, peer_of(server) as idle:
        silent = await only_connection(server)
        async with peer_of(server) as busy:
            await until(lambda: len(server.connections) == 2)
            (talking,) = set(server.connections) - {silent}
            # A minute later.
            silent.last_read -= 60
            talking.last_read -= 60
            await busy.send(frame(ECHO))
            await busy.commands(1)
            # Another minute later.
            silent.last_read -= 60
            talking.last_read -= 60
            await idle.closed_by_other()
            assert set(server.connections) == {talking}


async def test_an_idle_connection_is_closed_within_about_a_second() -> None:
    async with serving(max_idle_s=120) as server, peer_of(server) as idle:
        connection = await only_connection(server)
        began = time.monotonic()
        connection.last_read = began - 119
        await idle.closed_by_other()
        # Usually at most 2 s. The bound allows for a busy machine.
        assert 1 <= time.monotonic() - began < 10


async def test_very_many_idle_connections_are_closed_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    change_constant(monkeypatch, "server.CLOSED_PER_TURN", 5)
    closed_in_turn: list[int] = []
    closed = 0

    def on_close(connection: Connection) -> None:
        nonlocal closed
        if not closed:
            asyncio.get_running_loop().call_soon(turn_ended)
        closed += 1

    def turn_ended() -> None:
        nonlocal closed
        closed_in_turn.append(closed)
        closed = 0

    async with serving(max_idle_s=120, on_close=on_close) as server, AsyncExitStack() as stack:
        for _ in range(23):
            await stack.enter_async_context(peer_of(server))
        await until(lambda: len(server.connections) == 23)
        for connection in server.connections:
            connection.last_read -= 121
        await until(lambda: sum(closed_in_turn) == 23)
    assert max(closed_in_turn) == 5


async def test_idle_slow_readers_are_closed_too() -> None:
    handled = 0

    def handler(connection: Connection, request: RemotingCommand) -> Reply:
        nonlocal handled
        handled += 1
        return RemotingCommand.response(body=bytes(ANSWER))

    async with serving({7: handler}, max_idle_s=120) as server, peer_of(server, receive_buffer=65536) as slow:
        connection = await only_connection(server)
        await fill(slow, connection, lambda: handled, 7)
        connection.last_read -= 121
        await until(lambda: not server.connections)


# -- start and stop -------------------------------------------------------------------------------------------------


async def test_stop_sends_what_was_answered() -> None:
    answered = asyncio.Event()

    def handler(connection: Connection, request: RemotingCommand) -> Reply:
        answered.set()
        return RemotingCommand.response(body=request.body)

    async with serving({7: handler}) as server, peer_of(server) as peer:
        await peer.send(frame(7, bytes(1_000_000)))
        await answered.wait()
        (answer,), _ = await asyncio.gather(peer.commands(1), server.stop())
        assert len(answer.body) == 1_000_000
        await peer.closed_by_other()
        assert not server.connections


async def test_stop_does_not_wait_for_ever() -> None:
    handled = 0

    def handler(connection: Connection, request: RemotingCommand) -> Reply:
        nonlocal handled
        handled += 1
        return RemotingCommand.response(body=bytes(ANSWER))

    async with serving({7: handler}) as server, peer_of(server, receive_buffer=65536) as slow:
        await fill(slow, await only_connection(server), lambda: handled, 7)
        await asyncio.wait_for(server.stop(), 10)
        assert not server.connections


async def test_stop_twice_and_again() -> None:
    async with serving() as server:
        await server.stop()
        await server.stop()
        await server.start()
        async with calling() as client:
            assert (await client.call(address(server), RemotingCommand.request(ECHO, body=b"x"))).body == b"x"


async def test_a_port_that_is_taken() -> None:
    async with serving() as server:
        with pytest.raises(GantryError, match=rf"127.0.0.1:{server.port}.*is another server using it"):
            RemotingServer({}, ListenOptions("127.0.0.1", server.port))


class Guard:
    """A hook like that of access control."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, int]] = []

    def before_request(self, address: str, request: RemotingCommand) -> None:
        if request.ext_fields.get("password") != "swordfish":
            raise RequestRefused(ResponseCode.NO_PERMISSION, "who are you")

    def after_response(self, address: str, request: RemotingCommand, response: RemotingCommand) -> None:
        self.seen.append((address, request.code, response.code))
        if response.body == b"spoil":
            raise RuntimeError("a broken hook")


async def test_hooks() -> None:
    guard = Guard()
    async with serving(hooks=[guard]) as server, calling() as client:
        for fields, body, code in [
            ({"password": "swordfish"}, b"in", 0),
            ({}, b"out", ResponseCode.NO_PERMISSION),
            ({"password": "swordfish"}, b"spoil", ResponseCode.SYSTEM_ERROR),
        ]:
            request = RemotingCommand.request(ECHO, body=body, fields=fields)
            assert (await client.invoke(address(server), request)).code == code
    assert [(code, answer) for _, code, answer in guard.seen] == [(ECHO, 0), (ECHO, 16), (ECHO, 0)]
    assert guard.seen[0][0].startswith("127.0.0.1:")
