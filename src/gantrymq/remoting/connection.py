"""One connection, on either side: reads commands, calls handlers and matches responses to requests.

The request path creates no task and no future. A handler is a plain function that is called while the bytes of one read
are parsed. The responses to all frames of a read are written together, so 32 requests in one read need only one write.
A handler that cannot respond at once returns None and calls `Connection.reply` later (long poll, group commit). A
handler that must await something uses `respond_with`.

A connection has one of four states and passes through them in this order:

    state    `_transport`  `_closing`  `_lost`  meaning
    new      None          False       pending  before `connection_made`
    open     set           False       pending  requests are handled and sent
    closing  set           True        pending  after `close` or `abort`: the write buffer is sent, input is dropped,
                                                responses and new requests are refused
    lost     None          True        done     all pending requests have failed

`flow_control.py` decides when an open connection is read.

`_batch` is a list during a read and collects responses. Between reads it is None, and responses are written at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from math import inf
from typing import Any, Protocol, cast

from gantrymq.errors import ConnectionLost, ProtocolError, RequestTimeout
from gantrymq.limits import RESPONSE_TASKS
from gantrymq.logs import peer_log
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import ONEWAY_FLAG, RESPONSE_FLAG, RemotingCommand
from gantrymq.protocol.frame_reader import FrameReader, NewReceiveBuffer
from gantrymq.protocol.unsupported_features import feature_of_request
from gantrymq.remoting.address import format_address
from gantrymq.remoting.connection_limits import ConnectionLimits
from gantrymq.remoting.flow_control import ANSWERS_HIGH_WATER, ONEWAY_LIMIT, WRITE_HIGH_WATER, FlowControl, Rest
from gantrymq.remoting.loop_watch import SLOW_REQUEST_S
from gantrymq.remoting.pending_requests import PendingRequests, Waiting
from gantrymq.remoting.quota import Quota
from gantrymq.remoting.response_tasks import ResponseTasks
from gantrymq.remoting.responses import LARGE_BODY, error_response, reply_buffers
from gantrymq.remoting.rpc_latency import NOT_WRITTEN, ONEWAY, SUCCESS
from gantrymq.remoting.time_slices import CHEAP_SHARE, MOST_S, SHORT_SLICE_S, SLICE_DECAY, SLICE_S, TimeSlices
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: Parts of one or more encoded frames. A memoryview is sent without a copy.
Buffers = Sequence[bytes | memoryview]
#: A handler's result: a command or encoded frames. None if `Connection.reply` follows or the request is one-way.
Reply = RemotingCommand | Buffers | None
RequestHandler = Callable[["Connection", RemotingCommand], Reply]
#: Handles requests or responses before they are decoded. Gets the bytes of a read, which start with a frame. Returns
#: the number of bytes in the handled frames, and the responses that are ready.
FirstLook = Callable[["Connection", bytes], tuple[int, bytes]]

#: Responses of one read are written when they reach this size, in bytes. If the write buffer is then full, the other
#: requests of the read wait. A peer's buffer is thus at most ANSWERS_HIGH_WATER, this size and one response.
BATCH_LIMIT = 1024 * 1024
#: If more bytes of a read are left, the first look does not run again (`Connection.look_again`): each run copies them.
_LOOK_AGAIN_BYTES = 32 * 1024
#: Time in which a closing connection may send its write buffer, in seconds.
CLOSE_TIMEOUT_S = 2.0
#: Responses up to this size are joined into one buffer, which is cheaper than many small buffers. In bytes.
JOIN_LIMIT = 16 * 1024
#: Requests of one event-loop iteration are written together, in chunks of about this size, in bytes. With 32 concurrent
#: sends, a send then takes 16 us of CPU time instead of 22. With 64 KiB, the peer waits longer, with no gain in CPU
#: time.
GATHER_LIMIT = 2048


class RpcHook(Protocol):
    """Called for each request and response of a connection (`RPCHook`): to sign, check or trace them.

    Unlike middleware, hooks also get heartbeats, pulls and acknowledgements. A custom access control needs hooks to
    sign every request.

    Responses that a handler returns as encoded frames are not passed to hooks.
    """

    def before_request(self, address: str, request: RemotingCommand) -> None:
        """Called before a request is sent or handled. A client may change it; a server may raise GantryError."""

    def after_response(self, address: str, request: RemotingCommand, response: RemotingCommand) -> None:
        """Called with the response to `request`."""


class Connection(FlowControl):
    """A connected peer at `address` (HOST:PORT).

    All connections of a server, or of a client, share `limits`. Other layers may store values in `attributes`.
    """

    def __init__(
        self,
        handlers: Mapping[int, RequestHandler],
        *,
        hooks: Sequence[RpcHook] = (),
        is_server: bool = False,
        limits: ConnectionLimits | None = None,
        new_buffer: NewReceiveBuffer | None = None,
        first_look: FirstLook | None = None,
        on_open: Callable[[Connection], None] | None = None,
        on_close: Callable[[Connection], None] | None = None,
    ) -> None:
        limits = limits if limits is not None else ConnectionLimits(TimeSlices())
        super().__init__(limits.slices, is_server=is_server, unread=limits.unread)
        self.attributes: dict[Any, Any] = {}
        self._handlers = handlers
        self._hooks = hooks
        #: The current command, if it follows requests that the first look has handled. Otherwise None.
        self.looked_at: RemotingCommand | None = None
        #: See `look_again`.
        self._looks_again = False
        #: Start of the current command, in seconds of the monotonic clock. The time includes a first look that handled
        #: no request. Valid only until the handler returns or awaits.
        self.command_began = 0.0
        # With hooks there is no first look, because requests that it handles would bypass the hooks.
        self._first_look = first_look if not hooks else None
        #: None unless the server measures latencies.
        self.latencies = limits.slices.watch.latencies
        #: The `received_at` of the last request whose handler has ended.
        self._handled_at = 0.0
        self._frames = limits.frames
        #: Length of the incomplete frame that was reported to `frames`, in bytes. 0 if there is none.
        self._frame_length = 0
        self._on_open = on_open
        self._on_close = on_close
        self._reader = FrameReader(new_buffer=new_buffer)
        self._pending = PendingRequests(self._loop)
        #: Time of the first request without a response, or of the last read after it. inf if no request is pending.
        self._unanswered_since = inf
        self._next_opaque = 0
        #: Encoded requests and late responses of this event-loop iteration that are not written yet.
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._response_quota = limits.response_tasks
        #: Created on first use.
        self._response_tasks: ResponseTasks[Reply] | None = None
        self._lost: asyncio.Future[None] = self._loop.create_future()
        #: Responses of the current read. None between reads, when responses are written at once.
        self._batch: list[bytes | memoryview] | None = None
        self._batch_bytes = 0

    # -- asyncio.Protocol ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=ANSWERS_HIGH_WATER if self._is_server else WRITE_HIGH_WATER)
        peer = transport.get_extra_info("peername")
        self.address = format_address(peer[0], peer[1]) if peer else "?"
        self._opened = self.last_read = monotonic()
        if self._is_server:
            self._slices.connected(self)
            if self._slices.is_full:
                self.read_or_stop()
        if self._on_open:
            self._on_open(self)

    def data_received(self, data: bytes) -> None:
        commands = self._reader.feed(data) if self._first_look is None else self._left_of(data, self._first_look)
        self.read_bytes = len(data)
        if self._slices.is_used_up and (self._reader.ends_large(len(data)) or not self._is_known_as_cheap()):
            self._rest = commands
            self._wait_for_slice()
            self.read_or_stop()
        else:
            self._receive(commands)

    def _left_of(self, data: bytes, first_look: FirstLook) -> Iterator[RemotingCommand]:
        """Yields the commands that the first look did not handle.

        The first look runs with the first command, so that its time counts in the connection's time slice.
        """
        reader = self._reader
        data = reader.joined(data)
        looks = not reader.frame_length
        while data and looks and not self._closing and self._batch is not None:
            dealt, answers = first_look(self, data)
            if answers:
                self._batch.append(answers)
                self._batch_bytes += len(answers)
            if dealt:
                data = data[dealt:]
                if not data:
                    return
            # The frames behind the next command, if they may be looked at again. Their copy is small.
            end = 4 + int.from_bytes(data[:4])
            behind = data[end:] if end < len(data) <= _LOOK_AGAIN_BYTES else b""
            self._looks_again = False
            commands = reader.feed(data[:end] if behind else data)
            self.looked_at = next(commands, None)
            if self.looked_at is not None:
                if dealt:
                    self.command_began = monotonic()
                yield self.looked_at
                self.looked_at = None
            yield from commands
            data, looks = behind, self._looks_again
        if data:
            yield from reader.feed(data)

    def look_again(self) -> None:
        """Lets the first look handle the frames after the current command, which it can handle from then on."""
        self._looks_again = True

    def receive_buffer(self) -> memoryview | None:
        """Returns the buffer for the next bytes, as an alternative to `data_received`. See `FrameReader`."""
        return self._reader.receive_buffer()

    def buffer_filled(self, count: int) -> None:
        """Handles `count` bytes that were written to the buffer of `receive_buffer`."""
        self.read_bytes = count
        self._receive(self._reader.filled(count))

    def _receive(self, commands: Iterator[RemotingCommand]) -> None:
        self._batch = []
        slices = self._slices
        # The loop's time would not advance during an iteration in uvloop.
        self.command_began = began = monotonic()
        recent_s = self._recent_s - (began - self.last_read) * CHEAP_SHARE
        self.last_read = began
        self._unanswered_since = inf
        slice_ends = began + slices.slice_s
        if began > slices.cpu_clock_until:
            slices.read_cpu_clock(began)
        try:
            for command in commands:
                if self._closing:
                    break
                if command.flag & RESPONSE_FLAG:
                    if self._pending.answer(command):
                        continue
                    log.debug("response %d of %s answers nothing, or came too late", command.opaque, self.address)
                else:
                    self._request_received(command)
                now = monotonic()
                if now > slice_ends:
                    took = now - self.command_began
                    if took > SLOW_REQUEST_S:
                        slices.watch.slow_request(command.code, self.address, took, len(command.body))
                    # If no command is left, the connection needs no further time slice.
                    following = next(commands, None)
                    if following is not None:
                        self._rest = Rest(following, commands)
                    break
                self.command_began = now
                if self._batch_bytes > BATCH_LIMIT:
                    self._flush()
                    if self._is_server and self._writable is not None:
                        self._rest = commands
                        break
                    self._batch = []
        except ProtocolError as e:
            log.warning("closing the connection with %s: %s", self.address, e)
            self.close()
        finally:
            self._flush()
            took = monotonic() - began
            slices.used = used = slices.used + took
            if used > SLICE_S:
                slices.used_much()
            # `took` includes the time of other processes, which can be long.
            cpu_s = took if took <= SHORT_SLICE_S else slices.cpu_time(took)
            recent_s = cpu_s + recent_s if recent_s > 0.0 else cpu_s
            self._recent_s = recent_s if recent_s < MOST_S else MOST_S
            if self._rest is not None and cpu_s < SLICE_S:
                cpu_s = SLICE_S
            longest_s = self._longest_slice_s * SLICE_DECAY
            self._longest_slice_s = cpu_s if cpu_s > longest_s else longest_s
            if self._pending:
                self._unanswered_since = began
        if self._rest is not None:
            self._wait_for_slice()
            self.read_or_stop()
        elif self._frames is not None and (self._reader.frame_length or self._frame_length):
            reader = self._reader
            self._frame_length = reader.frame_length
            self._frames.received(self, reader.frame_number, reader.frame_length, reader.buffered_bytes)

    def _flush(self) -> None:
        batch, self._batch = self._batch, None
        size, self._batch_bytes = self._batch_bytes, 0
        if batch and self._transport is not None:
            if len(batch) == 1:
                self._transport.write(batch[0])
            elif size <= JOIN_LIMIT:
                self._transport.write(b"".join(batch))
            else:
                self._transport.writelines(batch)
            if not self._is_server:
                self._refuse_flood()

    def connection_lost(self, exc: Exception | None) -> None:
        message = f"the connection with {self.address} was closed before the answer" + (f": {exc}" if exc else "")
        if self._never_heard():
            message += (
                ". Nothing ever came over its TLS: does the server want a client certificate (tls.client.certPath)?"
                if self._transport is not None and self._transport.get_extra_info("sslcontext") is not None
                else ". Nothing ever came over it: does the server take TLS only (tls.enable=true, --tls-config), or "
                "is it something else?"
            )
        self._transport = None
        self._closing = True
        self._slices.connection_lost(self)
        self._wake_writers()
        self._pending.connection_lost(message)
        self._rest = None
        self._reader.clear()
        if self._frames is not None:
            self._frames.forget(self)
        self._gathered.clear()
        if self._response_tasks is not None:
            self._response_tasks.cancel()
        self._lost.set_result(None)
        if self._on_close:
            self._on_close(self)

    def _never_heard(self) -> bool:
        # In TLS 1.3, the client's handshake ends before the server checks the client's certificate.
        return not self._is_server and not self._closing and self.last_read == self._opened

    # -- requests of the peer -----------------------------------------------------------------------------------

    def _request_received(self, request: RemotingCommand) -> None:
        if self.latencies is not None:
            request.received_at = self.command_began
        try:
            for hook in self._hooks:
                hook.before_request(self.address, request)
            handler = self._handlers.get(request.code)
            if handler is None:
                log.info("request code %d of %s is not supported", request.code, self.address)
                reply: Reply = _not_supported(request.code)
            else:
                reply = handler(self, request)
        except Exception as e:
            reply = error_response(e, request, self.address)
        if reply is not None:
            self.reply(request, reply)
        if self.latencies is not None:
            self._handled_at = request.received_at

    def reply(self, request: RemotingCommand, reply: RemotingCommand | Buffers) -> None:
        """Sends the response to `request`, in its header encoding. Ignores one-way requests and closed connections."""
        if request.flag & ONEWAY_FLAG or self._closing or self._transport is None:
            if self.latencies is not None:
                code = reply.code if isinstance(reply, RemotingCommand) else ResponseCode.SUCCESS
                self._answered(request, code, ONEWAY if request.flag & ONEWAY_FLAG else NOT_WRITTEN)
            return
        if self.latencies is not None:
            # Encoded responses are successful: those of sends and of pulls with messages.
            self._answered(request, reply.code if isinstance(reply, RemotingCommand) else ResponseCode.SUCCESS)
        if isinstance(reply, RemotingCommand):
            try:
                for hook in self._hooks:
                    hook.after_response(self.address, request, reply)
                reply = reply_buffers(request, reply)
            except Exception as e:
                reply = reply_buffers(request, error_response(e, request, self.address))
        if self._batch is not None:
            self._batch += reply
            # A pull response can have a buffer per message. For 32 buffers, `map` takes 0.6 us, a comprehension 1.4 us.
            self._batch_bytes += len(reply[0]) if len(reply) == 1 else sum(map(len, reply))
        elif not self._refuse_flood():
            self._transport.writelines(reply)

    def _answered(self, request: RemotingCommand, code: int, result: str = SUCCESS) -> None:
        """Measures the latency of a request."""
        if self.latencies is not None and request.received_at:
            is_late = request.received_at <= self._handled_at
            seconds = monotonic() - request.received_at
            self.latencies.observe(request.code, code, seconds, is_late=is_late, result=result)

    def gather_answer(self, request: RemotingCommand, answer: bytes) -> None:
        """Works like `gather_answers`, for the encoded successful response to `request`."""
        self._answered(request, ResponseCode.SUCCESS)
        self.gather_answers(answer)

    def gather_answers(self, answers: bytes) -> None:
        """Writes encoded responses together with others of this event-loop iteration. Writes nothing after `close`."""
        if self._closing or self._transport is None:
            return
        if self._batch is not None:
            self._batch.append(answers)
            self._batch_bytes += len(answers)
        elif not self._refuse_flood():
            self._gather(answers, JOIN_LIMIT)

    def respond_with(self, request: RemotingCommand, work: Coroutine[Any, Any, Reply]) -> None:
        """Runs `work` in a task and sends its result as the response to `request`. For rare requests only.

        If the connection is lost, `work` is cancelled, so it must shield steps that cannot stop halfway. If too many
        tasks are running, `work` is not started and the response is SYSTEM_BUSY.
        """
        if self._closing:
            work.close()
            return
        if self._response_tasks is None:
            quota = self._response_quota if self._response_quota is not None else Quota(RESPONSE_TASKS)
            self._response_tasks = ResponseTasks(self._work_done, quota.share(self))
        if not self._response_tasks.begin(request, work):
            work.close()
            busy = "[OVERLOAD]system busy, start flow control for a while: too many requests wait for their answers"
            self.reply(request, RemotingCommand.response(ResponseCode.SYSTEM_BUSY, busy))

    def _work_done(self, request: RemotingCommand, result: Reply | BaseException) -> None:
        if isinstance(result, asyncio.CancelledError):
            result = RemotingCommand.response(ResponseCode.SYSTEM_ERROR, "the request was cancelled")
        elif isinstance(result, Exception):
            result = error_response(result, request, self.address)
        if result is not None and not isinstance(result, BaseException):
            self.reply(request, result)

    # -- requests to the peer -----------------------------------------------------------------------------------

    async def invoke(self, request: RemotingCommand, timeout_ms: int = 3000) -> RemotingCommand:
        """Sends `request` and returns its response. First waits until the write buffer has space.

        Raises ConnectionLost, or RequestTimeout if both waits together exceed `timeout_ms`.
        """
        if self._writable is not None:
            timeout_ms = await self.wait_until_writable(timeout_ms)
        future = self.start_request(request, timeout_ms)
        try:
            response = await future
        except asyncio.CancelledError:
            self.forget(request)
            raise
        for hook in self._hooks:
            hook.after_response(self.address, request, response)
        return response

    def start_request(self, request: RemotingCommand, timeout_ms: int) -> asyncio.Future[RemotingCommand]:
        """Sends `request` now and returns a future for its response. Raises ConnectionLost.

        The future fails with ConnectionLost or RequestTimeout.
        """
        self._send(request)
        if self._unanswered_since == inf:
            self._unanswered_since = monotonic()
        return self._pending.add(request.opaque, self.address, timeout_ms)

    def pass_request(self, request: RemotingCommand, timeout_ms: int, waiting: Waiting) -> None:
        """Like `start_request`, but sets the result on `waiting` at once, before the next command is read."""
        self._send(request)
        if self._unanswered_since == inf:
            self._unanswered_since = monotonic()
        self._pending.add_waiting(request.opaque, self.address, timeout_ms, waiting)

    def next_opaque(self) -> int:
        """Returns the opaque number for the next request. Only `send_frame` needs it from its caller."""
        self._next_opaque = opaque = (self._next_opaque + 1) & 0x7FFFFFFF
        return opaque

    def send_frame(self, frame: bytes, opaque: int, timeout_ms: int, waiting: Waiting) -> None:
        """Works like `pass_request` for an encoded request. The connection must be writable and have no hooks."""
        # The steps of `_gather`. A call costs 0.1 us.
        gathered = self._gathered
        if not gathered:
            self._loop.call_soon(self._write_gathered)
        gathered.append(frame)
        self._gathered_bytes += len(frame)
        if self._gathered_bytes >= GATHER_LIMIT:
            self._write_gathered()
        if self._unanswered_since == inf:
            self._unanswered_since = monotonic()
        self._pending.add_waiting(opaque, self.address, timeout_ms, waiting)

    @property
    def pending(self) -> PendingRequests:
        """The requests that wait for their responses."""
        return self._pending

    def forget(self, request: RemotingCommand) -> None:
        """Removes the pending `request`, whose response will be ignored."""
        self._pending.discard(request.opaque)

    async def invoke_oneway(self, request: RemotingCommand, timeout_ms: int = 3000) -> None:
        """Sends a one-way `request`. First waits until the write buffer has space.

        Raises ConnectionLost, or RequestTimeout if the write buffer stays full.
        """
        if self._writable is not None:
            await self.wait_until_writable(timeout_ms)
        self.send_oneway(request)

    def send_oneway(self, request: RemotingCommand) -> None:
        """Sends a one-way request without waiting. Raises RequestTimeout if more than ONEWAY_LIMIT bytes are unsent."""
        if self._writable is not None and self._transport is not None:
            waiting = self.unwritten_bytes
            if waiting > ONEWAY_LIMIT:
                raise RequestTimeout(f"{self.address} doesn't take the {waiting} bytes that were sent", self.address)
        request.flag |= ONEWAY_FLAG
        self._send(request)

    def _send(self, request: RemotingCommand) -> None:
        if self._transport is None or self.is_closed:
            raise ConnectionLost(f"the connection with {self.address} is closed", self.address)
        request.opaque = self.next_opaque()
        for hook in self._hooks:
            hook.before_request(self.address, request)
        if len(request.body) > LARGE_BODY:
            self._write_gathered()
            self._transport.writelines((request.encode_head(len(request.body)), request.body))
            return
        self._gather(request.encode(), GATHER_LIMIT)

    def _gather(self, frames: bytes, limit: int) -> None:
        if not self._gathered:
            self._loop.call_soon(self._write_gathered)
        self._gathered.append(frames)
        self._gathered_bytes += len(frames)
        if self._gathered_bytes >= limit:
            self._write_gathered()

    def _write_gathered(self) -> None:
        if self._gathered and self._transport is not None:
            self._transport.write(b"".join(self._gathered))
            self._gathered.clear()
            self._gathered_bytes = 0

    # -- life ---------------------------------------------------------------------------------------------------

    @property
    def local_host(self) -> str:
        """The IP address of this machine that the connection uses."""
        name = self._transport.get_extra_info("sockname") if self._transport is not None else None
        return str(name[0]) if name else "?"

    @property
    def peer(self) -> tuple[str, int]:
        """The IP address and port of the other side. Raises OSError if the connection is lost."""
        # Other threads read this while the event loop closes the connection.
        transport = self._transport
        name = transport.get_extra_info("peername") if transport is not None else None
        if not name:
            raise ConnectionResetError(f"the connection to {self.address} is lost")
        return str(name[0]), int(name[1])

    @property
    def awaits_answers(self) -> bool:
        """True if requests are pending."""
        return len(self._pending) > 0

    @property
    def silent_s(self) -> float:
        """Seconds since the last input while responses are pending, including responses to requests that timed out."""
        if self._rest is not None or self.is_stopped or self._unanswered_since == inf:
            return 0.0
        return monotonic() - self._unanswered_since

    @property
    def is_writable(self) -> bool:
        """True if a request can be written now: the connection is open, and its write buffer is not full."""
        # Written out, because each send needs it.
        transport = self._transport
        return self._writable is None and not (self._closing or transport is None or transport.is_closing())

    @property
    def is_closed(self) -> bool:
        return self._closing or self._transport is None or self._transport.is_closing()

    def close(self) -> None:
        """Closes the connection after the write buffer is sent. See `close_all` if the peer may not read."""
        self._flush()
        self._write_gathered()
        self._closing = True
        if self._transport is not None:
            self._transport.close()


async def close_all(connections: Collection[Connection], timeout_s: float = CLOSE_TIMEOUT_S) -> None:
    """Closes `connections` and waits until they are closed. After `timeout_s` seconds, aborts those still open."""
    lost = [connection._lost for connection in connections if connection._transport is not None]
    for connection in connections:
        connection.close()
    if not lost:
        return
    _, late = await asyncio.wait(lost, timeout=timeout_s)
    if late:
        for connection in connections:
            connection.abort()
        await asyncio.wait(late)


def _not_supported(code: int) -> RemotingCommand:
    feature = feature_of_request(code)
    remark = f" request type {code} not supported" + ("" if feature is None else f": {feature.text}")
    return RemotingCommand.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
