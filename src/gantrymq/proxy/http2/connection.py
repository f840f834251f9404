"""Http2Connection: a server's side of one connection (RFC 9113).

Frames of one read are handled at once, and all that is sent in one turn of the loop is written together. What a peer
can take of this process is bounded: streams, fields, streams that it opens only to give up (a rapid reset), frames of
which nothing comes, answers that it doesn't read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, cast

from gantrymq.logs import peer_log
from gantrymq.proxy.http2 import frames
from gantrymq.proxy.http2.frames import ErrorCode
from gantrymq.proxy.http2.hpack import SHRUNK_TABLE, TABLE_SIZE, HpackDecoder, HpackError, TooManyHeaders
from gantrymq.proxy.http2.idle_frames import IdleFrames
from gantrymq.proxy.http2.stream import Http2Stream, Receiver
from gantrymq.proxy.http2.untaken import UntakenBytes
from gantrymq.remoting.address import format_address
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

Fields = list[tuple[bytes, bytes]]

#: What all streams of a connection may send ahead of what was read. What one may send is its receiver's to say, beyond
#: the first 64 KiB.
_CONNECTION_WINDOW = 8 * 1024 * 1024
_FRAME_SIZE = 64 * 1024
#: A request's fields, each with 32 bytes more (RFC 9113, 6.5.2); the block that they come in is never larger.
_MOST_FIELDS = 64 * 1024
#: Unwritten bytes at which a connection isn't read any more, and no stream's data is written.
_WRITE_HIGH_WATER = 1024 * 1024
#: Data that is written without waiting for what else this turn of the loop brings.
_GATHERED = 256 * 1024
#: A window that is opened by less is a frame that carries nothing.
_SMALL_INCREMENT = 256
#: To change so many streams' windows is as much work as such a frame.
_WINDOWS_OF_FRAME = 32


class Limits(NamedTuple):
    """`streams` at once on one connection."""

    streams: int = 1024


class ConnectionEnded(Exception):
    """The peer did what HTTP/2 forbids: the connection is closed."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


#: Given a new stream and its fields; what is told of the stream from then on. None: it was answered.
Accept = Callable[[Http2Stream, Fields], "Receiver | None"]


class Http2Connection(asyncio.Protocol):
    """`peer` and `local` are host:port."""

    def __init__(
        self,
        accept: Accept,
        limits: Limits,
        untaken: UntakenBytes,
        on_open: Callable[[Http2Connection], None],
        on_close: Callable[[Http2Connection], None],
    ) -> None:
        self.peer = self.local = "?"
        #: When something was read, s.
        self.last_read = monotonic()
        #: A ping that wasn't answered yet was sent.
        self.is_asked = False
        self.streams: dict[int, Http2Stream] = {}
        #: Those that wait for the connection: its window, or its socket. Who waits for a window of its own isn't here.
        self.blocked: dict[int, Http2Stream] = {}
        #: How many bytes the peer still takes on all streams; the largest frame it takes.
        self.window = frames.DEFAULT_WINDOW
        self.frame_size = frames.DEFAULT_FRAME_SIZE
        #: The socket takes what is written.
        self.is_writable = True
        self.untaken = untaken
        self._accept = accept
        self._limits = limits
        self._on_open = on_open
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._decoder = HpackDecoder()
        self._rest = b""
        self._began = False
        self._last_stream_id = 0
        self._stream_window = frames.DEFAULT_WINDOW
        self._unacknowledged = 0
        #: A header block that goes on: stream, flags, what came so far.
        self._headers: tuple[int, int, bytearray] | None = None
        #: The peer wants a smaller table for the fields that it reads, and to hear that it is (RFC 7541, 4.2).
        self._must_shrink_table = False
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._is_flush_due = False
        #: No more streams are taken; nothing is read any more.
        self._is_ending = self._is_over = False
        self.idle_frames = IdleFrames(self.last_read)

    # -- asyncio.Protocol ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH_WATER)
        self.peer = _name(transport.get_extra_info("peername"))
        self.local = _name(transport.get_extra_info("sockname"))
        self.send(
            frames.settings(
                {
                    frames.SETTING_MAX_CONCURRENT_STREAMS: self._limits.streams,
                    frames.SETTING_MAX_FRAME_SIZE: _FRAME_SIZE,
                    frames.SETTING_MAX_HEADER_LIST_SIZE: _MOST_FIELDS,
                }
            ),
            frames.window_update(0, _CONNECTION_WINDOW - frames.DEFAULT_WINDOW),
        )
        self._on_open(self)

    def data_received(self, data: bytes) -> None:
        self.last_read = monotonic()
        self.is_asked = False
        self._is_flush_due = True
        try:
            self._read(self._rest + data if self._rest else data)
        except ConnectionEnded as e:
            log.info("closing the HTTP/2 connection with %s: %s", self.peer, e)
            self._end(e.code, str(e))
        finally:
            self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._rest = b""
        self._out.clear()
        streams, self.streams = list(self.streams.values()), {}
        for stream in streams:
            stream.lost()
        self._on_close(self)

    def pause_writing(self) -> None:
        self.is_writable = False
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self.is_writable = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self._pump_all()

    # -- reading ------------------------------------------------------------------------------------------------

    def _read(self, data: bytes) -> None:
        at = 0
        if not self._began:
            preface = frames.PREFACE
            if not preface.startswith(data[: len(preface)]):
                raise ConnectionEnded(ErrorCode.PROTOCOL_ERROR, "it doesn't speak HTTP/2")
            if len(data) < len(preface):
                self._rest = data
                return
            self._began = True
            at = len(preface)
        end = len(data)
        while end - at >= frames.HEADER_LENGTH and not self._is_over:
            length, flags, stream_id = frames.read_header(data, at)
            kind, length = length & 0xFF, length >> 8
            if length > _FRAME_SIZE:
                raise ConnectionEnded(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            begin = at + frames.HEADER_LENGTH
            if end - begin < length:
                break
            at = begin + length
            self._frame(kind, flags, stream_id & 0x7FFFFFFF, data[begin:at])
        self._rest = data[at:]

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if self._headers is not None and (kind != frames.CONTINUATION or stream_id != self._headers[0]):
            raise ConnectionEnded(ErrorCode.PROTOCOL_ERROR, "a header block isn't finished")
        if kind == frames.DATA:
            self._data(flags, stream_id, payload)
        elif kind == frames.HEADERS:
            block = _unpadded(payload, flags)
            if flags & frames.WITH_PRIORITY:
                if len(block) < 5:
                    raise ConnectionEnded(ErrorCode.FRAME_SIZE_ERROR, "a HEADERS frame without its priority")
                block = block[5:]
            if flags & frames.END_HEADERS:
                self._header_block(stream_id, flags, block)
            else:
                self._headers = stream_id, flags, bytearray(block)
        elif kind == frames.CONTINUATION:
            self._continuation(flags, payload)
        elif kind == frames.WINDOW_UPDATE:
            self._window_update(stream_id, payload)
        elif kind == frames.RST_STREAM:
            self._expect(payload, 4, stream_id > 0)
            self._count_idle_frames()
            stream = self.streams.pop(stream_id, None)
            if stream is not None:
                stream.lost()
        elif kind == frames.SETTINGS:
            self._settings(flags, stream_id, payload)
        elif kind == frames.PING:
            self._expect(payload, 8, stream_id == 0)
            if not flags & frames.ACK:
                self._count_idle_frames()
                self.send(frames.ping(payload, ack=True))
        elif kind == frames.PUSH_PROMISE:
            raise ConnectionEnded(ErrorCode.PROTOCOL_ERROR, "a client doesn't push")
        else:
            # PRIORITY and GOAWAY say nothing of use, other types aren't known.
            self._count_idle_frames()

    def _data(self, flags: int, stream_id: int, payload: bytes) -> None:
        size = len(payload)
        stream = self.streams.get(stream_id)
        if not stream_id or stream_id > self._last_stream_id:
            raise ConnectionEnded(ErrorCode.PROTOCOL_ERROR, f"data for stream {stream_id}, which didn't begin")
        self._unacknowledged += size
        if self._unacknowledged > _CONNECTION_WINDOW:
            raise ConnectionEnded(ErrorCode.FLOW_CONTROL_ERROR, "more data than the connection's window had room for")
        if self._unacknowledged >= _CONNECTION_WINDOW // 4:
            self.send(frames.window_update(0, self._unacknowledged))
            self._unacknowledged = 0
        ended = bool(flags & frames.END_STREAM)
        if not size and not ended:
            self._count_idle_frames()
        if stream is None or not stream.is_remote_open:
            # Of a stream that was answered before its end.
            return
        if ended:
            stream.is_remote_open = False
        else:
            stream.receive_window -= size
            if stream.receive_window < 0:
                raise ConnectionEnded(ErrorCode.FLOW_CONTROL_ERROR, "more data than a stream's window had room for")
        if stream.receiver is not None:
            stream.receiver.data_received(_unpadded(payload, flags), ended)
        if stream.is_closed and ended:
            self.streams.pop(stream_id, None)

    def _continuation(self, flags: int, payload: bytes) -> None:
        if self._headers is None:
            raise ConnectionEnded(ErrorCode.PROTOCOL_ERROR, "a header block that goes on and never began")
        stream_id, first_flags, block = self._headers
        block += payload
        self._count_idle_frames()
        if len(block) > _MOST_FIELDS:
            raise ConnectionEnded(ErrorCode.ENHANCE_YOUR_CALM, "a header block that is too long")
        if flags & frames.END_HEADERS:
            self._headers = None
            self._header_block(stream_id, first_flags, bytes(block))

    def _header_block(self, stream_id: int, flags: int, block: bytes) -> None:
        fields: Fields | None
        try:
            fields = self._decoder.decode(block, _MOST_FIELDS)
        except TooManyHeaders:
            fields = None
        except HpackError as e:
            raise ConnectionEnded(ErrorCode.COMPRESSION_ERROR, str(e)) from e
        ended = bool(flags & frames.END_STREAM)
        if stream_id <= self._last_stream_id:
            # Trailers, which say nothing to gRPC but the end.
            stream = self.streams.get(stream_id)
            if stream is not None and stream.is_remote_open and ended:
                stream.is_remote_open = False
                if stream.receiver is not None:
                    stream.receiver.data_received(b"", True)
            return
        if not stream_id & 1:
            raise ConnectionEnded(ErrorCode.PROTOCOL_ERROR, f"a client has no stream {stream_id}")
        self._last_stream_id = stream_id
        if fields is None or self._is_ending or len(self.streams) >= self._limits.streams:
            self._count_idle_frames()
            code = ErrorCode.ENHANCE_YOUR_CALM if fields is None else ErrorCode.REFUSED_STREAM
            self.send(frames.rst_stream(stream_id, code))
            return
        stream = Http2Stream(self, stream_id, self._stream_window)
        stream.is_remote_open = not ended
        self.streams[stream_id] = stream
        stream.receiver = self._accept(stream, fields)
        if ended and stream.receiver is not None:
            stream.receiver.data_received(b"", True)

    def _window_update(self, stream_id: int, payload: bytes) -> None:
        self._expect(payload, 4, True)
        increment = frames.read_u32(payload)[0] & 0x7FFFFFFF
        if increment < _SMALL_INCREMENT:
            self._count_idle_frames()
        if not stream_id:
            self.window += increment
            if not increment or self.window > frames.MAX_WINDOW:
                raise ConnectionEnded(ErrorCode.FLOW_CONTROL_ERROR, "an impossible window")
            self._pump_all()
            return
        waiting = self.streams.get(stream_id)
        if waiting is None:
            return
        if not increment:
            raise ConnectionEnded(ErrorCode.FLOW_CONTROL_ERROR, "an impossible window of a stream")
        self._open_window(waiting, increment)

    def _pump_all(self) -> None:
        """In turn, as long as the connection takes anything; who isn't done then waits behind the others."""
        while self.blocked and self.window > 0 and self.is_writable:
            self.blocked.pop(next(iter(self.blocked))).pump()

    def _settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id or len(payload) % 6:
            raise ConnectionEnded(ErrorCode.FRAME_SIZE_ERROR, "a SETTINGS frame that can't be read")
        if flags & frames.ACK:
            return
        self._count_idle_frames()
        stream_window = self._stream_window
        for key, value in frames.read_setting(payload):
            if key == frames.SETTING_INITIAL_WINDOW_SIZE:
                if value > frames.MAX_WINDOW:
                    raise ConnectionEnded(ErrorCode.FLOW_CONTROL_ERROR, "an impossible window")
                stream_window = value
            elif key == frames.SETTING_MAX_FRAME_SIZE:
                if not frames.DEFAULT_FRAME_SIZE <= value <= frames.LARGEST_FRAME_SIZE:
                    raise ConnectionEnded(ErrorCode.PROTOCOL_ERROR, "an impossible size of frames")
                self.frame_size = min(value, _FRAME_SIZE)
            elif key == frames.SETTING_HEADER_TABLE_SIZE and value < TABLE_SIZE:
                self._must_shrink_table = True
        # Before anything is sent that the peer takes by its new settings alone.
        self.send(frames.SETTINGS_ACK)
        if stream_window != self._stream_window:
            self._change_windows(stream_window)

    def _change_windows(self, size: int) -> None:
        """Streams begin with one of so many bytes, and those that there are get the difference."""
        self._count_idle_frames(len(self.streams) // _WINDOWS_OF_FRAME)
        change = size - self._stream_window
        self._stream_window = size
        for stream in list(self.streams.values()):
            self._open_window(stream, change)

    @staticmethod
    def _open_window(stream: Http2Stream, increment: int) -> None:
        stream.window += increment
        if stream.window > frames.MAX_WINDOW:
            raise ConnectionEnded(ErrorCode.FLOW_CONTROL_ERROR, "an impossible window of a stream")
        stream.pump()

    @staticmethod
    def _expect(payload: bytes, length: int, has_right_stream: bool) -> None:
        if len(payload) != length:
            raise ConnectionEnded(ErrorCode.FRAME_SIZE_ERROR, "a frame of the wrong length")
        if not has_right_stream:
            raise ConnectionEnded(ErrorCode.PROTOCOL_ERROR, "a frame of the wrong stream")

    def _count_idle_frames(self, count: int = 1) -> None:
        """Frames that cost their peer nothing: so many, and no more."""
        if not self.idle_frames.spend(count, self.last_read):
            raise ConnectionEnded(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that ask for nothing")

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
        if not out or self._transport is None:
            return
        self._transport.write(b"".join(out))

    def header_block(self, block: bytes) -> bytes:
        """A block as it must be sent now."""
        if self._must_shrink_table:
            self._must_shrink_table = False
            return SHRUNK_TABLE + block
        return block

    def local_end(self, stream: Http2Stream) -> None:
        """A stream was answered; what its peer still sends on it is thrown away."""
        if stream.is_remote_open:
            stream.is_remote_open = False
            self.send(frames.rst_stream(stream.stream_id, ErrorCode.NO_ERROR))
        self.streams.pop(stream.stream_id, None)
        if self._is_ending and not self.streams:
            self._flush()
            self._close()

    def ask(self) -> None:
        """Sends a ping, whose answer shows that the peer is there."""
        self.is_asked = True
        self.send(frames.ping(b"gantrymq"))

    def end(self) -> None:
        """Takes no more streams, and closes when those that there are have ended."""
        if not self._is_ending:
            self.send(frames.goaway(self._last_stream_id, ErrorCode.NO_ERROR))
            self._is_ending = True
            for stream in list(self.streams.values()):
                if stream.receiver is not None:
                    stream.receiver.server_stops()
            if not self.streams:
                self._flush()
                self._close()

    def _end(self, code: ErrorCode, reason: str) -> None:
        self.send(frames.goaway(self._last_stream_id, code, reason))
        self._is_over = True
        self._flush()
        self._close()

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def takes_nothing(self) -> None:
        log.warning("closing the HTTP/2 connection with %s, which asks and takes no answers", self.peer)
        self.abort()

    @property
    def is_closing(self) -> bool:
        """It closes as soon as its peer has taken what was sent, which some never do."""
        return self._is_ending or self._is_over

    def abort(self) -> None:
        """Closes at once."""
        self._is_over = True
        if self._transport is not None:
            self._transport.abort()


def _unpadded(payload: bytes, flags: int) -> bytes:
    if not flags & frames.PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ConnectionEnded(ErrorCode.PROTOCOL_ERROR, "a frame with more padding than bytes")
    return payload[1 : len(payload) - payload[0]]


def _name(address: tuple[str, int] | None) -> str:
    return format_address(address[0], address[1]) if address else "?"
