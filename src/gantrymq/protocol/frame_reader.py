"""Splits the input of one connection into commands. No I/O.

Only complete frames are decoded. The bytes of an incomplete frame are collected in one growing buffer. The cost
therefore depends on the frame's size, not on the number of reads. At most one frame and the data of one read are
buffered. The parts of a large body are collected separately from the header, and joined once.

A server limits the incomplete frames of all connections by `frame_length` and `buffered_bytes` of each reader. See
`remoting/incomplete_frames.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Protocol

from gantrymq.errors import FrameError
from gantrymq.protocol import binary_header, json_header
from gantrymq.protocol.command import MAX_FRAME_LENGTH, RemotingCommand

_PREFIX = Struct(">iI")
_unpack_prefix = _PREFIX.unpack_from
#: A binary header up to the length of its ext fields, with an empty remark.
_FIXED = Struct(">hBhiiii")
_FIXED_LENGTH = _FIXED.size
_unpack_fixed = _FIXED.unpack_from
_decode_binary = binary_header.decode
_decode_json = json_header.decode

#: Result of a header decoder.
_Fields = tuple[int, int, int, int, int, str | None, bytes]

#: From this length on, the parts of a body are kept as received, in bytes. A growing buffer would get new memory pages
#: each time. With parts, 1 MiB takes 30 us instead of 73 us, and 2 MiB 60 us instead of 1500 us.
LARGE_FRAME = 64 * 1024
#: Shorter parts are joined, because each separate part needs additional memory.
SMALL_PIECE = 4 * 1024
#: Longest header, in bytes. RocketMQ sends long data in bodies. Java has no limit. A header is decoded in one step,
#: which takes 2 ms for 4 MiB.
MAX_HEADER_LENGTH = 4 * 1024 * 1024


class ReceiveBuffer(Protocol):
    """A writable buffer that becomes a bytes object without a copy."""

    def __buffer__(self, flags: int, /) -> memoryview: ...
    def finish(self) -> bytes: ...


#: Creates a buffer of the given size in bytes.
NewReceiveBuffer = Callable[[int], ReceiveBuffer]


class FrameReader:
    """The decoder of one connection. After a FrameError or HeaderError the stream is out of step: close the connection.

    With `new_buffer`, the body of a large frame is received into one buffer, into which the caller may write directly
    (`receive_buffer`). The buffer is allocated when the header arrives, so use this only for trusted peers.
    """

    def __init__(self, max_frame_length: int = MAX_FRAME_LENGTH, new_buffer: NewReceiveBuffer | None = None) -> None:
        self._max_frame_length = max_frame_length
        self._new_buffer = new_buffer
        self._buffered = bytearray()
        self._wanted = 8
        self._large: _LargeFrame | _BufferedFrame | None = None
        #: Length of the current incomplete frame, or 8 while its length is unknown. 0 between frames.
        self.frame_length = 0
        #: Counts the frames that were incomplete after a read, so that callers can distinguish two such frames.
        self.frame_number = 0

    def feed(self, data: bytes) -> Iterator[RemotingCommand]:
        """Yields the commands that `data` completes, in order. Exhaust the iterator before the next call.

        Raises FrameError for an invalid length or encoding, and HeaderError for an invalid header, after all earlier
        commands.
        """
        pos = 0
        if self._buffered:
            data = self.joined(data)
            if not data:
                return
        elif self._large is not None:
            large = self._large
            pos = large.take(data)
            if large.missing:
                return
            self._large = None
            self.frame_length = 0
            yield large.command()
        end = len(data)
        wanted = frame_length = 8
        while end - pos >= 8:
            length, header_word = _unpack_prefix(data, pos)
            if not 4 <= length <= self._max_frame_length:
                raise FrameError(
                    f"frame of {length} bytes: a frame has 4 to {self._max_frame_length} (is the peer a RocketMQ one?)"
                )
            header_start = pos + 8
            body_start = header_start + (header_word & 0xFFFFFF)
            frame_end = pos + 4 + length
            if body_start > frame_end:
                raise FrameError(f"header of {header_word & 0xFFFFFF} bytes in a frame of {length}")
            if end < frame_end and (length < LARGE_FRAME or end < body_start):
                # Only incomplete frames need this limit. The size of a read limits all others.
                if body_start - header_start > MAX_HEADER_LENGTH:
                    raise FrameError(
                        f"header of {body_start - header_start} bytes: at most {MAX_HEADER_LENGTH} are read"
                    )
                wanted = (frame_end if length < LARGE_FRAME else body_start) - pos
                frame_length = frame_end - pos
                break
            serialize_type = header_word >> 24
            if serialize_type == 1 and end >= frame_end and body_start - header_start >= _FIXED_LENGTH:
                code, language, version, opaque, flag, remark_length, ext_length = _unpack_fixed(data, header_start)
                ext_start = header_start + _FIXED_LENGTH
                if not remark_length and ext_start + ext_length == body_start:
                    # Fast path for sends and their responses: 0.25 us less than with `binary_header.decode`.
                    pos = frame_end
                    ext, body = data[ext_start:body_start], data[body_start:pos]
                    yield RemotingCommand(code, language, version, opaque, flag, None, ext, body, 1)
                    continue
            header = data[header_start:body_start]
            if serialize_type == 1:
                fields = _decode_binary(header)
            elif serialize_type == 0:
                fields = _decode_json(header)
            else:
                raise FrameError(f"header encoding {serialize_type}: only 0 (JSON) and 1 (ROCKETMQ) are known")
            if end < frame_end:
                self._large = (
                    _LargeFrame(fields, serialize_type, frame_end - body_start)
                    if self._new_buffer is None
                    else _BufferedFrame(fields, serialize_type, frame_end - body_start, self._new_buffer)
                )
                # A view would keep all data of the read in memory.
                self._large.take(memoryview(data)[body_start:] if 2 * (end - body_start) > end else data[body_start:])
                self.frame_length = frame_end - pos
                self.frame_number += 1
                return
            pos = frame_end
            yield RemotingCommand(*fields, data[body_start:pos], serialize_type)
        if pos < end:
            self._buffered += data[pos:] if pos else data
            self._wanted = wanted
            self.frame_length = frame_length
            self.frame_number += 1

    def joined(self, data: bytes) -> bytes:
        """Returns the buffered bytes of a small frame followed by `data`. Returns b"" if `feed` still needs more bytes.

        The caller must then pass the result to `feed`, from the start of any of its frames on.
        """
        if not self._buffered:
            return data
        self._buffered += data
        if len(self._buffered) < self._wanted:
            return b""
        joined = bytes(self._buffered)
        self._buffered = bytearray()
        self.frame_length = 0
        return joined

    def receive_buffer(self) -> memoryview | None:
        """Returns the buffer for the rest of a large body. None between frames and without `new_buffer`."""
        return self._large.rest if isinstance(self._large, _BufferedFrame) else None

    def filled(self, count: int) -> Iterator[RemotingCommand]:
        """Handles `count` bytes that were written to `receive_buffer`. Yields the command when it is complete."""
        large = self._large
        assert isinstance(large, _BufferedFrame), "there is a buffer"
        large.rest = large.rest[count:]
        if not large.missing:
            self._large = None
            self.frame_length = 0
            yield large.command()

    def ends_large(self, count: int) -> bool:
        """Returns true if `count` more bytes complete a large frame. Handling such a frame takes longer."""
        return self._large is not None and count >= self._large.missing

    def clear(self) -> None:
        """Discards the incomplete frame, because no more input will arrive."""
        self._buffered = bytearray()
        self._large = None
        self.frame_length = 0

    @property
    def buffered_bytes(self) -> int:
        """Buffered bytes of an incomplete frame, without a header that is already decoded."""
        return len(self._buffered) + (self._large.buffered_bytes if self._large is not None else 0)


class _LargeFrame:
    """A frame with a decoded header and an incomplete body."""

    def __init__(self, fields: _Fields, serialize_type: int, body_length: int) -> None:
        self._fields = fields
        self._serialize_type = serialize_type
        self._pieces: list[bytes | memoryview | bytearray] = []
        self.buffered_bytes = 0
        self.missing = body_length

    def take(self, data: bytes | memoryview) -> int:
        """Takes the bytes of `data` that belong to this frame. Returns their number."""
        taken = min(len(data), self.missing)
        piece = data if taken == len(data) else memoryview(data)[:taken]
        if taken >= SMALL_PIECE:
            self._pieces.append(piece)
        elif self._pieces and isinstance(last := self._pieces[-1], bytearray):
            last += piece
        else:
            self._pieces.append(bytearray(piece))
        self.buffered_bytes += taken
        self.missing -= taken
        return taken

    def command(self) -> RemotingCommand:
        return RemotingCommand(*self._fields, b"".join(self._pieces), self._serialize_type)


class _BufferedFrame:
    """A frame with a decoded header, whose body is received into one buffer."""

    def __init__(self, fields: _Fields, serialize_type: int, body_length: int, new_buffer: NewReceiveBuffer) -> None:
        self._fields = fields
        self._serialize_type = serialize_type
        self._body_length = body_length
        self._buffer = new_buffer(body_length)
        self.rest = memoryview(self._buffer)

    @property
    def missing(self) -> int:
        return len(self.rest)

    @property
    def buffered_bytes(self) -> int:
        return self._body_length - len(self.rest)

    def take(self, data: bytes | memoryview) -> int:
        """Copies the bytes of `data` that belong to this frame. Returns their number."""
        taken = min(len(data), len(self.rest))
        self.rest[:taken] = memoryview(data)[:taken]
        self.rest = self.rest[taken:]
        return taken

    def command(self) -> RemotingCommand:
        return RemotingCommand(*self._fields, self._buffer.finish(), self._serialize_type)
