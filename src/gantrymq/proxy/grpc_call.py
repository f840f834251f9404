"""One rpc on an HTTP/2 stream, from its first header field to its trailers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Protocol, cast
from urllib.parse import quote

from google.protobuf.message import DecodeError, Message

from gantrymq.auth.users import User
from gantrymq.logs import peer_log
from gantrymq.proxy.access_log import AccessLog
from gantrymq.proxy.call import CLIENT_ID, DEFAULT_TIMEOUT_MS, METHODS, Call, EncodedResponse, Handlers, Method
from gantrymq.proxy.call_queue import CALL_BYTES, ROUND_BYTES, CallQueue
from gantrymq.proxy.http2.hpack import literal
from gantrymq.proxy.http2.read_slices import ReadSlices
from gantrymq.proxy.http2.request_fields import Fields
from gantrymq.proxy.http2.stream import Http2Stream, Receiver
from gantrymq.proxy.http2.unread_responses import UnreadResponses
from gantrymq.proxy.incomplete_messages import IncompleteMessages
from gantrymq.proxy.message_limits import MessageLimits
from gantrymq.proxy.message_size import (
    MessageTooLarge,
    NotAMessage,
    memory_scan,
    most_memory_of,
    shape_of,
)
from gantrymq.proxy.metrics import CallFigures
from gantrymq.proxy.not_grpc import NotGrpc
from gantrymq.proxy.payload import PREFIX, Payload
from gantrymq.proxy.request_memory import RequestMemory
from gantrymq.proxy.statuses import GrpcCode, GrpcError, ProxyError, status_of
from gantrymq.proxy.v2.definition_pb2 import Code
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: ":status 200" and the content type.
_HEADERS = b"\x88" + literal(b"content-type", b"application/grpc")
_OK = literal(b"grpc-status", b"0")

#: Largest number of messages of a stream that wait for the handler.
_MAX_WAITING = 1000
#: While much memory is free, shorter messages are not scanned, because a scan takes 5 us.
_MAX_UNSCANNED = 2048
#: Largest size of the unread responses of a stream with requests in both directions, bytes.
_MAX_UNREAD_BYTES = 1024 * 1024
_UNIT_MS = {"H": 3_600_000.0, "M": 60_000.0, "S": 1000.0, "m": 1.0, "u": 0.001, "n": 0.000001}


class Guard(Protocol):
    """Access control. All methods raise ProxyError if they refuse a call."""

    async def authenticate(self, call: Call) -> User | None:
        """Returns the user who signed the metadata; None if the call needs no user."""

    def is_authenticated(self, call: Call) -> bool:
        """Authenticates like `authenticate`, without waiting. Returns False if the user is not cached."""

    async def authorize(self, call: Call, user: User | None, request: Message) -> None:
        """Checks that the user has the rights for this request."""


class Service:
    """The handlers, limits and access control of all calls of one server.

    `guard` authenticates every call before its message is parsed, and authorizes every request before its handler runs.
    `figures` and `access_log` record every call that has ended.
    """

    def __init__(
        self,
        handlers: Handlers,
        limits: MessageLimits,
        guard: Guard | None = None,
        figures: CallFigures | None = None,
        access_log: AccessLog | None = None,
    ) -> None:
        self.access_log = access_log
        self.figures = figures
        self.handlers = handlers
        self.limits = limits
        self.guard = guard
        self.incomplete_messages = IncompleteMessages()
        self.request_memory = RequestMemory()
        self.unread = UnreadResponses()
        self.loop = asyncio.get_running_loop()
        self.slices = ReadSlices()
        self.queue = CallQueue(self.loop, self.slices)

    def accept(self, stream: Http2Stream, fields: Fields) -> Receiver | None:
        """Returns the receiver of a request with these fields; None if the response is already sent."""
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
    """One gRPC call. Implements `Call`, `ServerStream` and `Stream` for handlers."""

    __slots__ = (
        "_arrived",
        "_began",
        "_buffer",
        "_code",
        "_fields",
        "_handler",
        "_has_begun",
        "_is_authenticated",
        "_is_half_closed",
        "_kept",
        "_limit",
        "_method",
        "_needed",
        "_over",
        "_queued",
        "_requests",
        "_reserved",
        "_service",
        "_stream",
        "_task",
        "_waiting",
        "client_id",
        "is_over",
        "user",
    )

    def __init__(
        self, service: Service, stream: Http2Stream, method: Method, handler: Any, fields: dict[bytes, bytes]
    ) -> None:
        self._service = service
        self._stream = stream
        self._method = method
        self._limit = service.limits.of(method)
        self._handler = handler
        self._fields = fields
        self._began = monotonic()
        #: The bytes of an incomplete message, and its full size with the prefix.
        self._buffer = bytearray()
        self._needed = PREFIX
        self._task: asyncio.Task[None] | None = None
        #: The request that waits in the call queue, and the future of a handler that waits there.
        self._waiting: Payload | None = None
        self._queued: asyncio.Future[None] | None = None
        #: True after the headers of the response are sent.
        self._has_begun = False
        self._is_half_closed = False
        #: True if incomplete messages may be buffered. This is only a first check: `_serve` authenticates every call
        #: again.
        self._is_authenticated = service.guard is None
        #: Messages of a stream that wait for the handler, and the future of a handler that waits for one.
        self._requests: deque[Payload] | None = deque() if method.client_streams else None
        self._arrived: asyncio.Future[None] | None = None
        self._over: list[Callable[[], None]] = []
        self.is_over = False
        #: Memory of the requests, and of the messages for the client (`keep`), bytes.
        self._reserved = self._kept = 0
        #: The code of the response, 0 before it.
        self._code: Code = Code.CODE_UNSPECIFIED
        self.client_id = fields.get(CLIENT_ID.encode(), b"").decode("latin-1")
        self.user = ""

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
    def connection(self) -> object:
        return self._stream.connection

    @property
    def silent_s(self) -> float:
        return monotonic() - self._stream.connection.last_read

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
            self._service.unread.add(self._stream.connection, size)

    async def write(self, response: Message) -> None:
        self.write_soon(response)
        if self._stream.is_full:
            await self._stream.drained()

    def write_soon(self, response: Message) -> None:
        if not self.is_over:
            if self._requests is not None and self._stream.waiting_bytes > _MAX_UNREAD_BYTES:
                self._give_up(GrpcCode.RESOURCE_EXHAUSTED, "the client doesn't read its responses")
                return
            self._send(response.SerializeToString())

    def _respond(self, response: Message | EncodedResponse) -> None:
        if isinstance(response, EncodedResponse):
            self._code = response.code
            if not self.is_over:
                self._send(response.data)
        else:
            self._code = response.status.code  # type: ignore[attr-defined]
            self.write_soon(response)

    def _send(self, data: bytes) -> None:
        self._begin()
        self._stream.send_data(b"\x00" + len(data).to_bytes(4, "big") + data)

    async def requests(self) -> AsyncIterator[Any]:
        assert self._requests is not None
        while True:
            while self._requests:
                await self._wait_in_queue(self._requests[0])
                request, memory = await self._request(self._requests.popleft())
                try:
                    yield request
                finally:
                    self._release(memory)
            if self._is_half_closed:
                return
            self._arrived = self._service.loop.create_future()
            await self._arrived

    # -- Receiver -----------------------------------------------------------------------------------------------

    def data_received(self, data: bytes, ended: bool) -> None:
        """Receives bytes, and starts or rejects the messages that are complete."""
        if self.is_over:
            return
        try:
            self._receive(data, ended)
        except GrpcError as e:
            self._give_up(e.code, str(e))
        except ProxyError as e:
            self._cancel_handler()
            self._fail(e)

    def _receive(self, received: bytes, ended: bool) -> None:
        """Adds bytes to the buffer, and accepts complete messages. Raises GrpcError or ProxyError."""
        incomplete = self._service.incomplete_messages
        data: bytes | bytearray = received
        if self._buffer:
            # A message of megabytes arrives in hundreds of pieces, so append without parsing.
            self._buffer += received
            incomplete.buffered_bytes += len(received)
            if len(self._buffer) < self._needed and not ended:
                self._open_window(len(self._buffer))
                return
            data = self._forget_buffer()
        size = len(data)
        at = 0
        while size - at >= PREFIX:
            length = int.from_bytes(data[at + 1 : at + PREFIX], "big")
            if length > self._limit.encoded_bytes:
                raise self._too_long(length)
            self._needed = PREFIX + length
            end = at + self._needed
            if size < end:
                break
            is_compressed = bool(data[at])
            if end == size and not at and isinstance(data, bytearray):
                # Reuse the buffer: a copy of 4 MiB takes 1 ms.
                del data[:PREFIX]
                self._message(data, is_compressed)
            else:
                self._message(data[at + PREFIX : end], is_compressed)
            at = end
            self._needed = PREFIX
        left = size - at
        if ended:
            if left:
                raise GrpcError(GrpcCode.INTERNAL, "the stream ended in the middle of a message")
            self._half_closed()
            return
        if self._requests is not None and at:
            # Open the window again for the next messages of the stream.
            self._stream.let_in(at)
        if left:
            self._buffer += memoryview(data)[at:] if at else data
            incomplete.buffered_bytes += left
            self._open_window(left)

    def _too_long(self, length: int) -> GrpcError | ProxyError:
        most = self._limit.encoded_bytes
        if self._method.name == "SendMessage" and length <= self._service.limits.max_message_size:
            return ProxyError(Code.MESSAGE_BODY_TOO_LARGE, f"a request of {length} bytes: max is {most}")
        return GrpcError(GrpcCode.RESOURCE_EXHAUSTED, f"gRPC message exceeds maximum size {most}: {length}")

    def _open_window(self, buffered: int) -> None:
        """Opens the window for the rest of an incomplete message. Raises ProxyError for an unauthenticated call."""
        if not self._is_authenticated:
            assert self._service.guard is not None
            self._is_authenticated = self._service.guard.is_authenticated(self)
        incomplete = self._service.incomplete_messages
        if incomplete.is_full:
            raise GrpcError(GrpcCode.RESOURCE_EXHAUSTED, "too many incomplete messages: try again later")
        lacking = self._needed - buffered - self._stream.receive_window
        if lacking > 0:
            incomplete.request(self, lacking, monotonic())

    def _forget_buffer(self) -> bytearray:
        buffer = self._buffer
        if buffer:
            self._service.incomplete_messages.buffered_bytes -= len(buffer)
            self._buffer = bytearray()
            self._service.incomplete_messages.done(self, monotonic())
        return buffer

    # -- IncompleteMessages ---------------------------------------------------------------------------------------

    def granted(self, size: int) -> None:
        self._stream.let_in(size)

    def revoked(self) -> None:
        self._give_up(GrpcCode.RESOURCE_EXHAUSTED, "the message is too slow, and other clients wait for its memory")

    def _message(self, data: bytes | bytearray, is_compressed: bool) -> None:
        """Accepts a complete message, which is parsed after its call is authenticated."""
        if is_compressed and self._fields.get(b"grpc-encoding") != b"gzip":
            raise GrpcError(GrpcCode.UNIMPLEMENTED, "unsupported compression: only gzip is supported")
        payload = Payload(data, is_compressed)
        self._reserve(len(data) + PREFIX)
        if self._requests is not None:
            if len(self._requests) >= _MAX_WAITING:
                raise GrpcError(GrpcCode.RESOURCE_EXHAUSTED, "too many messages of this stream wait for the handler")
            self._requests.append(payload)
            self._wake()
            if self._task is None:
                self._task = self._service.loop.create_task(self._serve(None))
        elif self._task is None and self._waiting is None:
            self._waiting = payload
            self._service.queue.add(self._stream.connection, self)
        else:
            raise GrpcError(GrpcCode.INTERNAL, "Too many requests")

    # -- CallQueue ----------------------------------------------------------------------------------------------

    @property
    def weight(self) -> int:
        payload = self._waiting
        if payload is None:
            return ROUND_BYTES
        return max(CALL_BYTES, payload.most_plain_bytes(self._limit.encoded_bytes))

    def start(self) -> bool:
        payload, self._waiting = self._waiting, None
        if self.is_over:
            return False
        if self._queued is not None:
            if not self._queued.done():
                self._queued.set_result(None)
        else:
            self._task = self._service.loop.create_task(self._serve(payload))
        return True

    async def _wait_in_queue(self, payload: Payload | None) -> None:
        """Waits before each request of a stream, and before each further slice of a handler."""
        self._waiting = payload
        self._queued = self._service.loop.create_future()
        self._service.queue.add(self._stream.connection, self)
        await self._queued
        self._queued = None

    async def next_slice(self) -> None:
        # The queue may have capacity left in this iteration of the event loop.
        await asyncio.sleep(0)
        await self._wait_in_queue(None)

    # -- requests -----------------------------------------------------------------------------------------------

    async def _request(self, payload: Payload) -> tuple[Message, int]:
        """Returns a permitted request and the memory that it needs. Raises ProxyError or GrpcError."""
        guard = self._service.guard
        user = await guard.authenticate(self) if guard is not None else None
        if user is not None:
            self.user = user.username
        data = payload.plain(self._limit.encoded_bytes)
        self._recount(len(payload.data) + PREFIX, len(data))
        try:
            memory = await self._memory(data)
            self._recount(len(data), memory)
            # The cast is safe: FromString also accepts a bytearray, without a copy.
            request = self._method.request.FromString(cast(bytes, data))
        except (NotAMessage, DecodeError) as e:
            raise GrpcError(GrpcCode.INTERNAL, "Invalid protobuf byte sequence") from e
        except MessageTooLarge as e:
            raise GrpcError(GrpcCode.RESOURCE_EXHAUSTED, str(e)) from e
        if guard is not None:
            await guard.authorize(self, user, request)
        return request, memory

    async def _memory(self, data: bytes | bytearray) -> int:
        """Returns the memory of an encoded request. Scans it unless it is small and much memory is free."""
        memory = most_memory_of(len(data))
        if len(data) <= _MAX_UNSCANNED and self._service.request_memory.has_plenty(self._stream.connection, memory):
            return memory
        scan = memory_scan(data, shape_of(self._method.request), self._limit)
        while True:
            try:
                next(scan)
            except StopIteration as e:
                return cast(int, e.value)
            await self.next_slice()

    def _recount(self, former: int, memory: int) -> None:
        self._release(former)
        self._reserve(memory)

    def _reserve(self, memory: int) -> None:
        """Reserves memory for a request. Raises ProxyError if the request exceeds the limits."""
        if self.is_over:
            # Memory that is reserved after the end of the call would never be released.
            raise GrpcError(GrpcCode.CANCELLED, "the call has ended")
        if not self._service.request_memory.reserve(self._stream.connection, memory):
            raise ProxyError(Code.TOO_MANY_REQUESTS, "too many requests in flight: try again later")
        self._reserved += memory

    def _half_closed(self) -> None:
        self._is_half_closed = True
        self._wake()
        if self._task is None and self._waiting is None:
            if self._requests is None:
                raise GrpcError(GrpcCode.INTERNAL, "Half-closed without a request")
            self._finish(GrpcCode.OK)

    def _release(self, size: int) -> None:
        if self._reserved:
            self._reserved -= size
            self._service.request_memory.release(self._stream.connection, size)

    def _wake(self) -> None:
        if self._arrived is not None:
            if not self._arrived.done():
                self._arrived.set_result(None)
            self._arrived = None

    def stream_lost(self) -> None:
        """Ends the call, after the client has cancelled it or disconnected."""
        if self.is_over:
            return
        self._cancel_handler()
        self._count(GrpcCode.CANCELLED)
        self._end()

    def server_stops(self) -> None:
        """Ends streams and queued calls, because the client will use another proxy. Other calls continue."""
        if self._requests is not None or self._waiting is not None:
            self._give_up(GrpcCode.UNAVAILABLE, "the proxy stops")

    def _give_up(self, code: GrpcCode, message: str) -> None:
        """Cancels the handler and ends the call with a gRPC status."""
        self._cancel_handler()
        self._finish(code, message)

    def _cancel_handler(self) -> None:
        if self._task is not None:
            self._task.cancel()

    # -- the handler --------------------------------------------------------------------------------------------

    async def _serve(self, payload: Payload | None) -> None:
        """Runs the handler. A call with a single request passes this request to the handler."""
        try:
            if not self.client_id.strip():
                raise ProxyError(Code.CLIENT_ID_REQUIRED, "client id cannot be empty")
            if payload is None:
                await self._handler(self)
            else:
                request, _ = await self._request(payload)
                del payload
                if self._method.server_streams:
                    await self._handler(self, request)
                else:
                    self._respond(await self._handler(self, request))
        except GrpcError as e:
            self._finish(e.code, str(e))
        except Exception as e:
            self._fail(e)
        except asyncio.CancelledError:
            self._finish(GrpcCode.CANCELLED, "the proxy cancelled this call")
            raise
        else:
            self._finish(GrpcCode.OK)

    def _fail(self, error: Exception) -> None:
        """Ends the call with a response that contains the error's status."""
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
        """Records the completed call in metrics and access log."""
        figures, access_log = self._service.figures, self._service.access_log
        if figures is not None or access_log is not None:
            result = Code.Name(self._code) if self._code and code is GrpcCode.OK else code.name
            seconds = monotonic() - self._began
            if figures is not None:
                figures.ended(self._method.name, result, seconds)
            if access_log is not None:
                access_log.ended(self.peer, self.client_id, self._method.name, result, seconds)

    def _end(self) -> None:
        """Releases the memory of the call and runs the `when_over` callbacks."""
        if self.is_over:
            return
        self.is_over = True
        self._waiting = None
        self._forget_buffer()
        self._release(self._reserved)
        if self._kept:
            self._service.unread.remove(self._stream.connection, self._kept)
        callbacks, self._over = self._over, []
        for callback in callbacks:
            callback()


def _trailers(code: GrpcCode, message: str) -> bytes:
    text = quote(message[:1000], safe=" !\"#$&'()*+,/:;<=>?@[\\]^`{|}").encode()
    return literal(b"grpc-status", b"%d" % code) + literal(b"grpc-message", text)
