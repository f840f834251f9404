"""Http2Connection: the server's side of one connection (RFC 9113).

It gives what it reads to its `FrameReader`, for one slice of time. All that is sent in one iteration of the event loop
is written together. What a peer can take of this process is bounded (`limits.py`): streams, fields, processor time
(`time_quota.py`), incomplete frames and header blocks (`remoting/incomplete_input.py`), unread responses
(`untaken.py`).

`tests/proxy/test_proxy_http2_rules.py` has a test for each rule; `interop/test_h2spec.py` runs the conformance suite.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from gantrymq.logs import peer_log
from gantrymq.proxy.http2 import frames
from gantrymq.proxy.http2.frame_reader import CONNECTION_WINDOW, MOST_FIELDS, Accept, FrameReader
from gantrymq.proxy.http2.frames import ConnectionEnded, ErrorCode
from gantrymq.proxy.http2.hpack import SHRUNK_TABLE
from gantrymq.proxy.http2.limits import Limits
from gantrymq.proxy.http2.peer_settings import PeerSettings
from gantrymq.proxy.http2.stream import Http2Stream
from gantrymq.proxy.http2.time_quota import TimeQuota
from gantrymq.remoting.address import format_address
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: Unwritten bytes at which a connection isn't read, and no stream's data is written. They then count in `untaken`.
_WRITE_HIGH_WATER = 64 * 1024
#: Data that is written without waiting for the rest of this iteration of the loop.
_GATHERED = 256 * 1024
#: A connection before its first request, with and without TLS, bytes.
_TLS_BYTES = 64 * 1024
_PLAIN_BYTES = 8 * 1024


class Http2Connection(asyncio.Protocol):
    """`peer` and `local` are host:port."""

    def __init__(
        self,
        accept: Accept,
        limits: Limits,
        on_open: Callable[[Http2Connection], None],
        on_close: Callable[[Http2Connection], None],
    ) -> None:
        self.peer = self.local = "?"
        #: When something was read, s.
        self.last_read = monotonic()
        #: A ping was sent and not yet answered.
        self.is_asked = False
        self.streams: dict[int, Http2Stream] = {}
        #: Streams that wait for the connection's window or its socket, not for a window of their own.
        self.blocked: dict[int, Http2Stream] = {}
        #: How many bytes the peer still takes on all streams.
        self.window = frames.DEFAULT_WINDOW
        #: The socket takes what is written.
        self.is_writable = True
        #: No more streams are taken; nothing is read any more.
        self.is_ending = self.is_over = False
        self.settings = PeerSettings()
        self.quota = TimeQuota(limits.time, self.last_read)
        self.untaken = limits.untaken
        self._reader = FrameReader(self, accept, limits.streams)
        self._limits = limits
        self._on_open = on_open
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        #: What was read and not handled: an incomplete frame, or what waits for the next slice.
        self._rest = b""
        self._is_deferred = False
        #: There is an entry in `limits.incomplete`; before the first request it counts so many bytes more.
        self._is_incomplete = self._has_deadline = True
        self._idle_bytes = _PLAIN_BYTES
        #: What the socket didn't take, as it counts in `untaken`.
        self._unwritten = 0
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._is_flush_due = False

    # -- asyncio.Protocol ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH_WATER)
        self.peer = _name(transport.get_extra_info("peername"))
        self.local = _name(transport.get_extra_info("sockname"))
        if transport.get_extra_info("ssl_object") is not None:
            self._idle_bytes = _TLS_BYTES
        self._limits.incomplete.begin(self, self._idle_bytes, monotonic())
        self.send(
            frames.settings(
                {
                    frames.SETTING_MAX_CONCURRENT_STREAMS: self._limits.streams,
                    frames.SETTING_MAX_HEADER_LIST_SIZE: MOST_FIELDS,
                }
            ),
            frames.window_update(0, CONNECTION_WINDOW - frames.DEFAULT_WINDOW),
        )
        self._on_open(self)

    def data_received(self, data: bytes) -> None:
        self.last_read = monotonic()
        self.is_asked = False
        if self._is_deferred:
            # TLS may deliver what it had decrypted before reading was paused.
            self._rest += data
            self._limits.incomplete.resize(self, self._idle_bytes + len(self._rest))
            return
        self._take(self._rest + data if self._rest else data)

    def _take(self, data: bytes) -> None:
        if self.is_over:
            return
        self._is_flush_due = True
        try:
            self._rest = rest = self._reader.read(data)
            if not self.quota.settle(self.last_read):
                raise ConnectionEnded(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that belong to no call")
            if rest and self.quota.is_slice_over:
                self._defer()
        except ConnectionEnded as e:
            log.info("closing the HTTP/2 connection with %s: %s", self.peer, e)
            self._end(e.code, str(e))
        finally:
            self._flush()
        if self._rest or self._is_incomplete or self._reader.block_bytes is not None:
            self._count_incomplete(has_progress=len(self._rest) < len(data))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._rest = b""
        self._out.clear()
        self.is_over = True
        self._limits.incomplete.complete(self)
        self._count_unwritten(0)
        streams = list(self.streams.values())
        self.streams.clear()
        for stream in streams:
            stream.lost()
        self._on_close(self)

    def pause_writing(self) -> None:
        self.is_writable = False
        if self._transport is not None:
            self._transport.pause_reading()
            self._count_unwritten(self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self.is_writable = True
        self._count_unwritten(0)
        self._resume_reading()
        if self._transport is not None and not self._transport.is_closing():
            self.pump_all()

    def _resume_reading(self) -> None:
        if self._transport is None or self._transport.is_closing() or self._is_deferred or not self.is_writable:
            return
        if self._is_incomplete:
            # The deadline doesn't count the time in which this side read nothing.
            self._count_incomplete(has_progress=True)
        self._transport.resume_reading()

    def _count_unwritten(self, size: int) -> None:
        """What the socket doesn't take counts as unread from the high-water mark on."""
        unwritten, self._unwritten = self._unwritten, size
        if size:
            self.untaken.keep(self, size)
        elif unwritten:
            self.untaken.taken(self, unwritten)

    # -- incomplete input ---------------------------------------------------------------------------------------

    def _count_incomplete(self, *, has_progress: bool) -> None:
        """With `has_progress`, what is incomplete is a new frame, with an age of its own."""
        incomplete = self._limits.incomplete
        block_bytes = self._reader.block_bytes
        size = len(self._rest) + (block_bytes or 0)
        is_complete = self._reader.began and not size and block_bytes is None
        if self._reader.last_stream_id:
            self._idle_bytes = 0
        if self.is_over or (is_complete and not self._idle_bytes):
            self._is_incomplete = False
            incomplete.complete(self)
        elif is_complete:
            # Idle before its first request: as long as it likes, but one of the first to go.
            self._has_deadline = False
            incomplete.resize(self, self._idle_bytes)
            incomplete.lift_deadline(self)
        elif not self._is_incomplete or not self._has_deadline or (has_progress and block_bytes is None):
            self._is_incomplete = self._has_deadline = True
            incomplete.begin(self, self._idle_bytes + size, self.last_read)
        else:
            incomplete.resize(self, self._idle_bytes + size)

    def input_refused(self, reason: str) -> None:
        """As `IncompleteInputs` demands."""
        log.info("closing the HTTP/2 connection with %s: %s", self.peer, reason)
        self.abort()

    @property
    def is_paused(self) -> bool:
        """Its input is incomplete because this side doesn't read."""
        return self._is_deferred or not self.is_writable

    # -- reading ------------------------------------------------------------------------------------------------

    def _defer(self) -> None:
        """Other connections have their slice before this one goes on."""
        self._is_deferred = True
        self.quota.wait()
        if self._transport is not None:
            self._transport.pause_reading()
        self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._is_deferred = False
        self.quota.go_on()
        if self._transport is None or self.is_over:
            return
        self._take(self._rest)
        self._resume_reading()

    def pump_all(self) -> None:
        """In turn, while the connection takes anything. A stream that isn't done waits behind the others."""
        while self.blocked and self.window > 0 and self.is_writable:
            self.blocked.pop(next(iter(self.blocked))).pump()

    # -- writing ------------------------------------------------------------------------------------------------

    def send(self, *pieces: bytes) -> None:
        """Writes them with all else of this turn of the loop."""
        self._out += pieces
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def send_data(self, head: bytes, data: bytes) -> None:
        """Like `send`; but of much data some is written at once, so that it's seen what the socket takes."""
        self.send(head, data)
        self._out_bytes += len(data)
        if self._out_bytes > _GATHERED:
            self._flush()

    def _flush(self) -> None:
        self._is_flush_due = False
        out, self._out = self._out, []
        self._out_bytes = 0
        # uvloop raises for a transport that it closes, such as one whose start was cancelled.
        if out and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(out))

    def header_block(self, block: bytes) -> bytes:
        """A block as it must be sent now."""
        if self.settings.must_shrink_table:
            self.settings.must_shrink_table = False
            return SHRUNK_TABLE + block
        return block

    def local_end(self, stream: Http2Stream) -> None:
        """A stream was answered; what its peer still sends on it is thrown away."""
        if stream.is_remote_open:
            stream.is_remote_open = False
            self.send(frames.rst_stream(stream.stream_id, ErrorCode.NO_ERROR))
            self._reader.expect_late_frames(stream.stream_id)
        self.streams.pop(stream.stream_id, None)
        if self.is_ending and not self.streams:
            self._flush()
            self._close()

    def ask(self) -> None:
        """Sends a ping, whose answer shows that the peer is there."""
        self.is_asked = True
        self.send(frames.ping(b"gantrymq"))

    def end(self) -> None:
        """Takes no more streams, and closes when those that there are have ended."""
        if not self.is_ending:
            self.send(frames.goaway(self._reader.last_stream_id, ErrorCode.NO_ERROR))
            self.is_ending = True
            for stream in list(self.streams.values()):
                if stream.receiver is not None:
                    stream.receiver.server_stops()
            if not self.streams:
                self._flush()
                self._close()

    def _end(self, code: ErrorCode, reason: str) -> None:
        self.send(frames.goaway(self._reader.last_stream_id, code, reason))
        self.is_over = True
        self._rest = b""
        self._flush()
        self._close()

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def takes_nothing(self) -> None:
        log.warning("closing the HTTP/2 connection with %s, which doesn't read its responses", self.peer)
        self.abort()

    @property
    def is_closing(self) -> bool:
        """It closes as soon as its peer has taken what was sent, which some never do."""
        return self.is_ending or self.is_over

    def abort(self) -> None:
        """Closes at once."""
        self.is_over = True
        if self._transport is not None:
            self._transport.abort()


def _name(address: tuple[str, int] | None) -> str:
    return format_address(address[0], address[1]) if address else "?"
