"""One connection, from either side: reads commands, calls handlers, pairs responses with requests.

The request path makes no task and no future: a handler is a plain function, called while the bytes of one read are
being parsed. What it returns is collected and written in one call after the read's last frame, so that 32 requests that
arrived together are answered with one system call. A handler that can't answer at once returns None and calls
`Connection.reply` later (a long poll, a group commit); one that must await something uses `respond_with`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, cast

from gantrymq.errors import ConnectionLost, GantryError, ProtocolError, RequestRefused, RequestTimeout
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import ONEWAY_FLAG, RESPONSE_FLAG, RemotingCommand
from gantrymq.protocol.frame_reader import FrameReader

log = logging.getLogger(__name__)

#: Pieces of one or more encoded frames; memoryviews go to the socket without a copy.
Buffers = Sequence[bytes | memoryview]
#: A handler's answer: a command, encoded frames, or None when `Connection.reply` follows (or nothing does, one-way).
Reply = RemotingCommand | Buffers | None
Handler = Callable[["Connection", RemotingCommand], Reply]

#: Unwritten bytes at which a connection stops being read until its peer has taken half of them.
WRITE_HIGH_WATER = 8 * 1024 * 1024


class RpcHook(Protocol):
    """Sees every command of a connection on its way (`RPCHook`): signing, checking, tracing."""

    def before_request(self, address: str, request: RemotingCommand) -> None:
        """May change `request` (client) or raise a GantryError to refuse it (server)."""

    def after_response(self, address: str, request: RemotingCommand, response: RemotingCommand) -> None:
        """Called with the answer."""


class Connection(asyncio.Protocol):
    """A connected peer at `address` (host:port). `attributes` is free for the layers above."""

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        *,
        hooks: Sequence[RpcHook] = (),
        on_open: Callable[[Connection], None] | None = None,
        on_close: Callable[[Connection], None] | None = None,
    ) -> None:
        self.address = "?"
        self.attributes: dict[str, Any] = {}
        self.last_read = 0.0
        self._handlers = handlers
        self._hooks = hooks
        self._on_open = on_open
        self._on_close = on_close
        self._reader = FrameReader()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._pending: dict[int, asyncio.Future[RemotingCommand]] = {}
        self._next_opaque = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._writable: asyncio.Future[None] | None = None
        #: Answers of the read under way; None between reads, when answers are written at once.
        self._batch: list[bytes | memoryview] | None = None

    # -- asyncio.Protocol ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        peer = transport.get_extra_info("peername")
        self.address = format_address(peer[0], peer[1]) if peer else "?"
        self.last_read = self._loop.time()
        if self._on_open:
            self._on_open(self)

    def data_received(self, data: bytes) -> None:
        self.last_read = self._loop.time()
        batch: list[bytes | memoryview] = []
        self._batch = batch
        try:
            for command in self._reader.feed(data):
                if command.flag & RESPONSE_FLAG:
                    self._response_received(command)
                else:
                    self._request_received(command)
        except ProtocolError as e:
            log.warning("closing the connection with %s: %s", self.address, e)
            self._flush(batch)
            self.close()
            return
        self._flush(batch)

    def _flush(self, batch: list[bytes | memoryview]) -> None:
        self._batch = None
        if batch and self._transport is not None:
            if len(batch) == 1:
                self._transport.write(batch[0])
            else:
                self._transport.writelines(batch)

    def pause_writing(self) -> None:
        # A peer that sends requests but doesn't take the answers is not read any further: its backlog is bounded.
        assert self._transport is not None
        self._transport.pause_reading()
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None:
            if not self._writable.done():
                self._writable.set_result(None)
            self._writable = None
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
            self._writable = None
        pending, self._pending = self._pending, {}
        for future in pending.values():
            if not future.done():
                future.set_exception(ConnectionLost(f"{self.address} closed the connection: {exc}", self.address))
        for task in self._tasks:
            task.cancel()
        if self._on_close:
            self._on_close(self)

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
        if request.flag & ONEWAY_FLAG or self._transport is None:
            return
        if isinstance(reply, RemotingCommand):
            reply.opaque = request.opaque
            reply.flag |= RESPONSE_FLAG
            reply.serialize_type = request.serialize_type
            for hook in self._hooks:
                hook.after_response(self.address, request, reply)
            reply = (reply.encode(),)
        if self._batch is not None:
            self._batch += reply
        else:
            self._transport.writelines(reply)

    def respond_with(self, request: RemotingCommand, work: Coroutine[Any, Any, RemotingCommand]) -> None:
        """Answers `request` with what `work` returns, in a task of its own: for rare requests only."""

        async def run() -> None:
            try:
                reply = await work
            except Exception as e:
                reply = error_response(e, request, self.address)
            self.reply(request, reply)

        task = self._loop.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- requests to the peer -----------------------------------------------------------------------------------

    async def invoke(self, request: RemotingCommand, timeout_ms: int = 3000) -> RemotingCommand:
        """Sends `request`, waits for its response. Raises ConnectionLost or RequestTimeout."""
        if self._writable is not None:
            await asyncio.shield(self._writable)
        future = self.start_request(request, timeout_ms)
        try:
            response = await future
        finally:
            self._pending.pop(request.opaque, None)
        for hook in self._hooks:
            hook.after_response(self.address, request, response)
        return response

    def start_request(self, request: RemotingCommand, timeout_ms: int) -> asyncio.Future[RemotingCommand]:
        """Sends `request` now; the future is its response."""
        self._send(request)
        future: asyncio.Future[RemotingCommand] = self._loop.create_future()
        self._pending[request.opaque] = future
        timer = self._loop.call_later(timeout_ms / 1000, self._time_out, request.opaque, timeout_ms)
        future.add_done_callback(lambda _: timer.cancel())
        return future

    async def invoke_oneway(self, request: RemotingCommand) -> None:
        """Sends `request` without waiting for an answer, only for room in the write buffer."""
        if self._writable is not None:
            await asyncio.shield(self._writable)
        self.send_oneway(request)

    def send_oneway(self, request: RemotingCommand) -> None:
        """Like `invoke_oneway`, without the wait."""
        request.flag |= ONEWAY_FLAG
        self._send(request)

    def _send(self, request: RemotingCommand) -> None:
        if self._transport is None or self._transport.is_closing():
            raise ConnectionLost(f"the connection with {self.address} is closed", self.address)
        self._next_opaque = request.opaque = (self._next_opaque + 1) & 0x7FFFFFFF
        for hook in self._hooks:
            hook.before_request(self.address, request)
        if len(request.body) > 65536:
            self._transport.writelines((request.encode_head(len(request.body)), request.body))
        else:
            self._transport.write(request.encode())

    def _response_received(self, response: RemotingCommand) -> None:
        future = self._pending.pop(response.opaque, None)
        if future is None:
            log.debug("response %d of %s came too late", response.opaque, self.address)
        elif not future.done():
            future.set_result(response)

    def _time_out(self, opaque: int, timeout_ms: int) -> None:
        future = self._pending.pop(opaque, None)
        if future is not None and not future.done():
            future.set_exception(RequestTimeout(f"{self.address} did not answer in {timeout_ms} ms", self.address))

    # -- life ---------------------------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def close(self) -> None:
        """Closes after what is in the write buffer was sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Closes at once."""
        if self._transport is not None:
            self._transport.abort()


def error_response(error: Exception, request: RemotingCommand, address: str) -> RemotingCommand:
    """The answer for a handler that raised: SYSTEM_ERROR with the reason, logged once."""
    if isinstance(error, GantryError):
        log.warning("request %d of %s failed: %s", request.code, address, error)
    else:
        log.error("request %d of %s failed", request.code, address, exc_info=error)
    if isinstance(error, RequestRefused):
        return RemotingCommand.response(error.code, str(error))
    return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")


def format_address(host: str, port: int) -> str:
    """host:port, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_address(address: str) -> tuple[str, int]:
    """(host, port) of host:port. Raises ValueError."""
    host, separator, port = address.strip().rpartition(":")
    if not separator or not host or not port.isdigit() or not 0 <= int(port) < 65536:
        raise ValueError(f"{address!r} is not HOST:PORT")
    return host.strip("[]"), int(port)
