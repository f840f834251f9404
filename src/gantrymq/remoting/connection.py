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

While it is open `flow_control.py` says when it is read.

`_batch` is a list during a read, when answers gather, and None between reads, when they are written at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from math import inf
from typing import Any, Protocol, cast

from gantrymq.errors import ConnectionLost, ProtocolError, RequestTimeout
from gantrymq.logs import peer_log
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import ONEWAY_FLAG, RESPONSE_FLAG, RemotingCommand
from gantrymq.protocol.frame_reader import FrameReader, MakeRoom
from gantrymq.remoting.address import format_address
from gantrymq.remoting.answers import LARGE_BODY, error_response, reply_buffers
from gantrymq.remoting.flow_control import ANSWERS_HIGH_WATER, ONEWAY_LIMIT, WRITE_HIGH_WATER, FlowControl, Rest
from gantrymq.remoting.loop_watch import SLOW_REQUEST_S
from gantrymq.remoting.open_answers import OpenAnswers, new_rooms_for_answers
from gantrymq.remoting.pending_requests import PendingRequests, Waiting
from gantrymq.remoting.room import Rooms
from gantrymq.remoting.turns import CHEAP_SHARE, MOST_S, TURN_DECAY, TURN_S, Turns
from gantrymq.remoting.unfinished_frames import UnfinishedFrames
from gantrymq.remoting.untaken_answers import UntakenAnswers
from gantrymq.system.clock import monotonic, thread_time

log = peer_log(__name__)

#: Pieces of one or more encoded frames; memoryviews go to the socket without a copy.
Buffers = Sequence[bytes | memoryview]
#: A handler's answer: a command, encoded frames, or None when `Connection.reply` follows (or nothing does, one-way).
Reply = RemotingCommand | Buffers | None
RequestHandler = Callable[["Connection", RemotingCommand], Reply]
#: Sees what was read, from a frame's begin, before it is decoded: how many bytes of whole frames it has dealt with, and
#: their answers, if these don't come later.
FirstLook = Callable[["Connection", bytes], tuple[int, bytes]]

#: Answers of one read are written when they have so many bytes; if that fills the write buffer, the read's other
#: requests wait until there is room. So ANSWERS_HIGH_WATER, this and one answer is all that gathers for one peer.
BATCH_LIMIT = 1024 * 1024
#: How long a closing connection may take to send what it has to, in seconds.
CLOSE_TIMEOUT_S = 2.0
#: Up to so many bytes of answers are copied into one buffer: cheaper than to hand the kernel many small ones.
JOIN_LIMIT = 16 * 1024
#: Requests of one turn of the loop are written together, in pieces of about so many bytes. With 32 senders at a time
#: a send takes 16 us of processor time, not 22; with 64 KiB it takes no less, and the peer waits for the whole turn.
GATHER_LIMIT = 2048


class RpcHook(Protocol):
    """Sees the commands of a connection on their way (`RPCHook`): signing, checking, tracing.

    An answer that a handler gives as encoded frames passes by.
    """

    def before_request(self, address: str, request: RemotingCommand) -> None:
        """May change `request` (client) or raise a GantryError to refuse it (server)."""

    def after_response(self, address: str, request: RemotingCommand, response: RemotingCommand) -> None:
        """Called with the answer."""


class Connection(FlowControl):
    """A connected peer at `address` (host:port). `attributes` is free for the layers above.

    `turns`, `frames`, `untaken` and `rooms_for_answers` are shared by all connections of a server; a client's share the
    first.
    """

    def __init__(
        self,
        handlers: Mapping[int, RequestHandler],
        *,
        hooks: Sequence[RpcHook] = (),
        is_server: bool = False,
        turns: Turns | None = None,
        frames: UnfinishedFrames | None = None,
        untaken: UntakenAnswers | None = None,
        make_room: MakeRoom | None = None,
        rooms_for_answers: Rooms | None = None,
        first_look: FirstLook | None = None,
        on_open: Callable[[Connection], None] | None = None,
        on_close: Callable[[Connection], None] | None = None,
    ) -> None:
        super().__init__(turns if turns is not None else Turns(), is_server=is_server, untaken=untaken)
        self.attributes: dict[str, Any] = {}
        self._handlers = handlers
        self._hooks = hooks
        #: While a command is handled that the first look ended before.
        self.looked_at: RemotingCommand | None = None
        # It would be a way past the hooks.
        self._first_look = first_look if not hooks else None
        self._frames = frames
        #: Of the unfinished frame that `frames` was told of; 0 for none.
        self._frame_length = 0
        self._on_open = on_open
        self._on_close = on_close
        self._reader = FrameReader(make_room=make_room)
        self._pending = PendingRequests(self._loop)
        #: When the first request without a response was sent, or bytes arrived while requests waited; inf for none.
        self._unanswered_since = inf
        self._next_opaque = 0
        #: Requests and late answers of this turn of the loop that are still to be written.
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._rooms_for_answers = rooms_for_answers
        #: Made with the first of them.
        self._open_answers: OpenAnswers[Reply] | None = None
        self._lost: asyncio.Future[None] = self._loop.create_future()
        #: Answers of the read under way; None between reads, when answers are written at once.
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
            self._turns.connected(self)
            if self._turns.is_full:
                self.read_or_stop()
        if self._on_open:
            self._on_open(self)

    def data_received(self, data: bytes) -> None:
        commands = self._reader.feed(data) if self._first_look is None else self._left_of(data, self._first_look)
        self.read_bytes = len(data)
        if self._turns.is_used_up and (self._reader.ends_large(len(data)) or not self._is_known_as_cheap()):
            self._rest = commands
            self._wait_for_turn()
            self.read_or_stop()
        else:
            self._receive(commands)

    def _left_of(self, data: bytes, first_look: FirstLook) -> Iterator[RemotingCommand]:
        """The commands of a read that the first look leaves. Whatever a turn is, that look is part of it."""
        reader = self._reader
        data = reader.joined(data)
        if data and not reader.frame_length and not self._closing and self._batch is not None:
            dealt, answers = first_look(self, data)
            if dealt:
                data = data[dealt:]
            if answers:
                self._batch.append(answers)
                self._batch_bytes += len(answers)
            commands = reader.feed(data)
            self.looked_at = next(commands, None)
            if self.looked_at is not None:
                yield self.looked_at
                self.looked_at = None
            yield from commands
        elif data:
            yield from reader.feed(data)

    def room(self) -> memoryview | None:
        """Where the next bytes may be put instead of being given to `data_received` (`FrameReader.room`)."""
        return self._reader.room()

    def room_filled(self, count: int) -> None:
        """So many bytes were put there."""
        self.read_bytes = count
        self._receive(self._reader.filled(count))

    def _receive(self, commands: Iterator[RemotingCommand]) -> None:
        self._batch = []
        turns = self._turns
        # Not the loop's time, which stands still during a turn of uvloop's.
        began = before = monotonic()
        recent_s = self._recent_s - (began - self.last_read) * CHEAP_SHARE
        self.last_read = began
        self._unanswered_since = inf
        turn_ends = began + turns.turn_s
        cpu_began = thread_time()
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
                    # Who has nothing left doesn't wait.
                    following = next(commands, None)
                    if following is not None:
                        self._rest = Rest(following, commands)
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
            # Not `took`: while others had the processor it asked for nothing.
            cpu_s = thread_time() - cpu_began
            recent_s = cpu_s + recent_s if recent_s > 0.0 else cpu_s
            self._recent_s = recent_s if recent_s < MOST_S else MOST_S
            if self._rest is not None and cpu_s < TURN_S:
                cpu_s = TURN_S
            longest_s = self._longest_turn_s * TURN_DECAY
            self._longest_turn_s = cpu_s if cpu_s > longest_s else longest_s
            if self._pending:
                self._unanswered_since = began
        if self._rest is not None:
            self._wait_for_turn()
            self.read_or_stop()
        elif self._frames is not None and (self._reader.frame_length or self._frame_length):
            reader = self._reader
            self._frame_length = reader.frame_length
            self._frames.received(self, reader.frame_number, reader.frame_length, reader.held_bytes)

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
                reply = reply_buffers(request, reply)
            except Exception as e:
                reply = reply_buffers(request, error_response(e, request, self.address))
        if self._batch is not None:
            self._batch += reply
            # A pull's answer has a piece for each message that lies apart: 0.6 us of its 24 for 32 of them, not 1.4.
            self._batch_bytes += len(reply[0]) if len(reply) == 1 else sum(map(len, reply))
        elif not self._refuse_flood():
            self._transport.writelines(reply)

    def gather_answers(self, answers: bytes) -> None:
        """Writes encoded answers to requests together with others of this turn of the loop; nothing after the close."""
        if self._closing or self._transport is None:
            return
        if self._batch is not None:
            self._batch.append(answers)
            self._batch_bytes += len(answers)
        elif not self._refuse_flood():
            self._gather(answers, JOIN_LIMIT)

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
            timeout_ms = await self.room_to_write(timeout_ms)
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
        """Sends `request` now; the future is its response, ConnectionLost or RequestTimeout. Raises ConnectionLost."""
        self._send(request)
        if self._unanswered_since == inf:
            self._unanswered_since = monotonic()
        return self._pending.add(request.opaque, self.address, timeout_ms)

    def pass_request(self, request: RemotingCommand, timeout_ms: int, waiting: Waiting) -> None:
        """Like `start_request`; `waiting` is told at once of what comes of it, before more is read."""
        self._send(request)
        if self._unanswered_since == inf:
            self._unanswered_since = monotonic()
        self._pending.add_waiting(request.opaque, self.address, timeout_ms, waiting)

    def forget(self, request: RemotingCommand) -> None:
        """Nobody waits for the answer to `request` any more, which was sent here last."""
        self._pending.discard(request.opaque)

    async def invoke_oneway(self, request: RemotingCommand, timeout_ms: int = 3000) -> None:
        """Sends `request` without waiting for an answer, only for room in the write buffer.

        Raises ConnectionLost, or RequestTimeout when there was no room.
        """
        if self._writable is not None:
            await self.room_to_write(timeout_ms)
        self.send_oneway(request)

    def send_oneway(self, request: RemotingCommand) -> None:
        """Like `invoke_oneway`, without the wait. Raises RequestTimeout when very much waits for the peer already."""
        if self._writable is not None and self._transport is not None:
            waiting = self.unwritten_bytes
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
        """The address of this machine that the peer speaks with."""
        name = self._transport.get_extra_info("sockname") if self._transport is not None else None
        return str(name[0]) if name else "?"

    @property
    def awaits_answers(self) -> bool:
        """Requests wait for the peer's answers."""
        return len(self._pending) > 0

    @property
    def silent_s(self) -> float:
        """For how long nothing has arrived although the peer owes responses, s; also to requests that timed out."""
        if self._rest is not None or self.is_stopped or self._unanswered_since == inf:
            return 0.0
        return monotonic() - self._unanswered_since

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
