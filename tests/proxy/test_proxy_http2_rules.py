"""The rules of RFC 9113 for frames and requests: how the server ends a stream or a connection after a violation."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

import pytest
from transports import Keeping, Swallowing
from wait_until import until

from gantrymq.proxy.grpc_call import Service
from gantrymq.proxy.http2 import frames
from gantrymq.proxy.http2.connection import Http2Connection
from gantrymq.proxy.http2.frames import ErrorCode
from gantrymq.proxy.http2.hpack import HpackDecoder, literal
from gantrymq.proxy.http2.limits import Limits
from gantrymq.proxy.http2.read_slices import ReadSlices
from gantrymq.proxy.http2.request_fields import Fields
from gantrymq.proxy.http2.stream import Http2Stream
from gantrymq.remoting.incomplete_input import IncompleteInputs
from gantrymq.system.clock import monotonic

STREAMS = 10
POST, HTTP, PATH = b"\x83", b"\x86", literal(b":path", b"/a")
REQUEST = POST + HTTP + PATH
PRIORITY_OF_1 = struct.pack(">IB", 1, 7)


@dataclass
class Received:
    """A stream's receiver, and its received data."""

    stream: Http2Stream
    fields: Fields
    data: bytes = b""
    has_ended: bool = False
    is_lost: bool = False

    def data_received(self, data: bytes, ended: bool) -> None:
        self.data += data
        self.has_ended = ended

    def server_stops(self) -> None:
        pass

    def stream_lost(self) -> None:
        self.is_lost = True


@dataclass
class Client:
    """A client at the level of bytes, and the requests that the server received."""

    transport: Keeping = field(default_factory=Keeping)
    requests: list[Received] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.connection = Http2Connection(self._accept, Limits(streams=STREAMS), lambda _: None, lambda _: None)
        self.connection.connection_made(self.transport)
        self.connection.data_received(frames.PREFACE + frames.settings({}))
        self.transport.data = b""

    def _accept(self, stream: Http2Stream, fields: Fields) -> Received:
        self.requests.append(Received(stream, fields))
        return self.requests[-1]

    def send(self, *sent: bytes) -> None:
        self.connection.data_received(b"".join(sent))
        while not self.transport.is_read and not self.transport.closed:
            # On a busy machine, the frames need more than one time slice.
            self.connection.go_on()

    def frames(self) -> Iterator[tuple[int, int, bytes]]:
        """Yields the frames of the server: type, stream, payload."""
        data = self.transport.data
        while data:
            length, _, stream_id = frames.read_header(data)
            yield length & 0xFF, stream_id, data[9 : 9 + (length >> 8)]
            data = data[9 + (length >> 8) :]

    def resets(self) -> list[tuple[int, ErrorCode]]:
        """Returns the streams that the server reset."""
        return [
            (stream_id, ErrorCode(int.from_bytes(payload, "big")))
            for kind, stream_id, payload in self.frames()
            if kind == frames.RST_STREAM
        ]

    def end(self) -> ErrorCode | None:
        """Returns the code of the GOAWAY frame with which the server closed the connection, or None."""
        for kind, _, payload in self.frames():
            if kind == frames.GOAWAY:
                assert self.transport.closed
                return ErrorCode(int.from_bytes(payload[4:8], "big"))
        assert not self.transport.closed
        return None


@pytest.fixture
async def client() -> Client:
    return Client()


def headers(
    stream_id: int, block: bytes = REQUEST, flags: int = frames.END_HEADERS | frames.END_STREAM, before: bytes = b""
) -> bytes:
    return frame(frames.HEADERS, stream_id, before + block, flags)


def opened(stream_id: int, block: bytes = REQUEST) -> bytes:
    return headers(stream_id, block, frames.END_HEADERS)


def frame(kind: int, stream_id: int, payload: bytes = b"", flags: int = 0) -> bytes:
    return frames.frame_head(kind, flags, stream_id, len(payload)) + payload


def data(stream_id: int, payload: bytes, flags: int = frames.END_STREAM) -> bytes:
    return frame(frames.DATA, stream_id, payload, flags)


CANCEL = frames.rst_stream(1, ErrorCode.CANCEL)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        pytest.param(frames.window_update(1, 5), ErrorCode.PROTOCOL_ERROR, id="window update of an idle stream"),
        pytest.param(CANCEL, ErrorCode.PROTOCOL_ERROR, id="reset of an idle stream"),
        pytest.param(data(1, b"x"), ErrorCode.PROTOCOL_ERROR, id="data of an idle stream"),
        pytest.param(headers(0), ErrorCode.PROTOCOL_ERROR, id="headers without a stream"),
        pytest.param(headers(2), ErrorCode.PROTOCOL_ERROR, id="headers of an even stream"),
        pytest.param(headers(5) + headers(3), ErrorCode.PROTOCOL_ERROR, id="headers of a skipped stream"),
        pytest.param(opened(1) + CANCEL + headers(1), ErrorCode.STREAM_CLOSED, id="headers after a reset"),
        pytest.param(frame(frames.PRIORITY, 0, b"\0" * 5), ErrorCode.PROTOCOL_ERROR, id="priority without a stream"),
        pytest.param(frame(frames.PRIORITY, 1, b"\0" * 4), ErrorCode.FRAME_SIZE_ERROR, id="short priority"),
        pytest.param(frame(frames.PRIORITY, 1, PRIORITY_OF_1), ErrorCode.PROTOCOL_ERROR, id="dependency on itself"),
        pytest.param(
            headers(1, flags=frames.END_HEADERS | frames.WITH_PRIORITY, before=PRIORITY_OF_1),
            ErrorCode.PROTOCOL_ERROR,
            id="headers with a dependency on itself",
        ),
        pytest.param(frame(frames.SETTINGS, 1), ErrorCode.PROTOCOL_ERROR, id="settings of a stream"),
        pytest.param(
            frame(frames.SETTINGS, 0, b"\0" * 6, frames.ACK),
            ErrorCode.FRAME_SIZE_ERROR,
            id="acknowledgement with settings",
        ),
        pytest.param(
            frames.settings({frames.SETTING_ENABLE_PUSH: 2}), ErrorCode.PROTOCOL_ERROR, id="impossible push setting"
        ),
        pytest.param(frame(frames.PING, 1, b"12345678"), ErrorCode.PROTOCOL_ERROR, id="ping of a stream"),
        pytest.param(frame(frames.GOAWAY, 1, b"\0" * 8), ErrorCode.PROTOCOL_ERROR, id="goaway of a stream"),
        pytest.param(frame(frames.GOAWAY, 0, b"\0" * 7), ErrorCode.FRAME_SIZE_ERROR, id="short goaway"),
        pytest.param(frames.window_update(0, 0), ErrorCode.PROTOCOL_ERROR, id="window update of 0 bytes"),
        pytest.param(
            opened(1) + frame(frames.HEADERS, 3, bytes(16_385), 4), ErrorCode.FRAME_SIZE_ERROR, id="large headers"
        ),
        pytest.param(
            opened(1) + data(1, b"\x05abcd", frames.PADDED), ErrorCode.PROTOCOL_ERROR, id="more padding than data"
        ),
        pytest.param(
            headers(1) + data(1, b"\x05abcd", frames.PADDED), ErrorCode.PROTOCOL_ERROR, id="bad padding after the end"
        ),
        pytest.param(headers(1, REQUEST + literal(b"Name", b"v")), ErrorCode.PROTOCOL_ERROR, id="uppercase name"),
        pytest.param(headers(1, REQUEST + literal(b"", b"v")), ErrorCode.PROTOCOL_ERROR, id="empty name"),
        pytest.param(headers(1, REQUEST + literal(b"a", b"v\r\nb: c")), ErrorCode.PROTOCOL_ERROR, id="line break"),
        pytest.param(
            headers(1, REQUEST + literal(b":test", b"v")), ErrorCode.PROTOCOL_ERROR, id="unknown pseudo-header"
        ),
        pytest.param(
            headers(1, REQUEST + literal(b"a", b"v" * 600) * 26),
            ErrorCode.ENHANCE_YOUR_CALM,
            id="fields beyond the limit",
        ),
        pytest.param(headers(1, b"\x82" * 16_000), ErrorCode.ENHANCE_YOUR_CALM, id="16,000 fields of the table"),
    ],
)
async def test_a_violation_that_ends_the_connection(client: Client, sent: bytes, code: ErrorCode) -> None:
    client.send(sent)
    assert client.end() is code


async def test_a_stream_that_ended_by_itself(client: Client) -> None:
    client.send(headers(1))
    client.requests[0].stream.send_headers(b"\x88")
    client.requests[0].stream.finish(b"")
    client.send(frames.window_update(1, 5), frame(frames.PRIORITY, 1, b"\0" * 5), CANCEL)
    assert client.end() is None
    client.send(data(1, b"late"))
    assert client.resets() == [(1, ErrorCode.STREAM_CLOSED)]
    client.send(headers(3))
    client.requests[1].stream.finish(b"\x88")
    client.send(headers(3))
    assert client.end() is ErrorCode.STREAM_CLOSED


async def test_frames_on_their_way_to_a_stream_that_was_reset(client: Client) -> None:
    """The peer may not have received the reset yet, so the frames are ignored."""
    client.send(opened(1))
    client.requests[0].stream.finish(b"\x88")
    await until(client.resets)
    assert client.resets() == [(1, ErrorCode.NO_ERROR)]
    client.send(data(1, b"x" * 1000, 0), headers(1, literal(b"trailer", b"v")), CANCEL)
    assert client.end() is None
    assert len(client.resets()) == 1


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        pytest.param(headers(1) + data(1, b"x"), ErrorCode.STREAM_CLOSED, id="data after the end"),
        pytest.param(headers(1) + headers(1), ErrorCode.STREAM_CLOSED, id="headers after the end"),
        pytest.param(opened(1) + opened(1, b""), ErrorCode.PROTOCOL_ERROR, id="trailers without an end"),
        pytest.param(opened(1) + headers(1, HTTP), ErrorCode.PROTOCOL_ERROR, id="pseudo-header in trailers"),
        pytest.param(opened(1) + frames.window_update(1, 0), ErrorCode.PROTOCOL_ERROR, id="window update of 0 bytes"),
        pytest.param(
            opened(1) + frames.window_update(1, frames.MAX_WINDOW), ErrorCode.FLOW_CONTROL_ERROR, id="impossible window"
        ),
        pytest.param(
            opened(1, REQUEST + literal(b"content-length", b"5")) + data(1, b"1234"),
            ErrorCode.PROTOCOL_ERROR,
            id="less data than announced",
        ),
        pytest.param(
            opened(1, REQUEST + literal(b"content-length", b"5")) + data(1, b"123", 0) + data(1, b"456", 0),
            ErrorCode.PROTOCOL_ERROR,
            id="more data than announced",
        ),
        pytest.param(
            opened(1, REQUEST + literal(b"content-length", b"5")) + headers(1, b""),
            ErrorCode.PROTOCOL_ERROR,
            id="trailers before all data",
        ),
    ],
)
async def test_a_violation_that_resets_a_stream(client: Client, sent: bytes, code: ErrorCode) -> None:
    client.send(sent, headers(3))
    assert client.resets() == [(1, code)]
    assert client.end() is None
    assert [request.is_lost for request in client.requests] == [True, False]
    assert client.requests[1].has_ended


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(HTTP + PATH, id="no method"),
        pytest.param(POST + PATH, id="no scheme"),
        pytest.param(POST + HTTP, id="no path"),
        pytest.param(POST + HTTP + literal(b":path", b""), id="empty path"),
        pytest.param(POST + POST + HTTP + PATH, id="two methods"),
        pytest.param(POST + HTTP + HTTP + PATH, id="two schemes"),
        pytest.param(POST + HTTP + PATH + PATH, id="two paths"),
        pytest.param(b"\x88" + REQUEST, id="status"),
        pytest.param(POST + HTTP + literal(b"a", b"v") + PATH, id="pseudo-header behind a field"),
        pytest.param(REQUEST + literal(b"connection", b"close"), id="connection"),
        pytest.param(REQUEST + literal(b"transfer-encoding", b"chunked"), id="transfer-encoding"),
        pytest.param(REQUEST + literal(b"te", b"gzip"), id="te"),
        pytest.param(REQUEST + literal(b"content-length", b"-1"), id="negative content-length"),
        pytest.param(REQUEST + literal(b"content-length", b"5"), id="content-length without data"),
        pytest.param(
            REQUEST + literal(b"content-length", b"0") + literal(b"content-length", b"1"), id="two content-lengths"
        ),
    ],
)
async def test_a_malformed_request_resets_its_stream(client: Client, block: bytes) -> None:
    client.send(headers(1, block), headers(3))
    assert client.resets() == [(1, ErrorCode.PROTOCOL_ERROR)]
    assert client.end() is None
    assert [request.stream.stream_id for request in client.requests] == [3]


async def test_a_request_with_everything_that_is_allowed(client: Client) -> None:
    block = REQUEST + literal(b"te", b"trailers") + literal(b"content-length", b"6") + literal(b"a", b" v ")
    client.send(opened(1, block), data(1, b"123", 0), frame(0x42, 1, b"unknown"), frame(frames.PRIORITY, 9, b"\0" * 5))
    client.send(data(1, b"\x02456\0\0", frames.PADDED), headers(1, literal(b"trailer", b"v")))
    (request,) = client.requests
    assert (request.data, request.has_ended) == (b"123456", True)
    assert client.end() is None
    assert not client.resets()
    # The window that the padding used is restored.
    assert request.stream.receive_window == frames.DEFAULT_WINDOW - 6


async def test_streams_beyond_the_limit_are_refused(client: Client) -> None:
    client.send(*(opened(2 * n + 1) for n in range(STREAMS + 1)))
    assert client.resets() == [(2 * STREAMS + 1, ErrorCode.REFUSED_STREAM)]
    # This frame was sent before the reset arrived.
    client.send(data(2 * STREAMS + 1, b"x"))
    assert client.end() is None


@pytest.mark.parametrize(
    "first", [frames.ping(b"12345678"), frames.SETTINGS_ACK, headers(1)], ids=["ping", "ack", "call"]
)
async def test_the_first_frame_is_settings(first: bytes) -> None:
    transport = Keeping()
    connection = Http2Connection(lambda stream, fields: None, Limits(), lambda _: None, lambda _: None)
    connection.connection_made(transport)
    connection.data_received(frames.PREFACE + first)
    assert transport.closed


@pytest.mark.parametrize("size", [0, 16_000, 20_000])
async def test_a_request_that_is_not_grpc(size: int) -> None:
    """The response is sent at the end of the request, or when it gets long.

    It is a text that respects the stream's window.
    """
    service = Service({}, 1024, 0)
    transport = Keeping()
    connection = Http2Connection(service.accept, Limits(service.unread), lambda _: None, lambda _: None)
    connection.connection_made(transport)
    connection.data_received(frames.PREFACE + frames.settings({frames.SETTING_INITIAL_WINDOW_SIZE: 10}))
    connection.data_received(opened(1))
    transport.data = b""
    for at in range(0, size, 10_000):
        connection.data_received(data(1, bytes(min(10_000, size - at)), 0))
    if size < 20_000:
        assert not transport.data
        connection.data_received(data(1, b""))
    connection.data_received(frames.window_update(1, 1000))
    got = {}
    at = 0
    while at < len(transport.data):
        length, flags, _ = frames.read_header(transport.data, at)
        kind, length = length & 0xFF, length >> 8
        got.setdefault(kind, []).append((flags, transport.data[at + 9 : at + 9 + length]))
        at += 9 + length
    (first, last) = got[frames.HEADERS]
    assert HpackDecoder().decode(first[1], 10_000)[0] == (b":status", b"415")
    assert len(got[frames.DATA][0][1]) == 10
    assert b"".join(payload for _, payload in got[frames.DATA]).startswith(b"this port serves gRPC")
    assert last[0] & frames.END_STREAM


# -- incomplete inputs and time slices ---------------------------------------------------------------------------------


class WholeReads(ReadSlices):
    """Handles each read at once, even if the machine is busy."""

    def begin(self, now: float) -> float:
        return inf

    def ended(self, seconds: float) -> None:
        pass


def connection_with(inputs: IncompleteInputs) -> tuple[Http2Connection, Swallowing]:
    limits = Limits(incomplete=inputs, slices=WholeReads())
    connection = Http2Connection(lambda stream, fields: None, limits, lambda _: None, lambda _: None)
    transport = Swallowing()
    connection.connection_made(transport)
    return connection, transport


BEGUN = frames.PREFACE + frames.settings({})


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"PRI * HT", id="preface"),
        pytest.param(frames.PREFACE, id="no settings"),
        pytest.param(BEGUN + b"\0\0", id="head of a frame"),
        pytest.param(BEGUN + headers(1) + data(1, b"x" * 1000)[:500], id="frame"),
        pytest.param(BEGUN + headers(1, REQUEST, 0), id="header block"),
        pytest.param(BEGUN + headers(1, b"", 0), id="empty header block"),
    ],
)
@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "frame by frame"])
async def test_an_incomplete_input_has_a_deadline(sent: bytes, at_once: bool) -> None:
    began, inputs = monotonic(), IncompleteInputs()
    idle, idle_transport = connection_with(inputs)
    idle.data_received(BEGUN)
    called, _ = connection_with(inputs)
    called.data_received(BEGUN + headers(1))
    connection, transport = connection_with(inputs)
    if not at_once and sent.startswith(BEGUN):
        connection.data_received(BEGUN)
        connection.data_received(sent.removeprefix(BEGUN))
    elif sent:
        connection.data_received(sent)
    inputs.close_expired(began + 9.0)
    assert not transport.closed
    inputs.close_expired(monotonic() + 11.0)
    assert transport.closed
    assert not idle_transport.closed
    # A connection with a request and without incomplete data has no entry.
    assert len(inputs) == 1


async def test_a_frame_that_is_complete_ends_its_deadline() -> None:
    inputs = IncompleteInputs()
    connection, transport = connection_with(inputs)
    sent = BEGUN + opened(1) + data(1, b"x" * 1000, 0)
    connection.data_received(sent[:-1])
    assert len(inputs) == 1
    connection.data_received(sent[-1:])
    assert (len(inputs), inputs.bytes) == (0, 0)
    connection.data_received(headers(3, REQUEST[:5], 0))
    assert inputs.bytes == 5
    connection.data_received(frame(frames.CONTINUATION, 3, REQUEST[5:], frames.END_HEADERS))
    assert (len(inputs), inputs.bytes) == (0, 0)
    assert not transport.closed


async def test_the_oldest_header_blocks_are_closed_first() -> None:
    inputs = IncompleteInputs(max_bytes=30_000)
    peers = [connection_with(inputs) for _ in range(5)]
    for connection, _ in peers:
        connection.data_received(BEGUN + headers(1) + headers(3, b"", 0))
        connection.data_received(frame(frames.CONTINUATION, 3, b"\x82" * 9_000))
    assert [transport.closed for _, transport in peers] == [True, True, False, False, False]
    for connection, _ in peers:
        connection.connection_lost(None)
    assert inputs.bytes == 0


async def test_a_long_read_is_handled_in_slices(client: Client) -> None:
    pings = 10_000
    client.connection.data_received(frames.ping(b"12345678") * pings)
    answered = len(client.transport.data) // 17
    assert 0 < answered < pings // 2
    assert not client.transport.is_read
    await until(lambda: client.transport.is_read)
    assert len(client.transport.data) == 17 * pings
    assert client.end() is None
