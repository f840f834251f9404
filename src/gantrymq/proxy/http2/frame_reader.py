"""Processes the frames of a client by the rules of RFC 9113, 5 to 8.

A violation that concerns one stream resets that stream. Any other violation ends the connection (`ConnectionEnded`).
Ended streams are removed. `_skipped` and `_reset` keep the ids of streams that the rules still need.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gantrymq.logs import peer_log
from gantrymq.proxy.http2 import frames
from gantrymq.proxy.http2.frames import ConnectionEnded, ErrorCode
from gantrymq.proxy.http2.hpack import HpackDecoder, HpackError, MalformedField, TooManyHeaders
from gantrymq.proxy.http2.request_fields import Fields, MalformedRequest, check_request, check_trailers
from gantrymq.proxy.http2.stream import Http2Stream, Receiver
from gantrymq.proxy.http2.time_quota import (
    BYTE_US,
    EMPTY_CALL_US,
    FIELD_US,
    FRAME_US,
    HEADERS_US,
    SETTING_US,
    SMALL_BLOCK,
    SMALL_DATA,
    USUAL_FIELDS,
    WINDOW_US,
)
from gantrymq.system.clock import monotonic

if TYPE_CHECKING:
    from gantrymq.proxy.http2.connection import Http2Connection

log = peer_log(__name__)

#: The window of the whole connection, bytes. The receiver of a stream extends the stream's window beyond 64 KiB.
CONNECTION_WINDOW = 8 * 1024 * 1024
#: Largest frame, bytes: the default of the RFC, as in gRPC's own core. Larger frames would save only 1 us per 16 KiB.
_FRAME_SIZE = frames.DEFAULT_FRAME_SIZE
#: Limit of a request's fields, and of the encoded block, in bytes. Each field counts 32 more (RFC 9113, 6.5.2). The
#: limit of Java's server is 8 KiB.
MOST_FIELDS = 16 * 1024
#: Largest number of remembered streams that this side has reset. Frames of the peer can still arrive on them.
_MOST_RESET = 128

#: Accepts a new stream with its fields. Returns the receiver of its events, or None if the response is already sent.
Accept = Callable[[Http2Stream, Fields], "Receiver | None"]


class FrameReader:
    """Processes the frames of one connection."""

    def __init__(self, connection: Http2Connection, accept: Accept, most_streams: int) -> None:
        self._connection = connection
        self._accept = accept
        self._most_streams = most_streams
        self._streams = connection.streams
        self._quota = connection.quota
        self._decoder = HpackDecoder()
        #: True after the preface has arrived.
        self.began = False
        self.last_stream_id = 0
        #: Range of stream ids that the peer has skipped.
        self._skipped = (0, 0)
        self._reset: dict[int, None] = {}
        self._unacknowledged = 0
        #: An incomplete header block: stream, flags, fragments.
        self._headers: tuple[int, int, bytearray] | None = None

    @property
    def block_bytes(self) -> int | None:
        """The size of an incomplete header block; None if there is none."""
        return None if self._headers is None else len(self._headers[2])

    def read(self, data: bytes, slice_end: float) -> bytes:
        """Processes complete frames until `slice_end` (monotonic, s). Returns the rest. Raises ConnectionEnded."""
        at = 0
        if not self.began:
            if not self._is_preface(data):
                return data
            at = len(frames.PREFACE)
        end = len(data)
        while end - at >= frames.HEADER_LENGTH and not self._connection.is_over:
            length, flags, stream_id = frames.read_header(data, at)
            kind, length = length & 0xFF, length >> 8
            if length > _FRAME_SIZE:
                raise ConnectionEnded(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            begin = at + frames.HEADER_LENGTH
            if end - begin < length:
                break
            at = begin + length
            self._frame(kind, flags, stream_id & 0x7FFFFFFF, data[begin:at])
            if monotonic() > slice_end:
                break
        return data[at:]

    def _is_preface(self, data: bytes) -> bool:
        """Returns True if the preface and the header of the first frame have arrived (RFC 9113, 3.4).

        Raises ConnectionEnded if they are invalid. The first frame must be SETTINGS.
        """
        preface = frames.PREFACE
        if not preface.startswith(data[: len(preface)]):
            raise ConnectionEnded(ErrorCode.PROTOCOL_ERROR, "it doesn't speak HTTP/2")
        if len(data) < len(preface) + frames.HEADER_LENGTH:
            return False
        kind, flags, _ = frames.read_header(data, len(preface))
        if kind & 0xFF != frames.SETTINGS or flags & frames.ACK:
            raise ConnectionEnded(ErrorCode.PROTOCOL_ERROR, "its first frame is not SETTINGS")
        self.began = True
        return True

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """Processes one frame, and charges frames that belong to no call to the quota. Raises ConnectionEnded."""
        if self._headers is not None and (kind != frames.CONTINUATION or stream_id != self._headers[0]):
            raise ConnectionEnded(ErrorCode.PROTOCOL_ERROR, "a header block isn't finished")
        if kind == frames.DATA:
            self._data(flags, stream_id, payload)
            return
        if kind == frames.HEADERS:
            self._headers_frame(flags, stream_id, payload)
            return
        self._quota.spent_us += FRAME_US
        if kind == frames.WINDOW_UPDATE:
            self._window_update(stream_id, payload)
        elif kind == frames.CONTINUATION:
            self._continuation(flags, payload)
        elif kind == frames.RST_STREAM:
            self._expect(payload, 4, 0 < stream_id <= self.last_stream_id)
            stream = self._streams.pop(stream_id, None)
            if stream is not None:
                self._quota.spent_us += EMPTY_CALL_US
                stream.lost()
        elif kind == frames.SETTINGS:
            self._settings(flags, stream_id, payload)
        elif kind == frames.PING:
            self._expect(payload, 8, not stream_id)
            if not flags & frames.ACK:
                self._connection.send(frames.ping(payload, ack=True))
        elif kind == frames.PRIORITY:
            self._expect(payload, 5, stream_id > 0)
            _check_dependency(payload, stream_id)
        elif kind == frames.GOAWAY:
            if stream_id:
                raise ConnectionEnded(ErrorCode.PROTOCOL_ERROR, "a GOAWAY frame of a stream")
            if len(payload) < 8:
                raise ConnectionEnded(ErrorCode.FRAME_SIZE_ERROR, f"a GOAWAY frame of {len(payload)} bytes")
        elif kind == frames.PUSH_PROMISE:
            raise ConnectionEnded(ErrorCode.PROTOCOL_ERROR, "a client doesn't push")
        # Unknown types are ignored (RFC 9113, 4.1).

    def _data(self, flags: int, stream_id: int, payload: bytes) -> None:
        """Passes data to the receiver of its stream. Opens the connection's window again after a quarter of it."""
        size = len(payload)
        if not stream_id & 1 or stream_id > self.last_stream_id:
            raise ConnectionEnded(ErrorCode.PROTOCOL_ERROR, f"data for stream {stream_id}, which didn't begin")
        self._unacknowledged += size
        if self._unacknowledged > CONNECTION_WINDOW:
            raise ConnectionEnded(ErrorCode.FLOW_CONTROL_ERROR, "more data than the connection's window allows")
        if self._unacknowledged >= CONNECTION_WINDOW // 4:
            self._connection.send(frames.window_update(0, self._unacknowledged))
            self._unacknowledged = 0
        data = _unpadded(payload, flags)
        ended = bool(flags & frames.END_STREAM)
        stream = self._streams.get(stream_id)
        if stream is None or not stream.is_remote_open:
            self._quota.spent_us += FRAME_US
            if stream_id not in self._reset:
                self._reset_stream(stream_id, ErrorCode.STREAM_CLOSED)
            return
        stream.receive_window -= size
        if stream.receive_window < 0:
            raise ConnectionEnded(ErrorCode.FLOW_CONTROL_ERROR, "more data than a stream's window allows")
        if not ended:
            if len(data) < SMALL_DATA:
                self._quota.spent_us += FRAME_US
            if size > len(data):
                stream.let_in(size - len(data))
        if stream.missing_bytes is not None:
            stream.missing_bytes -= len(data)
            if stream.missing_bytes < 0 or (ended and stream.missing_bytes):
                self._malformed(stream_id, "its content-length doesn't match its data")
                return
        if ended:
            stream.is_remote_open = False
        if stream.receiver is not None:
            stream.receiver.data_received(data, ended)
        if stream.is_closed and ended:
            self._streams.pop(stream_id, None)

    def _headers_frame(self, flags: int, stream_id: int, payload: bytes) -> None:
        """Processes the start of a header block. Unless the block is complete, CONTINUATION frames follow."""
        if not stream_id & 1:
            raise ConnectionEnded(ErrorCode.PROTOCOL_ERROR, f"a client has no stream {stream_id}")
        block = _unpadded(payload, flags)
        if flags & frames.WITH_PRIORITY:
            if len(block) < 5:
                raise ConnectionEnded(ErrorCode.FRAME_SIZE_ERROR, "a HEADERS frame without its priority")
            _check_dependency(block, stream_id)
            block = block[5:]
        if flags & frames.END_HEADERS:
            self._header_block(stream_id, flags, block)
        else:
            self._quota.spent_us += FRAME_US
            self._headers = stream_id, flags, bytearray(block)

    def _continuation(self, flags: int, payload: bytes) -> None:
        if self._headers is None:
            raise ConnectionEnded(ErrorCode.PROTOCOL_ERROR, "a CONTINUATION frame without a header block")
        stream_id, first_flags, block = self._headers
        block += payload
        if len(block) > MOST_FIELDS:
            raise ConnectionEnded(ErrorCode.ENHANCE_YOUR_CALM, f"a header block of more than {MOST_FIELDS} bytes")
        if flags & frames.END_HEADERS:
            self._headers = None
            self._header_block(stream_id, first_flags, bytes(block))

    def _header_block(self, stream_id: int, flags: int, block: bytes) -> None:
        """Decodes a complete header block, which starts a stream or contains the trailers of an open stream."""
        try:
            fields = self._decoder.decode(block, MOST_FIELDS)
        except TooManyHeaders as e:
            raise ConnectionEnded(ErrorCode.ENHANCE_YOUR_CALM, f"fields of more than {MOST_FIELDS} bytes") from e
        except MalformedField as e:
            # End the whole connection, because the invalid field is now in the decoder's table.
            raise ConnectionEnded(ErrorCode.PROTOCOL_ERROR, str(e)) from e
        except HpackError as e:
            raise ConnectionEnded(ErrorCode.COMPRESSION_ERROR, str(e)) from e
        cost_us = HEADERS_US + len(fields) * FIELD_US
        if len(block) > SMALL_BLOCK or len(fields) > USUAL_FIELDS:
            self._quota.spent_us += len(fields) * FIELD_US + len(block) * BYTE_US
        ended = bool(flags & frames.END_STREAM)
        if stream_id <= self.last_stream_id:
            self._quota.spent_us += cost_us
            self._trailers(stream_id, fields, ended)
            return
        if stream_id > self.last_stream_id + 2:
            self._skipped = self.last_stream_id, stream_id
        self.last_stream_id = stream_id
        if self._connection.is_ending or len(self._streams) >= self._most_streams:
            self._quota.spent_us += cost_us
            self._reset_stream(stream_id, ErrorCode.REFUSED_STREAM)
            return
        try:
            length = check_request(fields)
        except MalformedRequest as e:
            self._malformed(stream_id, str(e))
            return
        if ended and length:
            self._malformed(stream_id, f"no data, and a content-length of {length}")
            return
        stream = Http2Stream(self._connection, stream_id, self._connection.settings.stream_window)
        stream.is_remote_open = not ended
        stream.missing_bytes = length
        self._streams[stream_id] = stream
        stream.receiver = self._accept(stream, fields)
        if ended and stream.receiver is not None:
            stream.receiver.data_received(b"", True)

    def _trailers(self, stream_id: int, fields: Fields, ended: bool) -> None:
        """Processes the second header block of a stream. In gRPC, trailers only mark the end of the request."""
        stream = self._streams.get(stream_id)
        if stream is None:
            if stream_id in self._reset:
                return
            is_skipped = self._skipped[0] < stream_id < self._skipped[1]
            code = ErrorCode.PROTOCOL_ERROR if is_skipped else ErrorCode.STREAM_CLOSED
            raise ConnectionEnded(code, f"a header block of stream {stream_id}, which has ended")
        if not stream.is_remote_open:
            self._reset_stream(stream_id, ErrorCode.STREAM_CLOSED)
            return
        try:
            check_trailers(fields)
        except MalformedRequest as e:
            self._malformed(stream_id, str(e))
            return
        if not ended or stream.missing_bytes:
            self._malformed(stream_id, "trailers that don't end the stream, or come before all data")
            return
        stream.is_remote_open = False
        if stream.receiver is not None:
            stream.receiver.data_received(b"", True)

    def _malformed(self, stream_id: int, reason: str) -> None:
        log.info("resetting a stream of %s: %s", self._connection.peer, reason)
        self._quota.spent_us += HEADERS_US
        self._reset_stream(stream_id, ErrorCode.PROTOCOL_ERROR)

    def _reset_stream(self, stream_id: int, code: ErrorCode) -> None:
        """Resets a stream after an error. Ignores frames that the peer has sent before it receives the reset."""
        self._connection.send(frames.rst_stream(stream_id, code))
        self.expect_late_frames(stream_id)
        stream = self._streams.pop(stream_id, None)
        if stream is not None:
            stream.lost()

    def expect_late_frames(self, stream_id: int) -> None:
        """Remembers a closed stream on which frames of the peer can still arrive."""
        if len(self._reset) >= _MOST_RESET:
            del self._reset[next(iter(self._reset))]
        self._reset[stream_id] = None

    def _window_update(self, stream_id: int, payload: bytes) -> None:
        """Opens the window of a stream or, with stream id 0, of the connection."""
        self._expect(payload, 4, stream_id <= self.last_stream_id)
        increment = frames.read_u32(payload)[0] & 0x7FFFFFFF
        if not stream_id:
            if not increment:
                raise ConnectionEnded(ErrorCode.PROTOCOL_ERROR, "a window update of 0 bytes")
            self._connection.window += increment
            if self._connection.window > frames.MAX_WINDOW:
                raise ConnectionEnded(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window is too large")
            self._connection.pump_all()
            return
        stream = self._streams.get(stream_id)
        if not increment:
            self._reset_stream(stream_id, ErrorCode.PROTOCOL_ERROR)
        elif stream is not None:
            stream.window += increment
            if stream.window > frames.MAX_WINDOW:
                self._reset_stream(stream_id, ErrorCode.FLOW_CONTROL_ERROR)
            else:
                stream.pump()

    def _settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        """Applies the peer's settings. A new window size applies to all open streams."""
        if stream_id:
            raise ConnectionEnded(ErrorCode.PROTOCOL_ERROR, "a SETTINGS frame of a stream")
        if len(payload) % 6 or (flags & frames.ACK and payload):
            raise ConnectionEnded(ErrorCode.FRAME_SIZE_ERROR, f"a SETTINGS frame of {len(payload)} bytes")
        if flags & frames.ACK:
            return
        self._quota.spent_us += len(payload) // 6 * SETTING_US
        former = self._connection.settings.stream_window
        self._connection.settings.update(payload)
        # The acknowledgement goes first, because the frames after it are valid only with the new settings.
        self._connection.send(frames.SETTINGS_ACK)
        change = self._connection.settings.stream_window - former
        if change:
            self._quota.spent_us += len(self._streams) * WINDOW_US
            for stream in list(self._streams.values()):
                stream.window += change
                if stream.window > frames.MAX_WINDOW:
                    raise ConnectionEnded(ErrorCode.FLOW_CONTROL_ERROR, "a stream's window is too large")
                stream.pump()

    @staticmethod
    def _expect(payload: bytes, length: int, has_right_stream: bool) -> None:
        if len(payload) != length:
            raise ConnectionEnded(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {len(payload)} bytes instead of {length}")
        if not has_right_stream:
            raise ConnectionEnded(ErrorCode.PROTOCOL_ERROR, "a frame of the wrong stream")


def _unpadded(payload: bytes, flags: int) -> bytes:
    if not flags & frames.PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ConnectionEnded(ErrorCode.PROTOCOL_ERROR, "a frame with more padding than bytes")
    return payload[1 : len(payload) - payload[0]]


def _check_dependency(priority: bytes, stream_id: int) -> None:
    """Raises an error if a stream depends on itself (RFC 7540). Priorities are otherwise ignored (RFC 9113, 5.3.2)."""
    if frames.read_u32(priority)[0] & 0x7FFFFFFF == stream_id:
        raise ConnectionEnded(ErrorCode.PROTOCOL_ERROR, f"stream {stream_id} depends on itself")
