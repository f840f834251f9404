"""One connection, from either side: reads commands, calls handlers, pairs responses with requests.

The request path makes no task and no future: a handler is a plain function, called while the bytes of one read are
being parsed. What it returns is collected and written in one call after the read's last frame, so that 32 requests that
arrived together are answered with one system call. A handler that can't answer at once returns None and calls
`Connection.reply` later (a long poll, a group commit); one that must await something uses `respond_with`.

A connection is in one of four states, and goes through them downwards:

    state    `_transport`  `_closing`  `_lost`  what happens
    new      None          False       pending  nothing, until `connection_made`
    open     set           False       pending  requests are handled and made
    closing  set           True        pending  after `close` or `abort`: what is in the write buffer is sent, what
                                                arrives is dropped, answers and new requests are refused
    lost     None          True        done     all who waited have been told

While it is open it is read, unless something speaks against it; `read_or_stop` alone decides. Each of these can be
true beside the others:

    `_writable` is a future   the write buffer is full (server only)           ends with `resume_writing`
    `_rest` is an iterator    requests of the last read are still to be        ends with `go_on`, which waits for room
                              handled                                          and for a turn of its own (`turns.py`)
    `_turns.is_full`          reads that wait hold too much, and it isn't    ends when half of that was handled
                              known to ask for little (server only)
    `is_stopped`              its unfinished frame has no room (server only)   ends with `go_on_reading`

`_batch` is a list during a read, when answers gather, and None between reads, when they are written at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Protocol, cast

from gantrymq.errors import ConnectionLost, ProtocolError, RequestTimeout
from gantrymq.logs import peer_log
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import ONEWAY_FLAG, RESPONSE_FLAG, RemotingCommand
from gantrymq.protocol.frame_reader import FrameReader
from gantrymq.remoting.address import format_address
from gantrymq.remoting.answers import encode_reply, error_response
from gantrymq.remoting.loop_watch import SLOW_REQUEST_S
from gantrymq.remoting.open_answers import OpenAnswers, new_rooms_for_answers
from gantrymq.remoting.pending_requests import PendingRequests
from gantrymq.remoting.room import Rooms
from gantrymq.remoting.turns import CHEAP_S, CHEAP_SHARE, KNOWN_S, MOST_S, TURN_S, Turns
from gantrymq.remoting.unfinished_frames import UnfinishedFrames
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: Pieces of one or more encoded frames; memoryviews go to the socket without a copy.
Buffers = Sequence[bytes | memoryview]
#: A handler's answer: a command, encoded frames, or None when `Connection.reply` follows (or nothing does, one-way).
Reply = RemotingCommand | Buffers | None
RequestHandler = Callable[["Connection", RemotingCommand], Reply]

#: Unwritten bytes at which a client's writers wait until the peer has taken three quarters of them.
WRITE_HIGH_WATER = 8 * 1024 * 1024
#: The same of a server, which stops reading then. Little more than the kernel's own buffer: hundreds of peers may read
#: nothing, and what they gain by a larger one is nothing either.
ANSWERS_HIGH_WATER = 1024 * 1024
#: Answers of one read are written when they have so many bytes; if that fills the write buffer, the read's other
#: requests wait until there is room. So ANSWERS_HIGH_WATER, this and one answer is all that gathers for one peer.
BATCH_LIMIT = 1024 * 1024
#: To a peer that leaves so much in the write buffer nothing more is sent without an answer: nobody would wait for room.
ONEWAY_LIMIT = 2 * WRITE_HIGH_WATER
#: A server's answers that don't come from reading (tasks, what waited) go on until a peer has left so much there.
UNTAKEN_LIMIT = 8 * WRITE_HIGH_WATER
#: How long a closing connection may take to send what it has to, in seconds.
CLOSE_TIMEOUT_S = 2.0
#: Up to so many bytes of answers are copied into one buffer: cheaper than to hand the kernel many small ones.
JOIN_LIMIT = 16 * 1024
#: Requests of one turn of the loop are written together, in pieces of about so many bytes. With 32 senders at a time
#: a send takes 16 us of processor time, not 22; with 64 KiB it takes no less, and the peer waits for the whole turn.
GATHER_LIMIT = 2048
#: Larger bodies are handed to the kernel apart, without a copy into the frame.
LARGE_BODY = 64 * 1024


class RpcHook(Protocol):
    """Sees the commands of a connection on their way (`RPCHook`): signing, checking, tracing.

    An answer that a handler gives as encoded frames passes by.
    """

    def before_request(self, address: str, request: RemotingCommand) -> None:
        """May change `request` (client) or raise a GantryError to refuse it (server)."""

    def after_response(self, address: str, request: RemotingCommand, response: RemotingCommand) -> None:
        """Called with the answer."""


class Connection(asyncio.Protocol):
    """A connected peer at `address` (host:port). `attributes` is free for the layers above.

    A server's connection is not read while its peer doesn't take the answers, which bounds what waits for it. A client
    reads on: if both stopped, two that have much to say to each other would wait for ever. `turns`, `frames` and
    `rooms_for_answers` are shared by all connections of a server; a client's share the first.
    """

    def __init__(
        self,
        handlers: Mapping[int, RequestHandler],
        *,
        hooks: Sequence[RpcHook] = (),
        is_server: bool = False,
        turns: Turns | None = None,
        frames: UnfinishedFrames | None = None,
        rooms_for_answers: Rooms | None = None,
        on_open: Callable[[Connection], None] | None = None,
        on_close: Callable[[Connection], None] | None = None,
    ) -> None:
        self.address = "?"
        self.attributes: dict[str, Any] = {}
        #: When its bytes were last dealt with, s of the monotonic clock, which is the loop's too.
        self._opened = self.last_read = 0.0
        self._handlers = handlers
        self._hooks = hooks
        self._is_server = is_server
        self._turns = turns if turns is not None else Turns()
        #: What its turns took of late, beyond its share of the time, s; as of `last_read`.
        self._recent_s = 0.0
        self._frames = frames
        #: Of the unfinished frame that `frames` was told of; 0 for none.
        self._frame_length = 0
        self._on_open = on_open
        self._on_close = on_close
        self._reader = FrameReader()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._pending = PendingRequests(self._loop)
        self._next_opaque = 0
        #: Requests of this turn of the loop that are still to be written.
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._rooms_for_answers = rooms_for_answers
        #: Made with the first of them.
        self._open_answers: OpenAnswers[Reply] | None = None
        #: While the write buffer is full: done when there is room, or no connection any more.
        self._writable: asyncio.Future[None] | None = None
        self._closing = False
        self._lost: asyncio.Future[None] = self._loop.create_future()
        #: Answers of the read under way; None between reads, when answers are written at once.
        self._batch: list[bytes | memoryview] | None = None
        self._batch_bytes = 0
        #: The rest of a read whose answers filled the write buffer, or that took its turn of the loop.
        self._rest: Iterator[RemotingCommand] | None = None
        #: It has been put off, and `go_on` follows.
        self._is_in_line = False
        #: Of the last read, all of which is kept until its requests are handled.
        self.read_bytes = 0
        #: It isn't the peer's fault that nothing comes: see `stop_reading`.
        self.is_stopped = False

    # -- asyncio.Protocol ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=ANSWERS_HIGH_WATER if self._is_server else WRITE_HIGH_WATER)
        peer = transport.get_extra_info("peername")
        self.address = format_address(peer[0], peer[1]) if peer else "?"
        self._opened = self.last_read = monotonic()
        if self._is_server:
            self._turns.connected(self)
            if self._turns.is_full:
                self.read_or_stop()
        if self._on_open:
            self._on_open(self)

    def data_received(self, data: bytes) -> None:
        commands = self._reader.feed(data)
        self.read_bytes = len(data)
        if self._turns.is_used_up and not self._is_known_as_cheap():
            self._rest = commands
            self._wait_for_turn()
            self.read_or_stop()
        else:
            self._receive(commands)

    def _receive(self, commands: Iterator[RemotingCommand]) -> None:
        self._batch = []
        turns = self._turns
        # Not the loop's time, which stands still during a turn of uvloop's.
        began = before = monotonic()
        recent_s = self._recent_s - (began - self.last_read) * CHEAP_SHARE
        self.last_read = began
        turn_ends = began + turns.turn_s
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
                if now > turn_ends:
                    if now - before > SLOW_REQUEST_S:
                        turns.watch.slow_request(command.code, self.address, now - before, len(command.body))
                    self._rest = commands
                    break
                before = now
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
            turns.used = used = turns.used + took
            if used > TURN_S:
                turns.took_much()
            recent_s = took + recent_s if recent_s > 0.0 else took
            self._recent_s = recent_s if recent_s < MOST_S else MOST_S
        if self._rest is not None:
            self._wait_for_turn()
            self.read_or_stop()
        elif self._frames is not None and (self._reader.frame_length or self._frame_length):
            reader = self._reader
            self._frame_length = reader.frame_length
            self._frames.received(self, reader.frame_number, reader.frame_length, reader.held_bytes)

    def charge(self, seconds: float) -> None:
        """Somebody has worked so long for its requests elsewhere than in its turns."""
        # As of `last_read`, see `is_busy`.
        forgiven_s = (monotonic() - self.last_read) * CHEAP_SHARE
        self._recent_s = min(max(self._recent_s, forgiven_s) + seconds, forgiven_s + MOST_S)

    def is_busy(self) -> bool:
        """Its turns take more than a small share of the time."""
        return self._recent_s - (monotonic() - self.last_read) * CHEAP_SHARE > CHEAP_S

    def _is_known_as_cheap(self) -> bool:
        return self._opened < self.last_read > monotonic() - KNOWN_S and not self.is_busy()

    def _flush(self) -> None:
        """Writes the answers of the read under way."""
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

    def _refuse_flood(self) -> bool:
        """Closes the connection with a peer that asks and takes no answers, each of which takes memory.

        A client reads on when its server doesn't; and answers come from elsewhere than from reading, too.
        """
        if self._writable is None or self._transport is None:
            return False
        if self._transport.get_write_buffer_size() <= (UNTAKEN_LIMIT if self._is_server else ONEWAY_LIMIT):
            return False
        log.warning("closing the connection with %s, which asks and takes no answers", self.address)
        self.abort()
        return True

    def _wait_for_turn(self) -> None:
        if not self._is_in_line and (self._writable is None or not self._is_server):
            self._is_in_line = True
            self._turns.put_off(self)

    def go_on(self) -> None:
        """Its turn has come, for the requests that wait."""
        self._is_in_line = False
        if self._rest is None or (self._writable is not None and self._is_server) or self._closing:
            return
        commands, self._rest = self._rest, None
        self._receive(commands)
        if self._rest is None:
            self.read_or_stop()

    @property
    def is_behind(self) -> bool:
        """Requests that have arrived wait for their turn; those that wait for room may do so for ever."""
        return self._is_in_line

    def read_or_stop(self) -> None:
        """Has the transport read, or not, as the state says (see above)."""
        if self._closing or self._transport is None or self._transport.is_closing():
            return
        is_held_up = self._is_server and (
            self._writable is not None or (self._turns.is_full and not self._is_known_as_cheap())
        )
        if self._rest is None and not self.is_stopped and not is_held_up:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def stop_reading(self) -> None:
        """Reads no more of the frame under way, until `go_on_reading`."""
        self.is_stopped = True
        self.read_or_stop()

    def go_on_reading(self) -> None:
        self.is_stopped = False
        # So long it wasn't the peer that was silent.
        self.last_read = monotonic()
        self.read_or_stop()

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()
        self.read_or_stop()

    def resume_writing(self) -> None:
        self._wake_writers()
        if self._rest is not None:
            # Not here: the transport is in the middle of a write.
            self._wait_for_turn()
        else:
            self.read_or_stop()

    def _wake_writers(self) -> None:
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None

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
        self._turns.connection_lost(self)
        self._wake_writers()
        self._pending.connection_lost(message)
        self._rest = None
        self._reader.clear()
        if self._frames is not None:
            self._frames.forget(self)
        self._gathered.clear()
        if self._open_answers is not None:
            self._open_answers.cancel()
        self._lost.set_result(None)
        if self._on_close:
            self._on_close(self)

    def _never_heard(self) -> bool:
        # With TLS 1.3 the handshake has ended for a client before its certificate is looked at.
        return not self._is_server and not self._closing and self.last_read == self._opened

    # -- requests of the peer -----------------------------------------------------------------------------------

    def _request_received(self, request: RemotingCommand) -> None:
        try:
            for hook in self._hooks:
                hook.before_request(self.address, request)
            handler = self._handlers.get(request.code)
            if handler is None:
                log.info("request code %d of %s is not supported", request.code, self.address)
                reply: Reply = RemotingCommand.response(
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {request.code} not supported"
                )
            else:
                reply = handler(self, request)
        except Exception as e:
            reply = error_response(e, request, self.address)
        if reply is not None:
            self.reply(request, reply)

    def reply(self, request: RemotingCommand, reply: RemotingCommand | Buffers) -> None:
        """Answers `request`, in its header encoding. Nothing is sent for a one-way request or after the close."""
        if request.flag & ONEWAY_FLAG or self._closing or self._transport is None:
            return
        if isinstance(reply, RemotingCommand):
            try:
                for hook in self._hooks:
                    hook.after_response(self.address, request, reply)
                reply = (encode_reply(request, reply),)
            except Exception as e:
                reply = (encode_reply(request, error_response(e, request, self.address)),)
        if self._batch is not None:
            self._batch += reply
            # A pull's answer has a piece for each message that lies apart: 0.6 us of its 24 for 32 of them, not 1.4.
            self._batch_bytes += len(reply[0]) if len(reply) == 1 else sum(map(len, reply))
        elif not self._refuse_flood():
            self._transport.writelines(reply)

    def respond_with(self, request: RemotingCommand, work: Coroutine[Any, Any, Reply]) -> None:
        """Answers `request` with what `work` returns, in a task of its own: for rare requests only.

        When the connection is lost `work` is cancelled; it shields what must not be left half done. When too many are
        under way already `work` isn't begun, and the answer is SYSTEM_BUSY.
        """
        if self._closing:
            work.close()
            return
        if self._open_answers is None:
            rooms = self._rooms_for_answers if self._rooms_for_answers is not None else new_rooms_for_answers()
            self._open_answers = OpenAnswers(self._work_done, rooms.of(self.address))
        if not self._open_answers.begin(request, work):
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
        """Sends `request` when there is room in the write buffer, waits for its response.

        Raises ConnectionLost, or RequestTimeout when both together took longer than `timeout_ms`.
        """
        if self._writable is not None:
            timeout_ms = await self._room_to_write(timeout_ms)
        future = self.start_request(request, timeout_ms)
        opaque = request.opaque
        try:
            response = await future
        except asyncio.CancelledError:
            self._pending.discard(opaque)
            raise
        for hook in self._hooks:
            hook.after_response(self.address, request, response)
        return response

    def start_request(self, request: RemotingCommand, timeout_ms: int) -> asyncio.Future[RemotingCommand]:
        """Sends `request` now; the future is its response, ConnectionLost or RequestTimeout. Raises ConnectionLost."""
        self._send(request)
        return self._pending.add(request.opaque, self.address, timeout_ms)

    async def invoke_oneway(self, request: RemotingCommand, timeout_ms: int = 3000) -> None:
        """Sends `request` without waiting for an answer, only for room in the write buffer.

        Raises ConnectionLost, or RequestTimeout when there was no room.
        """
        if self._writable is not None:
            await self._room_to_write(timeout_ms)
        self.send_oneway(request)

    async def _room_to_write(self, timeout_ms: int) -> int:
        """Waits until the write buffer has room; what is left of `timeout_ms`."""
        deadline = self._loop.time() + timeout_ms / 1000
        try:
            async with asyncio.timeout_at(deadline):
                while self._writable is not None:
                    await asyncio.shield(self._writable)
        except TimeoutError:
            message = f"{self.address} did not take what was sent before in {timeout_ms} ms"
            raise RequestTimeout(message, self.address) from None
        return max(1, round((deadline - self._loop.time()) * 1000))

    def send_oneway(self, request: RemotingCommand) -> None:
        """Like `invoke_oneway`, without the wait. Raises RequestTimeout when very much waits for the peer already."""
        if self._writable is not None and self._transport is not None:
            waiting = self._transport.get_write_buffer_size()
            if waiting > ONEWAY_LIMIT:
                raise RequestTimeout(f"{self.address} doesn't take the {waiting} bytes that were sent", self.address)
        request.flag |= ONEWAY_FLAG
        self._send(request)

    def _send(self, request: RemotingCommand) -> None:
        if self._transport is None or self.is_closed:
            raise ConnectionLost(f"the connection with {self.address} is closed", self.address)
        self._next_opaque = request.opaque = (self._next_opaque + 1) & 0x7FFFFFFF
        for hook in self._hooks:
            hook.before_request(self.address, request)
        if len(request.body) > LARGE_BODY:
            self._write_gathered()
            self._transport.writelines((request.encode_head(len(request.body)), request.body))
            return
        frame = request.encode()
        if not self._gathered:
            self._loop.call_soon(self._write_gathered)
        self._gathered.append(frame)
        self._gathered_bytes += len(frame)
        if self._gathered_bytes >= GATHER_LIMIT:
            self._write_gathered()

    def _write_gathered(self) -> None:
        if self._gathered and self._transport is not None:
            self._transport.write(b"".join(self._gathered))
            self._gathered.clear()
            self._gathered_bytes = 0

    # -- life ---------------------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """The peer doesn't take what is sent to it: the write buffer is full."""
        return self._writable is not None

    @property
    def is_closed(self) -> bool:
        return self._closing or self._transport is None or self._transport.is_closing()

    def close(self) -> None:
        """Closes after what is in the write buffer was sent; see `close_all` for a peer that may not take it."""
        self._flush()
        self._write_gathered()
        self._closing = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Closes at once."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()


async def close_all(connections: Collection[Connection], timeout_s: float = CLOSE_TIMEOUT_S) -> None:
    """Closes `connections` and waits until they are; those whose peer doesn't take the rest in time are cut off."""
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
