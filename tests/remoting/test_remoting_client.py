"""The client on real sockets: connects, timeouts, lost connections, and requests of the server."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvloop
from ports import free_port
from remoting_support import (
    ECHO,
    SILENT,
    Peer,
    address,
    calling,
    only_connection,
    serving,
)
from wait_until import until

from gantrymq.errors import BrokerError, ClientClosed, ConnectFailed, ConnectionLost, RequestRefused, RequestTimeout
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import MAX_FRAME_LENGTH, RemotingCommand, SerializeType
from gantrymq.remoting.address import parse_address
from gantrymq.remoting.connection import Connection, Reply
from gantrymq.remoting.flow_control import WRITE_HIGH_WATER

MIB = 1024 * 1024


@asynccontextmanager
async def listening() -> AsyncIterator[socket.socket]:
    """Yields a socket whose connections the kernel accepts, and which never answers."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.setblocking(False)
        yield sock


def address_of(sock: socket.socket) -> str:
    return f"127.0.0.1:{sock.getsockname()[1]}"


async def accepted(sock: socket.socket) -> Peer:
    peer, _ = await asyncio.wait_for(asyncio.get_running_loop().sock_accept(sock), 20)
    peer.setblocking(False)
    return Peer(peer)


def request(body: bytes = b"", code: int = ECHO) -> RemotingCommand:
    return RemotingCommand.request(code, body=body)


# -- requests -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", SerializeType)
@pytest.mark.parametrize("size", [0, 1, 65536, 65537, 15 * MIB])
async def test_request_and_response(size: int, encoding: SerializeType) -> None:
    async with serving() as server, calling() as client:
        sent = request(bytes(size))
        sent.serialize_type = encoding
        answer = await client.call(address(server), sent, timeout_ms=20_000)
    assert answer.body == bytes(size)


async def test_many_callers_get_their_own_answers() -> None:
    async with serving() as server, calling() as client:
        answers = await asyncio.gather(*(client.invoke(address(server), request(b"%d" % n)) for n in range(500)))
        assert len(server.connections) == 1
    assert [answer.body for answer in answers] == [b"%d" % n for n in range(500)]


async def test_one_request_sent_twice_at_once() -> None:
    same = request(b"same")
    async with serving() as server, calling() as client:
        answers = await asyncio.gather(*(client.invoke(address(server), same) for _ in range(3)))
        connection = await client.connection(address(server))
        await until(lambda: not connection.awaits_answers)
    assert [answer.body for answer in answers] == [b"same"] * 3


async def test_opaque_numbers_begin_again() -> None:
    async with serving() as server, calling() as client:
        connection = await client.connection(address(server))
        connection._next_opaque = 2**31 - 2
        opaques = [(await connection.invoke(request(b"x"))).opaque for _ in range(3)]
    assert opaques == [2**31 - 1, 0, 1]


async def test_call_raises_for_other_codes() -> None:
    def refusing(connection: Connection, request: RemotingCommand) -> Reply:
        raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, "no such topic")

    async with serving({7: refusing}) as server, calling() as client:
        with pytest.raises(BrokerError, match="no such topic") as caught:
            await client.call(address(server), request(code=7))
        assert (caught.value.code, caught.value.address) == (17, address(server))
        assert (await client.invoke(address(server), request(code=7))).code == 17


async def test_oneway() -> None:
    got: list[bytes] = []

    def handler(connection: Connection, request: RemotingCommand) -> Reply:
        got.append(request.body)
        return RemotingCommand.response()

    async with serving({7: handler}) as server, calling() as client:
        for n in range(10):
            await client.invoke_oneway(address(server), request(b"%d" % n, code=7))
        await client.call(address(server), request())
    assert got == [b"%d" % n for n in range(10)]


class Signer:
    def __init__(self) -> None:
        self.answers: list[tuple[str, bytes, int]] = []

    def before_request(self, address: str, request: RemotingCommand) -> None:
        request.ext_fields["Signature"] = f"{address} {request.code}"

    def after_response(self, address: str, request: RemotingCommand, response: RemotingCommand) -> None:
        self.answers.append((address, request.body, response.code))


async def test_hooks() -> None:
    signer = Signer()
    async with serving() as server, calling(hooks=[signer]) as client:
        answer = await client.call(address(server), request(b"x"))
        assert answer.ext_fields == {"Signature": f"{address(server)} {ECHO}"}
        assert signer.answers == [(address(server), b"x", 0)]


# -- timeouts -------------------------------------------------------------------------------------------------------


async def test_no_answer_in_time() -> None:
    late: list[tuple[Connection, RemotingCommand]] = []

    def handler(connection: Connection, request: RemotingCommand) -> Reply:
        late.append((connection, request))
        return None

    async with serving({7: handler}) as server, calling() as client:
        await client.connection(address(server))  # Otherwise the connect would take part of the 50 ms.
        with pytest.raises(RequestTimeout, match="50 ms") as caught:
            await client.invoke(address(server), request(code=7), timeout_ms=50)
        assert caught.value.address == address(server)
        # The late response is ignored, and so is a second one.
        connection, late_request = (await until(lambda: late))[0]
        connection.reply(late_request, RemotingCommand.response(body=b"late"))
        connection.reply(late_request, RemotingCommand.response(body=b"twice"))
        assert (await client.call(address(server), request(b"next"))).body == b"next"
        ours = await client.connection(address(server))
        assert not ours.awaits_answers


async def test_a_caller_that_gives_up_leaves_nothing() -> None:
    async with serving() as server, calling() as client:
        connection = await client.connection(address(server))
        task = asyncio.ensure_future(connection.invoke(request(code=SILENT)))
        await until(lambda: connection.awaits_answers)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: not connection.awaits_answers)


async def test_a_server_that_does_not_read() -> None:
    async with listening() as sock, calling() as client:
        where = address_of(sock)
        connection = await client.connection(where)
        peer = await accepted(sock)
        while not connection.is_full:
            connection.send_oneway(request(bytes(MIB)))
        assert connection.unwritten_bytes < WRITE_HIGH_WATER + 2 * MIB

        with pytest.raises(RequestTimeout, match="did not take"):
            await client.invoke(where, request(), timeout_ms=50)
        with pytest.raises(RequestTimeout, match="did not take"):
            await connection.invoke_oneway(request(), timeout_ms=50)

        # The peer reads again, so the caller that waits for buffer space continues.
        waiting = asyncio.ensure_future(connection.invoke(request(b"at last"), timeout_ms=20_000))
        await asyncio.sleep(0)
        received = 0
        while True:
            (command,) = await peer.commands(1)
            if command.body == b"at last":
                break
            received += len(command.body)
        assert received >= WRITE_HIGH_WATER
        answer = RemotingCommand.response(body=b"thanks")
        answer.opaque = command.opaque
        await peer.send(answer.encode())
        assert (await waiting).body == b"thanks"
        peer.close()


async def test_answers_are_read_while_the_server_does_not_read() -> None:
    # Two peers that both send large amounts must not block each other.
    async with listening() as sock, calling() as client:
        connection = await client.connection(address_of(sock))
        peer = await accepted(sock)
        pending = connection.start_request(request(), timeout_ms=20_000)
        while not connection.is_full:
            connection.send_oneway(request(bytes(MIB)))
        answer = RemotingCommand.response(body=bytes(4 * MIB))
        answer.opaque = 1
        await peer.send(answer.encode())
        assert len((await pending).body) == 4 * MIB
        assert connection.is_full
        peer.close()


# -- connecting -----------------------------------------------------------------------------------------------------


async def test_concurrent_callers_share_one_connect() -> None:
    opened: list[Connection] = []

    def handler(connection: Connection, request: RemotingCommand) -> Reply:
        if connection not in opened:
            opened.append(connection)
        return RemotingCommand.response()

    async with serving({7: handler}) as server, calling() as client:
        await asyncio.gather(*(client.call(address(server), request(code=7)) for _ in range(50)))
        first = await client.connection(address(server))
        assert await client.connection(address(server)) is first
    assert len(opened) == 1


async def test_a_caller_that_gives_up_does_not_end_the_connect_of_others() -> None:
    async with serving() as server, calling() as client:
        impatient = asyncio.ensure_future(client.connection(address(server)))
        patient = asyncio.ensure_future(client.connection(address(server)))
        await asyncio.sleep(0)
        impatient.cancel()
        assert not (await patient).is_closed
        assert impatient.cancelled()


async def test_nobody_listens() -> None:
    async with listening() as sock:
        where = address_of(sock)
    async with calling() as client:
        for _ in range(2):
            with pytest.raises(ConnectFailed, match=f"can't connect to {where}") as caught:
                await client.invoke(where, request())
            assert caught.value.address == where


@pytest.mark.parametrize(
    "where", ["nowhere", "host:", ":1", "host:99999", "host:1x", "127.0.0.1:-1", "", "a\u2024b..c:1"]
)
async def test_addresses_that_are_none(where: str) -> None:
    async with calling() as client:
        with pytest.raises(ConnectFailed):
            await client.invoke(where, request())


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        (" h:1 ", ("h", 1)),
        ("[::1]:10911", ("::1", 10911)),
        ("::1:10911", ("::1", 10911)),
        ("1.2.3.4:0", ("1.2.3.4", 0)),
    ],
)
def test_parse_address(text: str, parsed: tuple[str, int]) -> None:
    assert parse_address(text) == parsed


async def test_a_connect_that_takes_too_long() -> None:
    # A TLS handshake with a peer that never answers hangs like a connect, without special network setup.
    context = ssl.create_default_context()
    async with listening() as sock, calling(ssl_context=context, connect_timeout_s=0.1) as client:
        with pytest.raises(ConnectFailed, match=r"no answer in 0\.1 s"):
            await client.invoke(address_of(sock), request())


async def test_the_server_comes_back() -> None:
    port = free_port()
    async with calling() as client:
        async with serving(port=port) as server:
            where = address(server)
            assert (await client.call(where, request(b"1"))).body == b"1"
            connection = await client.connection(where)
        await until(lambda: connection.is_closed)
        with pytest.raises(ConnectFailed):
            await client.invoke(where, request())
        async with serving(port=port):
            assert (await client.call(where, request(b"2"))).body == b"2"
            second = weakref.ref(await client.connection(where))
        # The client does not keep a lost connection.
        await until(lambda: gc.collect() >= 0 and second() is None)


# -- lost connections -----------------------------------------------------------------------------------------------


async def test_the_server_goes_while_requests_are_pending() -> None:
    got: list[RemotingCommand] = []

    def unanswered(connection: Connection, request: RemotingCommand) -> Reply:
        got.append(request)
        return None

    async with serving({7: unanswered}) as server, calling() as client:
        tasks = [asyncio.ensure_future(client.invoke(address(server), request(code=7))) for _ in range(3)]
        connection = await only_connection(server)
        ours = await client.connection(address(server))
        await until(lambda: len(got) == 3)
        connection.abort()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [ConnectionLost] * 3
        assert address(server) in str(results[0])
        with pytest.raises(ConnectionLost):
            ours.start_request(request(), 1000)
        with pytest.raises(ConnectionLost):
            await ours.invoke_oneway(request())


async def test_a_body_too_large_for_a_frame() -> None:
    async with serving() as server, calling() as client:
        with pytest.raises(ConnectionLost):
            await client.invoke(address(server), request(bytes(MAX_FRAME_LENGTH)), timeout_ms=20_000)
        assert (await client.call(address(server), request(b"x"))).body == b"x"


async def test_a_server_that_answers_garbage() -> None:
    async with listening() as sock, calling() as client:
        task = asyncio.ensure_future(client.invoke(address_of(sock), request()))
        peer = await accepted(sock)
        await peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with pytest.raises(ConnectionLost):
            await task
        peer.close()


async def test_close_ends_what_is_pending() -> None:
    got: list[RemotingCommand] = []

    def unanswered(connection: Connection, request: RemotingCommand) -> Reply:
        got.append(request)
        return None

    async with serving({7: unanswered}) as server, calling() as client:
        tasks = [asyncio.ensure_future(client.invoke(address(server), request(code=7))) for _ in range(3)]
        await until(lambda: len(got) == 3)
        await client.close()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [ConnectionLost] * 3
        with pytest.raises(ClientClosed):
            await client.invoke(address(server), request())
        await until(lambda: not server.connections)
        await client.close()


async def test_close_while_it_connects() -> None:
    async with listening() as sock, calling(ssl_context=ssl.create_default_context()) as client:
        tasks = [asyncio.ensure_future(client.invoke(address_of(sock), request())) for _ in range(2)]
        peer = await accepted(sock)
        await client.close()
        results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
        assert [type(result) for result in results] == [ClientClosed] * 2
        await peer.closed_by_other()
        peer.close()


async def test_close_sends_what_was_written() -> None:
    got: list[int] = []

    def handler(connection: Connection, request: RemotingCommand) -> Reply:
        got.append(len(request.body))
        return None

    async with serving({7: handler}) as server, calling() as client:
        for _ in range(4):
            await client.invoke_oneway(address(server), request(bytes(4 * MIB), code=7))
        await client.close()
        await until(lambda: len(got) == 4)


async def test_close_does_not_wait_for_ever() -> None:
    async with listening() as sock, calling() as client:
        connection = await client.connection(address_of(sock))
        while not connection.is_full:
            connection.send_oneway(request(bytes(MIB)))
        await asyncio.wait_for(client.close(), 10)
        assert connection.is_closed


# -- requests of the server -----------------------------------------------------------------------------------------


async def test_the_server_asks_its_client() -> None:
    told: list[bytes] = []

    def on_client(connection: Connection, request: RemotingCommand) -> Reply:
        told.append(request.body)
        return RemotingCommand.response(body=b"client says " + request.body)

    async def ask(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        await connection.invoke_oneway(RemotingCommand.request(40, body=b"notify"))
        answer = await connection.invoke(RemotingCommand.request(40, body=request.body))
        return RemotingCommand.response(body=answer.body)

    def on_server(connection: Connection, request: RemotingCommand) -> Reply:
        connection.respond_with(request, ask(connection, request))
        return None

    async with serving({7: on_server}) as server, calling({40: on_client}) as client:
        # Both sides count from 1. Equal opaque numbers in opposite directions must not be mixed up.
        answers = await asyncio.gather(*(client.call(address(server), request(b"%d" % n, code=7)) for n in range(20)))
    assert [answer.body for answer in answers] == [b"client says %d" % n for n in range(20)]
    assert told.count(b"notify") == 20


async def test_the_server_asks_for_what_its_client_does_not_do() -> None:
    async with serving() as server, calling() as client:
        await client.call(address(server), request())
        connection = await only_connection(server)
        assert (await connection.invoke(request(code=40))).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_the_client_goes_while_the_server_asks() -> None:
    async with serving() as server:
        async with calling({40: lambda connection, request: None}) as client:
            await client.call(address(server), request())
            connection = await only_connection(server)
            asking = connection.start_request(request(code=40), timeout_ms=20_000)
        with pytest.raises(ConnectionLost):
            await asking


async def test_a_connection_on_which_nothing_comes_back_is_closed() -> None:
    """A connection without any response is closed, because the peer's machine can be gone.

    The kernel would retransmit for a quarter of an hour.
    """
    async with listening() as sock, calling(silence_s=1.0) as client:
        others = asyncio.create_task(client.invoke(address_of(sock), request(), timeout_ms=20_000))
        peer = await accepted(sock)
        with pytest.raises(RequestTimeout):
            await client.invoke(address_of(sock), request(), timeout_ms=1000)
        with pytest.raises(ConnectionLost):
            await others
        peer.close()
        again = asyncio.create_task(client.invoke(address_of(sock), request(b"again"), timeout_ms=20_000))
        peer = await accepted(sock)
        (command,) = await peer.commands(1)
        assert command.body == b"again"
        again.cancel()
        peer.close()


async def test_a_timeout_before_the_fixed_time_leaves_the_others_waiting() -> None:
    """A timeout of one request must not close the connection.

    Otherwise the client repeats all sends in flight, and they are stored twice.
    """
    async with listening() as sock, calling(silence_s=60.0) as client:
        others = asyncio.create_task(client.invoke(address_of(sock), request(b"others"), timeout_ms=20_000))
        peer = await accepted(sock)
        with pytest.raises(RequestTimeout):
            await client.invoke(address_of(sock), request(), timeout_ms=1000)
        commands = await peer.commands(2)
        response = RemotingCommand.response(body=b"late")
        [response.opaque] = [command.opaque for command in commands if command.body == b"others"]
        await peer.send(response.encode())
        assert (await others).body == b"late"
        peer.close()


async def test_bytes_that_arrive_after_a_request_keep_the_connection() -> None:
    async with serving() as server, calling(silence_s=0.5) as client:
        connection = await client.connection(address(server))

        async def talk() -> None:
            while True:
                await client.invoke(address(server), request())
                await asyncio.sleep(0.01)

        talking = asyncio.create_task(talk())
        with pytest.raises(RequestTimeout):
            await client.invoke(address(server), request(code=SILENT), timeout_ms=1000)
        talking.cancel()
        # A timeout that is too short to draw a conclusion from.
        with pytest.raises(RequestTimeout):
            await client.invoke(address(server), request(code=SILENT), timeout_ms=10)
        assert await client.connection(address(server)) is connection


async def test_each_who_waits_for_a_connection_gets_an_error_of_its_own() -> None:
    async with listening() as sock:
        nobody = address_of(sock)
    async with calling() as client:
        errors = await asyncio.gather(*(client.connection(nobody) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(error, ConnectFailed) for error in errors)
    assert len({id(error) for error in errors}) == 3
    assert len({str(error) for error in errors}) == 1


def test_a_look_up_that_is_given_up_leaves_nothing_behind() -> None:
    problems: list[str] = []

    async def look_up() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: problems.append(context["message"]))
        async with calling(connect_timeout_s=0.0001) as client:
            for number in range(4):
                with pytest.raises(ConnectFailed):
                    await client.connection(f"no-such-host-{number}.invalid:9876")
        # Lookups run in a thread pool. After as many further lookups as it has threads, the earlier ones are complete.
        for number in range(4, 12):
            with pytest.raises(socket.gaierror):
                await loop.getaddrinfo(f"no-such-host-{number}.invalid", 9876)
        gc.collect()
        await asyncio.sleep(0)

    uvloop.run(look_up())
    assert not problems
