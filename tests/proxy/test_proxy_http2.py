"""The HTTP/2 server: header blocks of RFC 7541, windows, rejected input, and gRPC's own statuses."""

from __future__ import annotations

import asyncio
import gzip
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from other_end import other_end
from proxy_support import Rpc, message
from wait_until import until

from gantrymq.background.jobs import Jobs
from gantrymq.limits import (
    PROXY_INCOMPLETE_MESSAGES_BYTES,
    PROXY_REQUESTS_BYTES,
    PROXY_REQUESTS_BYTES_OF_ONE,
    PROXY_SMALL_REQUEST_BYTES,
)
from gantrymq.proxy.call import Handlers, ServerStream, Stream
from gantrymq.proxy.grpc_call import Service
from gantrymq.proxy.http2 import frames, huffman
from gantrymq.proxy.http2.hpack import HpackDecoder, HpackError, TooManyHeaders, literal
from gantrymq.proxy.http2.unread_responses import UnreadResponses
from gantrymq.proxy.incomplete_messages import IncompleteMessages
from gantrymq.proxy.message_limits import MessageLimits
from gantrymq.proxy.request_memory import RequestMemory
from gantrymq.proxy.server import ProxyServer
from gantrymq.proxy.statuses import GrpcCode, GrpcError
from gantrymq.proxy.v2 import definition_pb2 as pb
from gantrymq.proxy.v2 import service_pb2 as rpc_pb
from gantrymq.remoting.tls import TlsConfig

# -- header blocks ----------------------------------------------------------------------------------------------------


def test_the_requests_of_the_rfc() -> None:
    """RFC 7541, C.4: three requests on one connection, with Huffman codes and table fields."""
    decoder = HpackDecoder()
    blocks = (
        "828684418cf1e3c2e5f23a6ba0ab90f4ff",
        "828684be5886a8eb10649cbf",
        "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
    )
    first, second, third = (decoder.decode(bytes.fromhex(block), 10_000) for block in blocks)
    common = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"www.example.com")]
    assert first == common
    assert second == [*common, (b"cache-control", b"no-cache")]
    assert third[1:3] == [(b":scheme", b"https"), (b":path", b"/index.html")]
    assert third[3:] == [(b":authority", b"www.example.com"), (b"custom-key", b"custom-value")]


def test_the_table_forgets_the_oldest() -> None:
    decoder = HpackDecoder()
    for n in range(200):
        decoder.decode(b"\x40" + bytes((4,)) + b"%04d" % n + bytes((100,)) + b"v" * 100, 10_000)
    # 4096 bytes contain 30 entries of 136 bytes.
    ((name, _),) = decoder.decode(bytes((0x80 | 62,)), 10_000)
    assert name == b"0199"
    ((name, _),) = decoder.decode(bytes((0x80 | 91,)), 10_000)
    assert name == b"0170"
    with pytest.raises(HpackError):
        decoder.decode(bytes((0x80 | 92,)), 10_000)


@pytest.mark.parametrize("block", ["80", "ff", "41", "4181", "40ff", "3fe2ff0f", "bf", "418184", "ffffffffffffffff7f"])
def test_a_broken_block_is_refused(block: str) -> None:
    with pytest.raises(HpackError):
        HpackDecoder().decode(bytes.fromhex(block), 10_000)


def test_a_small_block_of_many_fields_is_refused() -> None:
    decoder = HpackDecoder()
    decoder.decode(b"\x40\x01a\x7f\x80\x1f" + b"v" * 4095, 10_000)
    with pytest.raises(TooManyHeaders):
        decoder.decode(b"\x82" * 5000, 10_000)


def test_a_sent_field_is_read_back() -> None:
    for size in (0, 126, 127, 128, 300, 20_000):
        assert HpackDecoder().decode(literal(b"name", b"v" * size), 30_000) == [(b"name", b"v" * size)]


def test_padding_of_a_huffman_code() -> None:
    assert huffman.decode(b"\x1f") == b"a"
    for wrong in (b"\x18", b"\xff\xff\xff\xff", b"\x1f\xff"):
        with pytest.raises(ValueError, match="Huffman"):
            huffman.decode(wrong)


# -- a server with handlers of the tests -------------------------------------------------------------------------------


async def echo(call: Any, request: rpc_pb.SendMessageRequest) -> rpc_pb.SendMessageResponse:
    body = request.messages[0].body
    entries = [rpc_pb.SendResultEntry(message_id=f"{len(body)}", recall_handle="x" * int(body[:10] or b"0"))]
    return rpc_pb.SendMessageResponse(status=pb.Status(code=pb.OK), entries=entries)


class Server:
    """Events that its handlers recorded."""

    def __init__(self) -> None:
        self.cancelled = 0
        self.begun = 0
        self.streams = self.streams_begun = 0
        self.may_end = asyncio.Event()

    @property
    def handlers(self) -> Handlers:
        return {
            "SendMessage": echo,
            "ReceiveMessage": self.receive,
            "Telemetry": self.telemetry,
            "Heartbeat": self.fail,
            "AckMessage": self.refuse,
            "EndTransaction": self.end,
        }

    async def receive(self, call: ServerStream, request: rpc_pb.ReceiveMessageRequest) -> None:
        self.begun += 1
        try:
            for n in range(request.batch_size):
                await call.write(rpc_pb.ReceiveMessageResponse(message=message("t", b"x" * 100_000 + b"%d" % n)))
            if not request.batch_size:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def telemetry(self, call: Stream) -> None:
        self.streams += 1
        self.streams_begun += 1
        try:
            async for command in call.requests():
                call.write_soon(command)
        finally:
            self.streams -= 1

    async def end(self, call: Any, request: Any) -> rpc_pb.EndTransactionResponse:
        self.begun += 1
        await self.may_end.wait()
        return rpc_pb.EndTransactionResponse(status=pb.Status(code=pb.OK, message="ended"))

    async def fail(self, call: Any, request: Any) -> rpc_pb.HeartbeatResponse:
        raise RuntimeError("broken on purpose")

    async def refuse(self, call: Any, request: Any) -> rpc_pb.AckMessageResponse:
        raise GrpcError(GrpcCode.INVALID_ARGUMENT, "märchenhaft: 100%")


@pytest.fixture
def handlers() -> Server:
    return Server()


@pytest.fixture
async def service(handlers: Server) -> Service:
    return Service(handlers.handlers, MessageLimits(8 * 1024 * 1024, 0))


@pytest.fixture
async def server(service: Service) -> AsyncIterator[ProxyServer]:
    server = ProxyServer(service, host="127.0.0.1", port=0, tls=TlsConfig(), max_idle_s=120, jobs=Jobs())
    await server.start()
    yield server
    await server.stop()
    assert service.incomplete_messages.buffered_bytes == 0
    assert service.request_memory.bytes == 0
    assert service.unread.bytes == 0


@pytest.fixture
async def stub(server: ProxyServer) -> AsyncIterator[Rpc]:
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=options) as channel:
        yield Rpc(channel, "client")


def send_request(body: bytes) -> rpc_pb.SendMessageRequest:
    return rpc_pb.SendMessageRequest(messages=[pb.Message(body=body)])


async def test_messages_larger_than_all_windows_pass_both_ways(stub: Rpc) -> None:
    for size in (0, 1, 16_379, 16_384, 65_535, 65_536, 1_000_000, 6_000_000):
        response = await stub.SendMessage(send_request(b"%010d" % size + b"y" * size))
        (entry,) = response.entries
        assert (entry.message_id, len(entry.recall_handle)) == (f"{size + 10}", size)


async def test_a_stream_of_more_than_the_window(stub: Rpc) -> None:
    received = [response async for response in stub.ReceiveMessage(rpc_pb.ReceiveMessageRequest(batch_size=100))]
    assert [response.message.body[100_000:] for response in received] == [b"%d" % n for n in range(100)]


async def test_many_calls_at_once(stub: Rpc) -> None:
    responses = await asyncio.gather(*(stub.SendMessage(send_request(b"%010d" % n)) for n in range(2000)))
    assert [len(response.entries[0].recall_handle) for response in responses] == list(range(2000))


async def test_a_stream_both_ways(stub: Rpc) -> None:
    stream = stub.Telemetry()
    for n in range(50):
        command = rpc_pb.TelemetryCommand(status=pb.Status(message=f"{n}"))
        await stream.write(command)
        assert await stream.read() == command
    await stream.done_writing()
    assert await stream.read() is grpc.aio.EOF
    assert await stream.code() is grpc.StatusCode.OK


async def test_a_handler_ends_with_its_client(stub: Rpc, handlers: Server) -> None:
    calls = [stub.ReceiveMessage(rpc_pb.ReceiveMessageRequest()) for _ in range(10)]
    readers = [asyncio.ensure_future(call.read()) for call in calls]
    await until(lambda: handlers.begun == 10)
    for call in calls:
        call.cancel()
    await until(lambda: handlers.cancelled == 10)
    await asyncio.gather(*readers, return_exceptions=True)
    assert (await stub.SendMessage(send_request(b"0"))).status.code == pb.OK


async def test_a_handler_ends_with_its_connection(server: ProxyServer, handlers: Server) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        reader = asyncio.ensure_future(Rpc(channel, "client").ReceiveMessage(rpc_pb.ReceiveMessageRequest()).read())
        await until(lambda: handlers.begun == 1)
        for connection in server.connections:
            connection.abort()
        await until(lambda: handlers.cancelled == 1)
        with pytest.raises(grpc.aio.AioRpcError):
            await reader


async def test_what_a_handler_raises_is_told(stub: Rpc) -> None:
    response = await stub.Heartbeat(rpc_pb.HeartbeatRequest())
    assert (response.status.code, response.status.message) == (pb.INTERNAL_SERVER_ERROR, "broken on purpose")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.AckMessage(rpc_pb.AckMessageRequest())
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, "märchenhaft: 100%")


async def test_a_method_without_a_handler_is_unimplemented(stub: Rpc) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.PullMessage(rpc_pb.PullMessageRequest()).read()
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    call = stub.channel.unary_unary("/some.Service/Method")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(b"")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_message_that_is_too_large_is_refused(stub: Rpc) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.SendMessage(send_request(b"x" * 9 * 1024 * 1024))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await stub.SendMessage(send_request(b"0"))).status.code == pb.OK


async def test_a_compressed_message(stub: Rpc) -> None:
    response = await stub.SendMessage(send_request(b"%010d" % 7 + b"y" * 100_000), compression=grpc.Compression.Gzip)
    assert response.entries[0].message_id == "100010"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.SendMessage(send_request(b"0" * 100), compression=grpc.Compression.Deflate)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_bytes_that_are_no_request(stub: Rpc) -> None:
    call = stub.channel.unary_unary("/apache.rocketmq.v2.MessagingService/SendMessage")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(b"\xff\xff\xff", metadata=stub.metadata())
    assert caught.value.code() is grpc.StatusCode.INTERNAL


async def test_tls_and_plain_on_one_port(server: ProxyServer) -> None:
    import ssl

    pem = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", server.port))
    credentials = grpc.ssl_channel_credentials(pem.encode())
    options = [("grpc.ssl_target_name_override", "gantrymq")]
    async with (
        grpc.aio.secure_channel(f"127.0.0.1:{server.port}", credentials, options) as secure,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as plain,
    ):
        for channel in (secure, plain):
            response = await Rpc(channel, "client").SendMessage(send_request(b"0"), wait_for_ready=True)
            assert response.status.code == pb.OK


# -- raw frames --------------------------------------------------------------------------------------------------------


class Peer:
    """A connection at the level of frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def frame(self, kind: int) -> tuple[int, int, bytes]:
        """Returns the next frame of this type: flags, stream, payload."""
        while True:
            head = await asyncio.wait_for(self._reader.readexactly(9), 10)
            length, flags, stream_id = frames.read_header(head)
            payload = await asyncio.wait_for(self._reader.readexactly(length >> 8), 10)
            if length & 0xFF == kind:
                return flags, stream_id, payload

    async def end_code(self) -> int:
        """Returns the code of the GOAWAY frame, after which the connection must be closed.

        A peer that continues to send may lose this frame to the reset.
        """
        try:
            _, _, payload = await self.frame(frames.GOAWAY)
            assert await asyncio.wait_for(self._reader.read(), 10) == b""
        except (ConnectionResetError, BrokenPipeError):
            # The kernel reports a broken pipe if the end of the stream came before the reset.
            return frames.ErrorCode.ENHANCE_YOUR_CALM
        code: int = struct.unpack_from(">I", payload, 4)[0]
        return code

    def begin(self, stream_id: int, flags: int = frames.END_HEADERS, method: str = "SendMessage") -> bytes:
        block = b"\x83\x86" + b"".join(
            literal(name, value)
            for name, value in (
                (b":path", f"/apache.rocketmq.v2.MessagingService/{method}".encode()),
                (b"content-type", b"application/grpc"),
                (b"x-mq-client-id", b"client"),
            )
        )
        return frames.frame_head(frames.HEADERS, flags, stream_id, len(block)) + block


@pytest.fixture
async def peer(server: ProxyServer) -> AsyncIterator[Peer]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(frames.PREFACE + frames.settings({}))
    yield Peer(reader, writer)
    writer.close()


def data(stream_id: int, payload: bytes, flags: int = frames.END_STREAM) -> bytes:
    return frames.frame_head(frames.DATA, flags, stream_id, len(payload)) + payload


def framed(request: Any) -> bytes:
    body = request.SerializeToString()
    return b"\x00" + len(body).to_bytes(4, "big") + body


async def test_a_request_byte_by_byte_with_padding_and_a_continuation(peer: Peer) -> None:
    payload = framed(send_request(b"%010d" % 3))
    head = peer.begin(1, 0)
    block = head[9:]
    sent = frames.frame_head(frames.HEADERS, 0, 1, 5) + block[:5]
    sent += frames.frame_head(frames.CONTINUATION, frames.END_HEADERS, 1, len(block) - 5) + block[5:]
    sent += data(1, payload[:3], 0)
    padded = b"\x04" + payload[3:] + b"\0" * 4
    sent += data(1, padded, frames.PADDED | frames.END_STREAM)
    for n in range(len(sent)):
        peer.writer.write(sent[n : n + 1])
        await peer.writer.drain()
        await asyncio.sleep(0)
    _, stream_id, answer = await peer.frame(frames.DATA)
    assert stream_id == 1
    assert rpc_pb.SendMessageResponse.FromString(answer[5:]).entries[0].recall_handle == "xxx"


async def test_an_answer_waits_for_the_window(peer: Peer) -> None:
    peer.writer.write(frames.settings({frames.SETTING_INITIAL_WINDOW_SIZE: 10}))
    peer.writer.write(peer.begin(1) + data(1, framed(send_request(b"%010d" % 100))))
    got = (await peer.frame(frames.DATA))[2]
    assert len(got) == 10
    peer.writer.write(frames.window_update(1, 7))
    got += (await peer.frame(frames.DATA))[2]
    assert len(got) == 17
    peer.writer.write(frames.settings({frames.SETTING_INITIAL_WINDOW_SIZE: 5000}))
    got += (await peer.frame(frames.DATA))[2]
    assert len(rpc_pb.SendMessageResponse.FromString(got[5:]).entries[0].recall_handle) == 100
    flags, _, _ = await peer.frame(frames.HEADERS)
    assert flags & frames.END_STREAM


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", frames.ErrorCode.PROTOCOL_ERROR),
        (frames.frame_head(frames.DATA, 0, 1, 1 << 20), frames.ErrorCode.FRAME_SIZE_ERROR),
        (data(1, b"x"), frames.ErrorCode.PROTOCOL_ERROR),
        (frames.frame_head(frames.HEADERS, 4, 2, 1) + b"\x82", frames.ErrorCode.PROTOCOL_ERROR),
        (frames.frame_head(frames.HEADERS, 4, 1, 1) + b"\xff", frames.ErrorCode.COMPRESSION_ERROR),
        (frames.frame_head(frames.HEADERS, 12, 1, 2) + b"\x09\x82", frames.ErrorCode.PROTOCOL_ERROR),
        (
            frames.frame_head(frames.HEADERS, 0, 1, 1) + b"\x82" + frames.ping(b"12345678"),
            frames.ErrorCode.PROTOCOL_ERROR,
        ),
        (frames.frame_head(frames.CONTINUATION, 4, 1, 1) + b"\x82", frames.ErrorCode.PROTOCOL_ERROR),
        (frames.frame_head(frames.PING, 0, 0, 3) + b"123", frames.ErrorCode.FRAME_SIZE_ERROR),
        (frames.frame_head(frames.SETTINGS, 0, 0, 5) + b"12345", frames.ErrorCode.FRAME_SIZE_ERROR),
        (frames.settings({frames.SETTING_INITIAL_WINDOW_SIZE: 1 << 31}), frames.ErrorCode.FLOW_CONTROL_ERROR),
        (frames.settings({frames.SETTING_MAX_FRAME_SIZE: 1}), frames.ErrorCode.PROTOCOL_ERROR),
        (frames.window_update(0, frames.MAX_WINDOW), frames.ErrorCode.FLOW_CONTROL_ERROR),
        (frames.window_update(0, 1) * 100_000, frames.ErrorCode.ENHANCE_YOUR_CALM),
        (frames.frame_head(frames.PUSH_PROMISE, 4, 1, 4) + b"1234", frames.ErrorCode.PROTOCOL_ERROR),
        (frames.ping(b"12345678") * 100_000, frames.ErrorCode.ENHANCE_YOUR_CALM),
        (frames.SETTINGS_ACK + frames.settings({}) * 100_000, frames.ErrorCode.ENHANCE_YOUR_CALM),
        (
            frames.frame_head(frames.HEADERS, 0, 1, 1)
            + b"\x82"
            + frames.frame_head(frames.CONTINUATION, 0, 1, 0) * 100_000,
            frames.ErrorCode.ENHANCE_YOUR_CALM,
        ),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, int) else repr(value[:24]),
)
async def test_what_http2_forbids_ends_the_connection(server: ProxyServer, stub: Rpc, sent: bytes, code: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(sent if sent.startswith(b"GET") else frames.PREFACE + frames.settings({}) + sent)
    assert await Peer(reader, writer).end_code() == code
    writer.close()
    assert (await stub.SendMessage(send_request(b"0"))).status.code == pb.OK


async def test_who_is_answered_may_open_windows_and_ping(peer: Peer) -> None:
    """gRPC's core enlarges the connection's window by the few bytes of each response."""
    payload = framed(send_request(b"0"))
    for first in range(1, 8001, 200):
        for stream_id in range(first, first + 200, 2):
            peer.writer.write(peer.begin(stream_id) + data(stream_id, payload))
            peer.writer.write(frames.window_update(0, 60) + frames.ping(b"12345678"))
        for _ in range(100):
            await peer.frame(frames.DATA)


async def test_a_rapid_reset_ends_the_connection(peer: Peer, server: ProxyServer, stub: Rpc) -> None:
    """CVE-2023-44487: streams that are opened and cancelled at once."""
    sent = b"".join(
        peer.begin(2 * n + 1) + frames.rst_stream(2 * n + 1, frames.ErrorCode.CANCEL) for n in range(20_000)
    )
    peer.writer.write(sent)
    assert await peer.end_code() == frames.ErrorCode.ENHANCE_YOUR_CALM
    assert (await stub.SendMessage(send_request(b"0"))).status.code == pb.OK


async def test_more_streams_than_there_may_be_are_refused(peer: Peer) -> None:
    peer.writer.write(b"".join(peer.begin(2 * n + 1) for n in range(1025)))
    _, stream_id, payload = await peer.frame(frames.RST_STREAM)
    assert (stream_id, payload) == (2 * 1024 + 1, struct.pack(">I", frames.ErrorCode.REFUSED_STREAM))


async def test_a_gzip_bomb_is_refused(peer: Peer) -> None:
    block = literal(b"grpc-encoding", b"gzip")
    head = peer.begin(1)[9:] + block
    bomb = gzip.compress(b"\0" * 20_000_000)
    peer.writer.write(frames.frame_head(frames.HEADERS, frames.END_HEADERS, 1, len(head)) + head)
    sent = b"\x01" + len(bomb).to_bytes(4, "big") + bomb
    peer.writer.write(data(1, sent[:16_000], 0) + data(1, sent[16_000:]))
    _, _, payload = await peer.frame(frames.HEADERS)
    assert (b"grpc-status", b"8") in HpackDecoder().decode(payload, 10_000)


async def test_a_smaller_table_is_confirmed(peer: Peer) -> None:
    """Netty rejects a header block that does not begin with the new size (RFC 7541, 4.2)."""
    peer.writer.write(frames.settings({frames.SETTING_HEADER_TABLE_SIZE: 0}))
    for stream_id in (1, 3):
        peer.writer.write(peer.begin(stream_id) + data(stream_id, framed(send_request(b"0"))))
        blocks = [(await peer.frame(frames.HEADERS))[2] for _ in range(2)]
        assert [block[:1] == b"\x20" for block in blocks] == [stream_id == 1, False]


async def test_data_beyond_a_streams_window(peer: Peer) -> None:
    begun = b"\x00" + (8_323_072).to_bytes(4, "big") + b"x" * 16_000
    # A connection gets quota for four messages of 8 MB. The fifth only has its first window.
    for stream_id in (1, 3, 5, 7, 9):
        peer.writer.write(peer.begin(stream_id) + data(stream_id, begun, 0))
    peer.writer.write(data(9, b"x" * 16_000, 0) * 4)
    assert await peer.end_code() == frames.ErrorCode.FLOW_CONTROL_ERROR


# -- quota for messages ------------------------------------------------------------------------------------------------


class Waiting:
    """A call that requests quota."""

    def __init__(self, connection: object) -> None:
        self.connection = connection
        self.given = 0
        self.is_refused = False

    def granted(self, size: int) -> None:
        self.given += size

    def revoked(self) -> None:
        self.is_refused = True


def test_long_messages_take_turns() -> None:
    incomplete = IncompleteMessages(100)
    a, b, c, d = (Waiting(name) for name in "aabc")
    incomplete.request(a, 40, 0.0)
    incomplete.request(b, 20, 0.0)
    # A connection gets at most half of the quota, unless no connection has any.
    assert (a.given, b.given) == (40, 0)
    incomplete.request(c, 50, 0.0)
    incomplete.request(d, 30, 0.0)
    assert (c.given, d.given) == (50, 0)
    incomplete.done(c, 0.0)
    assert (b.given, d.given) == (0, 30)
    incomplete.done(a, 1.0)
    assert b.given == 20
    for call in (b, d, d):
        incomplete.done(call, 1.0)
    # A call that exceeds the whole quota is accepted alone.
    incomplete.request(a, 1000, 2.0)
    incomplete.request(c, 1, 2.0)
    assert (a.given, c.given) == (1040, 50)
    incomplete.revoke_slow(6.0)
    assert not a.is_refused
    incomplete.revoke_slow(8.0)
    assert a.is_refused


async def test_many_unfinished_messages_leave_others_served(server: ProxyServer, stub: Rpc, service: Service) -> None:
    """Four peers with a thousand streams each: 256 MB without a limit."""
    begun = b"\x00" + (8_000_000).to_bytes(4, "big") + b"x" * 16_000
    writers = []
    most = 0
    for _ in range(4):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writers.append(writer)
        writer.write(frames.PREFACE + frames.settings({}))
        peer = Peer(reader, writer)
        for n in range(1000):
            stream = 2 * n + 1
            writer.write(peer.begin(stream) + data(stream, begun, 0) + data(stream, b"x" * 16_000, 0) * 3)
            if not n % 100:
                await writer.drain()
                most = max(most, service.incomplete_messages.buffered_bytes)
    assert (await stub.SendMessage(send_request(b"0"))).status.code == pb.OK
    most = max(most, service.incomplete_messages.buffered_bytes)
    assert most <= PROXY_INCOMPLETE_MESSAGES_BYTES + (1 << 20)
    for writer in writers:
        writer.transport.abort()
    await until(lambda: not service.incomplete_messages.buffered_bytes)
    response = await stub.SendMessage(send_request(b"%010d" % 1_000_000 + b"y" * 1_000_000))
    assert response.status.code == pb.OK


async def test_a_silent_connection_is_closed(handlers: Server) -> None:
    service = Service(handlers.handlers, MessageLimits(1024, 0))
    server = ProxyServer(service, host="127.0.0.1", port=0, tls=TlsConfig(), max_idle_s=1.0, jobs=Jobs())
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(frames.PREFACE + frames.settings({}))
    assert await Peer(reader, writer).end_code() == frames.ErrorCode.NO_ERROR
    # A connection with a pending call first gets GOAWAY, and stays open until the response.
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    peer = Peer(reader, writer)
    writer.write(frames.PREFACE + frames.settings({}) + peer.begin(1))
    for _ in range(3):
        _, _, payload = await peer.frame(frames.PING)
        writer.write(frames.ping(payload, ack=True))
    await until(lambda: not server.connections)
    writer.close()
    await server.stop()


@pytest.mark.parametrize("is_error", [False, True], ids=["silent", "error"])
async def test_a_silent_connection_that_takes_nothing_is_closed(handlers: Server, is_error: bool) -> None:
    """Its remaining responses could never be written."""
    service = Service(handlers.handlers, MessageLimits(1024, 0))
    server = ProxyServer(service, host="127.0.0.1", port=0, tls=TlsConfig(), max_idle_s=1.0, jobs=Jobs())
    await server.start()
    with socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.connect(("127.0.0.1", server.port))
        peer.sendall(frames.PREFACE + frames.settings({}))
        (connection,) = await until(lambda: list(server.connections))
        # More than the buffers of both ends; none of it is read.
        with other_end(peer) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        connection.send(frames.ping(b"12345678") * 30_000)
        if is_error:
            peer.sendall(frames.window_update(0, 0))
            await until(lambda: connection.is_closing)
        await until(lambda: not server.connections)
    await server.stop()


async def test_stop_lets_calls_end_and_ends_streams(server: ProxyServer, stub: Rpc, handlers: Server) -> None:
    stream = stub.Telemetry()
    await stream.write(rpc_pb.TelemetryCommand())
    await stream.read()
    handlers.may_end.clear()
    call = asyncio.ensure_future(stub.EndTransaction(rpc_pb.EndTransactionRequest()))
    await until(lambda: handlers.begun == 1)
    stopping = asyncio.ensure_future(server.stop())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.read()
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNAVAILABLE, "the proxy stops")
    assert not stopping.done()
    handlers.may_end.set()
    assert (await call).status.message == "ended"
    await stopping


async def test_a_stream_whose_client_takes_nothing_is_given_up(handlers: Server, server: ProxyServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    peer = Peer(reader, writer)
    writer.write(frames.PREFACE + frames.settings({frames.SETTING_INITIAL_WINDOW_SIZE: 0}))
    writer.write(peer.begin(1, method="Telemetry"))
    command = framed(rpc_pb.TelemetryCommand(status=pb.Status(message="x" * 10_000)))
    for _ in range(200):
        writer.write(data(1, command, 0))
    await until(lambda: handlers.streams_begun and not handlers.streams)
    writer.close()


async def test_a_stream_with_an_invalid_message_ends_its_handler(handlers: Server, server: ProxyServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    peer = Peer(reader, writer)
    writer.write(frames.PREFACE + frames.settings({}) + peer.begin(1, method="Telemetry"))
    writer.write(data(1, framed(rpc_pb.TelemetryCommand()), 0))
    await until(lambda: handlers.streams == 1)
    writer.write(data(1, b"\x00\xff\xff\xff\xff", 0))
    await until(lambda: not handlers.streams)
    writer.close()


async def test_wider_windows_are_confirmed_before_they_are_used(server: ProxyServer) -> None:
    """gRPC's own core rejects earlier data as too large."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    peer = Peer(reader, writer)
    writer.write(frames.PREFACE + frames.settings({frames.SETTING_INITIAL_WINDOW_SIZE: 0}))
    writer.write(peer.begin(1) + data(1, framed(send_request(b"%010d" % 100_000))))
    await peer.frame(frames.HEADERS)
    writer.write(frames.settings({frames.SETTING_INITIAL_WINDOW_SIZE: 1_000_000}))
    kinds = []
    while frames.DATA not in kinds:
        head = await asyncio.wait_for(reader.readexactly(frames.HEADER_LENGTH), 10)
        length, _, _ = frames.read_header(head)
        await reader.readexactly(length >> 8)
        kinds.append(length & 0xFF)
    assert kinds == [frames.SETTINGS, frames.DATA]
    writer.close()


# -- state for clients -------------------------------------------------------------------------------------------------


class SlowPeer:
    """A connection."""

    def __init__(self) -> None:
        self.is_closed = False

    def reads_nothing(self) -> None:
        self.is_closed = True


def test_who_took_nothing_for_the_longest_time_is_closed() -> None:
    unread = UnreadResponses(1000)
    first, second, third = (SlowPeer() for _ in range(3))
    unread.add(first, 300)
    unread.add(second, 300)
    unread.add(first, 100)
    unread.remove(first, 50)
    unread.add(third, 400)
    assert (first.is_closed, second.is_closed, third.is_closed) == (False, True, False)
    assert unread.bytes == 750
    # Bytes of a closed connection do not count any more.
    unread.remove(second, 300)
    unread.remove(first, 350)
    unread.remove(third, 400)
    assert unread.bytes == 0
    unread.add(first, 1001)
    assert first.is_closed
    assert unread.bytes == 0


async def test_answers_that_nobody_reads_end_their_connection(server: ProxyServer, stub: Rpc, handlers: Server) -> None:
    """Each of a connection's streams has a response and a closed window."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    peer = Peer(reader, writer)
    writer.write(frames.PREFACE + frames.settings({frames.SETTING_INITIAL_WINDOW_SIZE: 0}))
    request = framed(rpc_pb.ReceiveMessageRequest(batch_size=100))
    streams = range(1, 2000, 2)
    writer.write(b"".join(peer.begin(n, method="ReceiveMessage") + data(n, request) for n in streams))
    await until(lambda: handlers.begun)
    await until(lambda: not server.connections)
    assert (await stub.SendMessage(send_request(b"0"))).status.code == pb.OK
    await until(lambda: handlers.begun == handlers.cancelled)
    writer.close()


async def test_a_socket_that_nobody_reads_takes_no_more_than_its_buffer(server: ProxyServer, handlers: Server) -> None:
    """All windows are wide open."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
    peer = Peer(reader, writer)
    writer.write(frames.PREFACE + frames.settings({frames.SETTING_INITIAL_WINDOW_SIZE: frames.MAX_WINDOW}))
    writer.write(frames.window_update(0, frames.MAX_WINDOW - frames.DEFAULT_WINDOW))
    writer.write(peer.begin(1, method="ReceiveMessage"))
    writer.write(data(1, framed(rpc_pb.ReceiveMessageRequest(batch_size=1000))))
    (connection,) = await until(lambda: list(server.connections))
    await until(lambda: not connection.is_writable)
    assert connection.unwritten_bytes < 3 * 1024 * 1024
    # A peer that reads late gets everything.
    received = 0
    while received < 1000 * 100_000:
        _, _, payload = await peer.frame(frames.DATA)
        received += len(payload)
    await until(lambda: not connection.streams)
    writer.close()


def test_requests_in_hand_of_one_connection_leave_room_for_others() -> None:
    request_memory = RequestMemory()
    large = PROXY_REQUESTS_BYTES_OF_ONE // 4
    assert [request_memory.reserve("a", large) for _ in range(5)] == [True] * 4 + [False]
    assert request_memory.reserve("b", large)
    assert request_memory.reserve("a", PROXY_SMALL_REQUEST_BYTES)
    request_memory.release("a", large)
    assert not request_memory.reserve("a", large)
    request_memory.release("a", PROXY_SMALL_REQUEST_BYTES)
    assert request_memory.reserve("a", large)
    for connection in "cdefgh":
        for _ in range(4):
            request_memory.reserve(connection, large)
    assert request_memory.bytes == PROXY_REQUESTS_BYTES
    assert not request_memory.reserve("z", large)
    while request_memory.reserve("z", PROXY_SMALL_REQUEST_BYTES):
        pass
    assert request_memory.bytes == 2 * PROXY_REQUESTS_BYTES


def test_the_largest_request_always_has_room_by_itself() -> None:
    request_memory = RequestMemory()
    assert request_memory.reserve("a", 2 * PROXY_REQUESTS_BYTES)
    assert not request_memory.reserve("a", PROXY_SMALL_REQUEST_BYTES + 1)
    request_memory.release("a", 2 * PROXY_REQUESTS_BYTES)
    assert request_memory.bytes == 0


async def test_requests_that_hang_are_bounded(handlers: Server, stub: Rpc, server: ProxyServer) -> None:
    """A broker without responses keeps requests pending here."""
    padding = "x" * 60_000
    calls = [
        asyncio.ensure_future(stub.EndTransaction(rpc_pb.EndTransactionRequest(trace_context=padding)))
        for _ in range(200)
    ]
    # Each call is rejected, or waits in its handler.
    await until(lambda: handlers.begun + sum(call.done() for call in calls) == len(calls))
    refused = [call for call in calls if call.done()]
    assert handlers.begun <= PROXY_REQUESTS_BYTES_OF_ONE // 60_000
    assert {call.result().status.code for call in refused} == {pb.TOO_MANY_REQUESTS}
    assert (await stub.SendMessage(send_request(b"0"))).status.code == pb.OK
    handlers.may_end.set()
    assert [(await call).status.message for call in calls if call not in refused] == ["ended"] * handlers.begun
