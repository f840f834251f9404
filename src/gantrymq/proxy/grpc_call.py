"""GrpcCall: one rpc on a stream of HTTP/2 (gRPC over HTTP/2), from its first field to its trailers."""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import quote

from google.protobuf.message import DecodeError, Message

from gantrymq.logs import peer_log
from gantrymq.proxy.access_log import AccessLog
from gantrymq.proxy.call import CLIENT_ID, DEFAULT_TIMEOUT_MS, METHODS, Call, Handlers, Method
from gantrymq.proxy.http2.hpack import literal
from gantrymq.proxy.http2.request_fields import Fields
from gantrymq.proxy.http2.stream import Http2Stream, Receiver
from gantrymq.proxy.http2.untaken import UntakenBytes
from gantrymq.proxy.in_hand import RequestsInHand
from gantrymq.proxy.metrics import CallFigures
from gantrymq.proxy.not_grpc import NotGrpc
from gantrymq.proxy.statuses import GrpcCode, GrpcError, ProxyError, status_of
from gantrymq.proxy.unfinished import UnfinishedMessages
from gantrymq.proxy.v2.definition_pb2 import Code
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: ":status 200" and the content type.
_HEADERS = b"\x88" + literal(b"content-type", b"application/grpc")
_OK = literal(b"grpc-status", b"0")

#: Of a message in a stream: whether it is compressed, and its length.
_PREFIX = 5
#: A stream's messages that its handler hasn't taken.
_MOST_WAITING = 1000
#: What is kept of a stream both ways for a client that opens no window.
_MOST_UNTAKEN_BYTES = 1024 * 1024
#: Requests other than SendMessage are small; to read ones of 130 MiB would hold up everybody for seconds.
_MOST_OF_OTHERS = 2 * 1024 * 1024
#: Of a SendMessage beyond what the largest body has: properties, ids.
_MOST_BESIDE_BODY = 1024 * 1024
_UNIT_MS = {"H": 3_600_000.0, "M": 60_000.0, "S": 1000.0, "m": 1.0, "u": 0.001, "n": 0.000001}

#: Raises ProxyError for a request that its client has no right to.
Guard = Callable[[Call, Message], Awaitable[None]]


class Service:
    """What all calls have in common: the handlers, the limits, who may call.

    `guard` sees every request before its handler does, `figures` and `access_log` are told of every call that has
    ended. No body is
    larger than `max_body_size`; 0 for any.
    """

    def __init__(
        self,
        handlers: Handlers,
        max_message_size: int,
        max_body_size: int,
        guard: Guard | None = None,
        figures: CallFigures | None = None,
        access_log: AccessLog | None = None,
    ) -> None:
        self.access_log = access_log
        self.figures = figures
        self.handlers = handlers
        self.max_message_size = max_message_size
        self._max_send_size = min(max_message_size, (max_body_size or max_message_size) + _MOST_BESIDE_BODY)
        self.guard = guard
        self.unfinished = UnfinishedMessages()
        self.in_hand = RequestsInHand()
        self.untaken = UntakenBytes()
        self.loop = asyncio.get_running_loop()

    def most_bytes(self, method: Method) -> int:
        """A longer request isn't read."""
        return self._max_send_size if method.name == "SendMessage" else min(self.max_message_size, _MOST_OF_OTHERS)

    def accept(self, stream: Http2Stream, fields: Fields) -> Receiver | None:
        """The receiver of a request with these fields; None if the stream was answered."""
        metadata = dict(fields)
        if not metadata.get(b"content-type", b"").startswith(b"application/grpc"):
            return NotGrpc(stream)
        path = metadata.get(b":path", b"").decode("latin-1")
        method = METHODS.get(path)
        handler = self.handlers.get(method.name) if method is not None else None
        if method is None or handler is None:
            stream.finish(_HEADERS + _trailers(GrpcCode.UNIMPLEMENTED, f"Method not found: {path[1:200]}"))
            return None
        return GrpcCall(self, stream, method, handler, metadata)


class GrpcCall:
    """`Call`, `ServerStream` and `Stream` of a handler."""

    __slots__ = (
        "_arrived",
        "_began",
        "_buffer",
        "_code",
        "_fields",
        "_handler",
        "_has_begun",
        "_in_hand",
        "_is_half_closed",
        "_kept",
        "_method",
        "_most_bytes",
        "_needed",
        "_over",
        "_requests",
        "_service",
        "_stream",
        "_task",
        "client_id",
        "is_over",
    )

    def __init__(
        self, service: Service, stream: Http2Stream, method: Method, handler: Any, fields: dict[bytes, bytes]
    ) -> None:
        self._service = service
        self._stream = stream
        self._method = method
        self._most_bytes = service.most_bytes(method)
        self._handler = handler
        self._fields = fields
        self._began = monotonic()
        #: What came of a message that isn't whole, and how much it must be to be.
        self._buffer = bytearray()
        self._needed = _PREFIX
        self._task: asyncio.Task[None] | None = None
        #: The response has begun.
        self._has_begun = False
        self._is_half_closed = False
        #: Of a client's stream: those that came, and who waits for one.
        self._requests: deque[tuple[Message, int]] | None = deque() if method.client_streams else None
        self._arrived: asyncio.Future[None] | None = None
        self._over: list[Callable[[], None]] = []
        self.is_over = False
        #: The bytes of requests that the handler has, or is to have; of what it has for its client.
        self._in_hand = self._kept = 0
        #: The response's, 0 as long as there is none.
        self._code: Code = Code.CODE_UNSPECIFIED
        self.client_id = fields.get(CLIENT_ID.encode(), b"").decode("latin-1")

    # -- Call ---------------------------------------------------------------------------------------------------

    @property
    def method(self) -> str:
        return self._method.name

    @property
    def peer(self) -> str:
        return self._stream.connection.peer

    @property
    def local_address(self) -> str:
        return self._stream.connection.local

    @property
    def metadata(self) -> Mapping[str, str]:
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in self._fields.items()}

    def remaining_ms(self) -> int:
        text = self._fields.get(b"grpc-timeout", b"").decode("latin-1")
        unit_ms = _UNIT_MS.get(text[-1:])
        if unit_ms is None or not text[:-1].isdigit() or len(text) > 9:
            return DEFAULT_TIMEOUT_MS
        return max(0, int(int(text[:-1]) * unit_ms - (monotonic() - self._began) * 1000))

    def when_over(self, callback: Callable[[], None]) -> None:
        if self.is_over:
            callback()
        else:
            self._over.append(callback)

    def keep(self, size: int) -> None:
        if not self.is_over:
            self._kept += size
            self._service.untaken.keep(self._stream.connection, size)

    async def write(self, response: Message) -> None:
        self.write_soon(response)
        if self._stream.is_full:
            await self._stream.drained()

    def write_soon(self, response: Message) -> None:
        if not self.is_over:
            if self._requests is not None and self._stream.waiting_bytes > _MOST_UNTAKEN_BYTES:
                self._give_up(GrpcCode.RESOURCE_EXHAUSTED, "the client doesn't take what is sent to it")
                return
            self._begin()
            self._stream.send_data(_framed(response))

    async def requests(self) -> AsyncIterator[Any]:
        assert self._requests is not None
        while True:
            while self._requests:
                request, size = self._requests.popleft()
                self._put_down(size)
                if self._service.guard is not None:
                    await self._service.guard(self, request)
                yield request
            if self._is_half_closed:
                return
            self._arrived = self._service.loop.create_future()
            await self._arrived

    # -- Receiver -----------------------------------------------------------------------------------------------

    def data_received(self, data: bytes, ended: bool) -> None:
        """The stream's: messages are begun, or refused, as they become whole."""
        if self.is_over:
            return
        try:
            self._receive(data, ended)
        except GrpcError as e:
            self._finish(e.code, str(e))
        except ProxyError as e:
            self._fail(e)

    def _receive(self, data: bytes, ended: bool) -> None:
        unfinished = self._service.unfinished
        if self._buffer:
            # Not joined before it is whole: a message of megabytes comes in hundreds of pieces.
            self._buffer += data
            unfinished.held_bytes += len(data)
            if len(self._buffer) < self._needed and not ended:
                self._make_room(len(self._buffer))
                return
            data = bytes(self._buffer)
            self._forget_buffer()
        received = len(data)
        while len(data) >= _PREFIX:
            length = int.from_bytes(data[1:_PREFIX], "big")
            if length > self._most_bytes:
                raise self._too_long(length)
            self._needed = _PREFIX + length
            if len(data) < self._needed:
                break
            self._message(data[0], data[_PREFIX : self._needed])
            data = data[self._needed :]
            self._needed = _PREFIX
        if ended:
            if data:
                raise GrpcError(GrpcCode.INTERNAL, "the stream ended in the middle of a message")
            self._half_closed()
            return
        if self._requests is not None and received > len(data):
            # More messages may follow those that were taken.
            self._stream.let_in(received - len(data))
        if data:
            self._buffer += data
            unfinished.held_bytes += len(data)
            self._make_room(len(data))

    def _too_long(self, length: int) -> GrpcError | ProxyError:
        if self._method.name == "SendMessage" and length <= self._service.max_message_size:
            return ProxyError(Code.MESSAGE_BODY_TOO_LARGE, f"a request of {length} bytes: max is {self._most_bytes}")
        return GrpcError(GrpcCode.RESOURCE_EXHAUSTED, f"gRPC message exceeds maximum size {self._most_bytes}: {length}")

    def _make_room(self, held: int) -> None:
        """For the rest of the message that has begun, if its window isn't wide enough."""
        unfinished = self._service.unfinished
        if unfinished.is_full:
            raise GrpcError(GrpcCode.RESOURCE_EXHAUSTED, "too many messages have begun and not ended")
        lacking = self._needed - held - self._stream.receive_window
        if lacking > 0:
            unfinished.ask(self, lacking, monotonic())

    def _forget_buffer(self) -> None:
        if self._buffer:
            self._service.unfinished.held_bytes -= len(self._buffer)
            self._buffer = bytearray()
            self._service.unfinished.done(self, monotonic())

    # -- UnfinishedMessages ---------------------------------------------------------------------------------------

    @property
    def connection(self) -> object:
        return self._stream.connection

    def room_given(self, size: int) -> None:
        self._stream.let_in(size)

    def room_taken(self) -> None:
        self._finish(GrpcCode.RESOURCE_EXHAUSTED, "the message comes too slowly, and others wait for its room")

    def _message(self, compressed: int, data: bytes) -> None:
        if compressed:
            data = self._decompressed(data)
        size = len(data) + _PREFIX
        if not self._service.in_hand.take(self._stream.connection, size):
            raise ProxyError(Code.TOO_MANY_REQUESTS, "too much of what clients ask is under way: try again later")
        self._in_hand += size
        try:
            request = self._method.request.FromString(data)
        except DecodeError as e:
            raise GrpcError(GrpcCode.INTERNAL, "Invalid protobuf byte sequence") from e
        if self._requests is not None:
            if len(self._requests) >= _MOST_WAITING:
                raise GrpcError(GrpcCode.RESOURCE_EXHAUSTED, "too many messages of this stream wait")
            self._requests.append((request, size))
            self._wake()
            if self._task is None:
                self._task = self._service.loop.create_task(self._serve(request))
        elif self._task is None:
            self._task = self._service.loop.create_task(self._serve(request))
        else:
            raise GrpcError(GrpcCode.INTERNAL, "Too many requests")

    def _decompressed(self, data: bytes) -> bytes:
        if self._fields.get(b"grpc-encoding") != b"gzip":
            raise GrpcError(GrpcCode.UNIMPLEMENTED, "a compression that isn't known: only gzip is")
        most = self._most_bytes
        decompressor = zlib.decompressobj(16 + zlib.MAX_WBITS)
        try:
            plain = decompressor.decompress(data, most)
        except zlib.error as e:
            raise GrpcError(GrpcCode.INTERNAL, f"a message that is no gzip: {e}") from e
        if not decompressor.eof:
            raise GrpcError(GrpcCode.RESOURCE_EXHAUSTED, f"Decompressed gRPC message exceeds maximum size {most}")
        return plain

    def _half_closed(self) -> None:
        self._is_half_closed = True
        self._wake()
        if self._task is None:
            # A stream without a message ends as it began.
            if self._requests is None:
                raise GrpcError(GrpcCode.INTERNAL, "Half-closed without a request")
            self._finish(GrpcCode.OK)

    def _put_down(self, size: int) -> None:
        if self._in_hand:
            self._in_hand -= size
            self._service.in_hand.done(self._stream.connection, size)

    def _wake(self) -> None:
        if self._arrived is not None:
            if not self._arrived.done():
                self._arrived.set_result(None)
            self._arrived = None

    def stream_lost(self) -> None:
        """The stream's: the client has given up, or is gone."""
        if self.is_over:
            return
        if self._task is not None:
            self._task.cancel()
        self._count(GrpcCode.CANCELLED)
        self._end()

    def server_stops(self) -> None:
        """The stream's: its client had better find another proxy now. What has an end of its own may come to it."""
        if self._requests is not None:
            self._give_up(GrpcCode.UNAVAILABLE, "the proxy stops")

    def _give_up(self, code: GrpcCode, message: str) -> None:
        if self._task is not None:
            self._task.cancel()
        self._finish(code, message)

    # -- the handler --------------------------------------------------------------------------------------------

    async def _serve(self, request: Message) -> None:
        method = self._method
        try:
            if not self.client_id.strip():
                raise ProxyError(Code.CLIENT_ID_REQUIRED, "client id cannot be empty")
            # Of a stream each request is looked at when its turn comes.
            if self._service.guard is not None and not method.client_streams:
                await self._service.guard(self, request)
            if method.client_streams:
                await self._handler(self)
            elif method.server_streams:
                await self._handler(self, request)
            else:
                response = await self._handler(self, request)
                self._code = response.status.code
                self.write_soon(response)
        except GrpcError as e:
            self._finish(e.code, str(e))
        except Exception as e:
            self._fail(e)
        except asyncio.CancelledError:
            self._finish(GrpcCode.CANCELLED, "the proxy gave up this call")
            raise
        else:
            self._finish(GrpcCode.OK)

    def _fail(self, error: Exception) -> None:
        status = status_of(error)
        self._code = status.code
        self.write_soon(self._method.response(status=status))
        self._finish(GrpcCode.OK)

    def _begin(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._stream.send_headers(_HEADERS)

    def _finish(self, code: GrpcCode, message: str = "") -> None:
        if self.is_over:
            return
        self._count(code)
        trailers = _OK if code is GrpcCode.OK else _trailers(code, message)
        self._stream.finish(trailers if self._has_begun else _HEADERS + trailers)
        self._end()

    def _count(self, code: GrpcCode) -> None:
        figures, access_log = self._service.figures, self._service.access_log
        if figures is not None or access_log is not None:
            result = Code.Name(self._code) if self._code and code is GrpcCode.OK else code.name
            seconds = monotonic() - self._began
            if figures is not None:
                figures.ended(self._method.name, result, seconds)
            if access_log is not None:
                access_log.ended(self.peer, self.client_id, self._method.name, result, seconds)

    def _end(self) -> None:
        if self.is_over:
            return
        self.is_over = True
        self._forget_buffer()
        self._put_down(self._in_hand)
        if self._kept:
            self._service.untaken.taken(self._stream.connection, self._kept)
        callbacks, self._over = self._over, []
        for callback in callbacks:
            callback()


def _framed(message: Message) -> bytes:
    data = message.SerializeToString()
    return b"\x00" + len(data).to_bytes(4, "big") + data


def _trailers(code: GrpcCode, message: str) -> bytes:
    text = quote(message[:1000], safe=" !\"#$&'()*+,/:;<=>?@[\\]^`{|}").encode()
    return literal(b"grpc-status", b"%d" % code) + literal(b"grpc-message", text)
