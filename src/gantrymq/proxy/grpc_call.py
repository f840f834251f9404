"""GrpcCall: one rpc on a stream of HTTP/2 (gRPC over HTTP/2), from its first field to its trailers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Protocol
from urllib.parse import quote

from google.protobuf.message import DecodeError, Message

from gantrymq.auth.users import User
from gantrymq.logs import peer_log
from gantrymq.proxy.access_log import AccessLog
from gantrymq.proxy.call import CLIENT_ID, DEFAULT_TIMEOUT_MS, METHODS, Call, EncodedResponse, Handlers, Method
from gantrymq.proxy.call_queue import CALL_BYTES, CallQueue
from gantrymq.proxy.http2.hpack import literal
from gantrymq.proxy.http2.request_fields import Fields
from gantrymq.proxy.http2.stream import Http2Stream, Receiver
from gantrymq.proxy.http2.untaken import UntakenBytes
from gantrymq.proxy.in_hand import RequestsInHand
from gantrymq.proxy.message_limits import MessageLimits
from gantrymq.proxy.message_size import (
    MessageTooLarge,
    NotAMessage,
    memory_of,
    most_memory_of,
    shape_of,
)
from gantrymq.proxy.metrics import CallFigures
from gantrymq.proxy.not_grpc import NotGrpc
from gantrymq.proxy.payload import PREFIX, Payload
from gantrymq.proxy.statuses import GrpcCode, GrpcError, ProxyError, status_of
from gantrymq.proxy.unfinished import UnfinishedMessages
from gantrymq.proxy.v2.definition_pb2 import Code
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: ":status 200" and the content type.
_HEADERS = b"\x88" + literal(b"content-type", b"application/grpc")
_OK = literal(b"grpc-status", b"0")

#: A stream's messages that its handler hasn't taken.
_MOST_WAITING = 1000
#: A message that is no longer than this isn't scanned while there is plenty of memory: the scan costs 5 us.
_MOST_UNSCANNED = 2048
#: What is kept of a stream both ways for a client that opens no window.
_MOST_UNTAKEN_BYTES = 1024 * 1024
_UNIT_MS = {"H": 3_600_000.0, "M": 60_000.0, "S": 1000.0, "m": 1.0, "u": 0.001, "n": 0.000001}


class Guard(Protocol):
    """Access control. All of it raises ProxyError for a call that is refused."""

    async def authenticate(self, call: Call) -> User | None:
        """The user who makes the call, by its metadata; None if it needs no user."""

    def is_authenticated(self, call: Call) -> bool:
        """As `authenticate`, without waiting: False while the user is unknown."""

    async def authorize(self, call: Call, user: User | None, request: Message) -> None:
        """Returns if the user may make this request."""


class Service:
    """What all calls have in common: the handlers, the limits, access control.

    `guard` authenticates every call before its message is built, and authorizes every request before its handler runs.
    `figures` and `access_log` receive every call that has ended.
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
        self.unfinished = UnfinishedMessages()
        self.in_hand = RequestsInHand()
        self.untaken = UntakenBytes()
        self.loop = asyncio.get_running_loop()
        self.queue = CallQueue(self.loop)

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
        "_is_authenticated",
        "_is_half_closed",
        "_kept",
        "_limit",
        "_method",
        "_needed",
        "_over",
        "_requests",
        "_service",
        "_stream",
        "_task",
        "_turn",
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
        #: What came of a message that isn't whole, and how much it must be to be.
        self._buffer = bytearray()
        self._needed = PREFIX
        self._task: asyncio.Task[None] | None = None
        #: The request of a call that waits in the queue; of a stream, the future of its handler that does.
        self._waiting: Payload | None = None
        self._turn: asyncio.Future[None] | None = None
        #: The response has begun.
        self._has_begun = False
        self._is_half_closed = False
        #: Only looked at while a message is being received; `_serve` authenticates every call.
        self._is_authenticated = service.guard is None
        #: Messages of a client's stream that the handler hasn't taken, and the future of a handler that waits for one.
        self._requests: deque[Payload] | None = deque() if method.client_streams else None
        self._arrived: asyncio.Future[None] | None = None
        self._over: list[Callable[[], None]] = []
        self.is_over = False
        #: The memory of requests that the handler has, or is to have; of what it has for its client.
        self._in_hand = self._kept = 0
        #: The response's, 0 as long as there is none.
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
                await self._wait_for_turn(self._requests[0])
                request, memory = await self._request(self._requests.popleft())
                try:
                    yield request
                finally:
                    self._put_down(memory)
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
        while len(data) >= PREFIX:
            length = int.from_bytes(data[1:PREFIX], "big")
            if length > self._limit.encoded_bytes:
                raise self._too_long(length)
            self._needed = PREFIX + length
            if len(data) < self._needed:
                break
            self._message(data[0], data[PREFIX : self._needed])
            data = data[self._needed :]
            self._needed = PREFIX
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
        most = self._limit.encoded_bytes
        if self._method.name == "SendMessage" and length <= self._service.limits.max_message_size:
            return ProxyError(Code.MESSAGE_BODY_TOO_LARGE, f"a request of {length} bytes: max is {most}")
        return GrpcError(GrpcCode.RESOURCE_EXHAUSTED, f"gRPC message exceeds maximum size {most}: {length}")

    def _make_room(self, held: int) -> None:
        """Opens the window for the rest of an incomplete message. Raises ProxyError for one of a stranger."""
        if not self._is_authenticated:
            assert self._service.guard is not None
            self._is_authenticated = self._service.guard.is_authenticated(self)
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

    def room_given(self, size: int) -> None:
        self._stream.let_in(size)

    def room_taken(self) -> None:
        self._finish(GrpcCode.RESOURCE_EXHAUSTED, "the message comes too slowly, and others wait for its room")

    def _message(self, compressed: int, data: bytes) -> None:
        """A whole message. It is built when its call is authenticated."""
        if compressed and self._fields.get(b"grpc-encoding") != b"gzip":
            raise GrpcError(GrpcCode.UNIMPLEMENTED, "a compression that isn't known: only gzip is")
        payload = Payload(data, bool(compressed))
        self._take(len(data) + PREFIX)
        if self._requests is not None:
            if len(self._requests) >= _MOST_WAITING:
                raise GrpcError(GrpcCode.RESOURCE_EXHAUSTED, "too many messages of this stream wait")
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
        return CALL_BYTES if payload is None else max(CALL_BYTES, payload.most_plain_bytes(self._limit.encoded_bytes))

    def start(self) -> bool:
        payload, self._waiting = self._waiting, None
        if self.is_over:
            return False
        if self._turn is not None:
            if not self._turn.done():
                self._turn.set_result(None)
        else:
            self._task = self._service.loop.create_task(self._serve(payload))
        return True

    async def _wait_for_turn(self, payload: Payload) -> None:
        """Of a stream each request waits for its turn."""
        self._waiting = payload
        self._turn = self._service.loop.create_future()
        self._service.queue.add(self._stream.connection, self)
        await self._turn
        self._turn = None

    # -- requests -----------------------------------------------------------------------------------------------

    async def _request(self, payload: Payload) -> tuple[Message, int]:
        """A request that its client may make, and the memory that it takes, which is counted in place of the payload's.

        Raises ProxyError or GrpcError.
        """
        guard = self._service.guard
        user = await guard.authenticate(self) if guard is not None else None
        if user is not None:
            self.user = user.username
        self._put_down(len(payload.data) + PREFIX)
        request, memory = self._built(payload)
        if guard is not None:
            await guard.authorize(self, user, request)
        return request, memory

    def _built(self, payload: Payload) -> tuple[Message, int]:
        limit = self._limit
        data = payload.plain(limit.encoded_bytes)
        memory = most_memory_of(len(data))
        try:
            if len(data) > _MOST_UNSCANNED or not self._service.in_hand.has_plenty(self._stream.connection, memory):
                memory = memory_of(data, shape_of(self._method.request), limit)
            self._take(memory)
            return self._method.request.FromString(data), memory
        except (NotAMessage, DecodeError) as e:
            raise GrpcError(GrpcCode.INTERNAL, "Invalid protobuf byte sequence") from e
        except MessageTooLarge as e:
            raise GrpcError(GrpcCode.RESOURCE_EXHAUSTED, str(e)) from e

    def _take(self, memory: int) -> None:
        """Counts memory of a request. Raises ProxyError if there is too little for all clients."""
        if self.is_over:
            # Nobody would count it back.
            raise GrpcError(GrpcCode.CANCELLED, "the call has ended")
        if not self._service.in_hand.take(self._stream.connection, memory):
            raise ProxyError(Code.TOO_MANY_REQUESTS, "too much of what clients ask is under way: try again later")
        self._in_hand += memory

    def _half_closed(self) -> None:
        self._is_half_closed = True
        self._wake()
        if self._task is None and self._waiting is None:
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
        """Ends streams and calls that wait in the queue: the client finds another proxy. Other calls may end."""
        if self._requests is not None or self._waiting is not None:
            self._give_up(GrpcCode.UNAVAILABLE, "the proxy stops")

    def _give_up(self, code: GrpcCode, message: str) -> None:
        if self._task is not None:
            self._task.cancel()
        self._finish(code, message)

    # -- the handler --------------------------------------------------------------------------------------------

    async def _serve(self, payload: Payload | None) -> None:
        """Runs the handler, with the request of a call that has only one."""
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
        self._waiting = None
        self._forget_buffer()
        self._put_down(self._in_hand)
        if self._kept:
            self._service.untaken.taken(self._stream.connection, self._kept)
        callbacks, self._over = self._over, []
        for callback in callbacks:
            callback()


def _trailers(code: GrpcCode, message: str) -> bytes:
    text = quote(message[:1000], safe=" !\"#$&'()*+,/:;<=>?@[\\]^`{|}").encode()
    return literal(b"grpc-status", b"%d" % code) + literal(b"grpc-message", text)
