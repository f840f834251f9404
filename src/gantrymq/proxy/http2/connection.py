"""The server side of one HTTP/2 connection (RFC 9113).

Its `FrameReader` processes the received bytes for one time slice (`read_slices.py`). All data that is sent in one
iteration of the event loop is written together. Limits apply to each peer (`limits.py`): streams, fields, processor
time (`time_quota.py`), incomplete frames and header blocks (`remoting/incomplete_input.py`), and unread responses
(`unread_responses.py`).

`tests/proxy/test_proxy_http2_rules.py` has a test for each rule; `interop/test_h2spec.py` runs the conformance suite.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import cast

from gantrymq.logs import peer_log
from gantrymq.proxy.http2 import frames
from gantrymq.proxy.http2.frame_reader import CONNECTION_WINDOW, MOST_FIELDS, Accept, FrameReader
from gantrymq.proxy.http2.frames import ConnectionEnded, ErrorCode
from gantrymq.proxy.http2.hpack import SHRUNK_TABLE
from gantrymq.proxy.http2.limits import Limits
from gantrymq.proxy.http2.peer_settings import PeerSettings
from gantrymq.proxy.http2.read_slices import LARGE_READ
from gantrymq.proxy.http2.stream import Http2Stream
from gantrymq.proxy.http2.time_quota import TimeQuota
from gantrymq.remoting.address import format_address
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: Size of the write buffer at which the connection stops reading and sending data, bytes. It then counts in `unread`.
_WRITE_HIGH_WATER = 64 * 1024
#: Bytes of data after which the connection writes immediately, not at the end of the event-loop iteration.
_GATHERED = 256 * 1024
#: Memory of a connection before its first request, with and without TLS, bytes.
_TLS_BYTES = 64 * 1024
_PLAIN_BYTES = 8 * 1024


class Http2Connection(asyncio.Protocol):
    """One server-side connection. `peer` and `local` are host:port."""

    def __init__(
        self,
        accept: Accept,
        limits: Limits,
        on_open: Callable[[Http2Connection], None],
        on_close: Callable[[Http2Connection], None],
    ) -> None:
        self.peer = self.local = "?"
        #: Time of the last read, s.
        self.last_read = monotonic()
        #: True while a ping has no response.
        self.is_asked = False
        self.streams: dict[int, Http2Stream] = {}
        #: Streams with data that wait for the connection's window or for its socket.
        self.blocked: OrderedDict[int, Http2Stream] = OrderedDict()
        #: Window of the connection: the bytes that the peer still accepts on all streams together.
        self.window = frames.DEFAULT_WINDOW
        #: False while the write buffer is full.
        self.is_writable = True
        #: `is_ending`: no more streams are accepted. `is_over`: nothing more is read.
        self.is_ending = self.is_over = False
        self.settings = PeerSettings()
        self.quota = TimeQuota(limits.time, self.last_read)
        self.unread = limits.unread
        self._reader = FrameReader(self, accept, limits.streams)
        self._limits = limits
        self._on_open = on_open
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        #: Unprocessed input: an incomplete frame, or frames that wait for the next slice.
        self._rest = b""
        #: True while the connection waits for `go_on`, and neither processes frames nor reads.
        self._is_deferred = False
        self.last_slice_s = 0.0
        #: Whether `limits.incomplete` has an entry for this connection, and whether the entry has a deadline. Before
        #: the first request, the entry also counts `_idle_bytes`.
        self._is_incomplete = self._has_deadline = True
        self._idle_bytes = _PLAIN_BYTES
        #: Bytes of the write buffer that count in `unread`.
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
            # After reading is paused, TLS can still deliver bytes that it has already decrypted.
            self._rest += data
            self._limits.incomplete.resize(self, self._idle_bytes + len(self._rest))
            return
        self._take(self._rest + data if self._rest else data)

    def _take(self, data: bytes) -> None:
        """Processes input for one time slice. Defers the connection if frames remain."""
        if self.is_over:
            return
        self._is_flush_due = True
        slices = self._limits.slices
        began = monotonic()
        slice_end = slices.begin(began)
        try:
            self._rest = self._reader.read(data, slice_end)
            if not self.quota.settle(began):
                raise ConnectionEnded(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that belong to no call")
        except ConnectionEnded as e:
            log.info("closing the HTTP/2 connection with %s: %s", self.peer, e)
            self._end(e.code, str(e))
        finally:
            self._flush()
            ended = monotonic()
            self.last_slice_s = ended - began
            slices.ended(ended - began)
        if self._rest and ended > slice_end:
            self._defer(has_frames=True)
        elif slices.is_used_up and len(data) >= LARGE_READ:
            self._defer(has_frames=False)
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
            self._count_unwritten(self.unwritten_bytes)

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
            # Restart the deadline, which must not include the time in which the server paused reading.
            self._count_incomplete(has_progress=True)
        self._transport.resume_reading()

    @property
    def unwritten_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def _count_unwritten(self, size: int) -> None:
        """Counts a full write buffer of `size` bytes in `unread`. `size` is 0 when the buffer is writable again."""
        unwritten, self._unwritten = self._unwritten, size
        if size:
            self.unread.add(self, size)
        elif unwritten:
            self.unread.remove(self, unwritten)

    # -- incomplete input ---------------------------------------------------------------------------------------

    def _count_incomplete(self, *, has_progress: bool) -> None:
        """Updates the entry in `limits.incomplete`. After a complete frame (`has_progress`), restarts the deadline."""
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
            # An idle connection before its first request has no deadline, but it is among the first to be closed.
            self._has_deadline = False
            incomplete.resize(self, self._idle_bytes)
            incomplete.lift_deadline(self)
        elif not self._is_incomplete or not self._has_deadline or (has_progress and block_bytes is None):
            self._is_incomplete = self._has_deadline = True
            incomplete.begin(self, self._idle_bytes + size, self.last_read)
        else:
            incomplete.resize(self, self._idle_bytes + size)

    def input_refused(self, reason: str) -> None:
        """Closes the connection. `IncompleteInputs` calls this method when the incomplete input exceeds a limit."""
        log.info("closing the HTTP/2 connection with %s: %s", self.peer, reason)
        self.abort()

    @property
    def is_paused(self) -> bool:
        """True while the server does not read, so that the peer cannot complete its input."""
        return self._is_deferred or not self.is_writable

    # -- reading ------------------------------------------------------------------------------------------------

    def _defer(self, *, has_frames: bool) -> None:
        """Pauses this connection until other connections have had their slices."""
        if self._transport is not None and not self.is_over:
            self._is_deferred = True
            self._transport.pause_reading()
            self._limits.slices.wait(self, has_frames=has_frames)

    def go_on(self) -> None:
        """Processes deferred frames and reads again. `ReadSlices` calls this."""
        self._is_deferred = False
        if self._transport is None or self.is_over:
            return
        if self._rest:
            self._take(self._rest)
        self._resume_reading()

    def pump_all(self) -> None:
        """Sends data of the blocked streams in turn until the connection accepts no more."""
        while self.blocked and self.window > 0 and self.is_writable:
            self.blocked.popitem(last=False)[1].pump()

    # -- writing ------------------------------------------------------------------------------------------------

    def send(self, *pieces: bytes) -> None:
        """Adds pieces to the output, which is written once per event-loop iteration."""
        self._out += pieces
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def send_data(self, head: bytes, data: bytes) -> None:
        """Sends data like `send`, but writes large amounts immediately to detect a full socket in time."""
        self.send(head, data)
        self._out_bytes += len(data)
        if self._out_bytes > _GATHERED:
            self._flush()

    def _flush(self) -> None:
        self._is_flush_due = False
        out, self._out = self._out, []
        self._out_bytes = 0
        # uvloop raises an error for a closing transport, for example if its start was cancelled.
        if out and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(out))

    def header_block(self, block: bytes) -> bytes:
        """Returns the block to send. If the peer has reduced its table, the block begins with a confirmation."""
        if self.settings.must_shrink_table:
            self.settings.must_shrink_table = False
            return SHRUNK_TABLE + block
        return block

    def local_end(self, stream: Http2Stream) -> None:
        """Closes a stream whose response is sent. Discards further frames of the peer for this stream."""
        if stream.is_remote_open:
            stream.is_remote_open = False
            self.send(frames.rst_stream(stream.stream_id, ErrorCode.NO_ERROR))
            self._reader.expect_late_frames(stream.stream_id)
        self.streams.pop(stream.stream_id, None)
        if self.is_ending and not self.streams:
            self._flush()
            self._close()

    def ask(self) -> None:
        """Sends a ping. A response shows that the peer is alive."""
        self.is_asked = True
        self.send(frames.ping(b"gantrymq"))

    def end(self) -> None:
        """Accepts no more streams, and closes when all streams have ended."""
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

    def reads_nothing(self) -> None:
        log.warning("closing the HTTP/2 connection with %s, which doesn't read its responses", self.peer)
        self.abort()

    @property
    def is_closing(self) -> bool:
        """True if the connection closes when the peer has read all output. The peer may never do that."""
        return self.is_ending or self.is_over

    def abort(self) -> None:
        """Closes the connection at once and discards unwritten data."""
        self.is_over = True
        if self._transport is not None:
            self._transport.abort()


def _name(address: tuple[str, int] | None) -> str:
    return format_address(address[0], address[1]) if address else "?"
