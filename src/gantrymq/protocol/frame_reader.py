"""FrameReader: fed the bytes of one connection, yields its commands. Knows no socket.

Only whole frames are looked at. The bytes of an unfinished frame gather in one growing buffer, so that neither a
frame of 16 MiB in small pieces nor one byte at a time costs more than its size; at most one frame and one read
are held. The body of a large frame gathers apart from its header, and is put together once.

Who serves many connections asks each reader what it holds (`frame_length`, `held_bytes`), and reads on where there is
room: see `remoting/unfinished_frames.py`.
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
#: Of a binary header, up to the length of its ext fields if there is no remark.
_FIXED = Struct(">hBhiiii")
_FIXED_LENGTH = _FIXED.size
_unpack_fixed = _FIXED.unpack_from
_decode_binary = binary_header.decode
_decode_json = json_header.decode

#: What a header's decoder gives.
_Fields = tuple[int, int, int, int, int, str | None, bytes]

#: From this length on a body's pieces are kept as they come. A body of 1 MiB then takes 30 us instead of 73, and of
#: 2 MiB 60 instead of 1500, as such a buffer takes new pages each time that it grows.
LARGE_FRAME = 64 * 1024
#: Shorter pieces are put together: each one that is kept costs some memory besides its bytes.
SMALL_PIECE = 4 * 1024
#: A longer header is none of RocketMQ's, where what is long is a body; Java takes any. Headers are read in one step,
#: 4 MiB in 2 ms.
MAX_HEADER_LENGTH = 4 * 1024 * 1024


class Room(Protocol):
    """Memory that is written to through its buffer, and becomes bytes without a copy."""

    def __buffer__(self, flags: int, /) -> memoryview: ...
    def finish(self) -> bytes: ...


#: Makes one of so many bytes.
MakeRoom = Callable[[int], Room]


class FrameReader:
    """One connection's decoder. After a FrameError or HeaderError the stream can't be trusted: close it.

    With `make_room` the bodies of large frames are put together in such rooms: all of a body's memory is taken when its
    header has come, so the peer is one that is trusted. Who receives the bytes may put them there itself (`room`).
    """

    def __init__(self, max_frame_length: int = MAX_FRAME_LENGTH, make_room: MakeRoom | None = None) -> None:
        self._max_frame_length = max_frame_length
        self._make_room = make_room
        self._held = bytearray()
        self._wanted = 8
        self._large: _LargeFrame | _FrameInRoom | None = None
        #: How long the frame under way is, as far as that is known: 8 bytes say so. 0 between frames.
        self.frame_length = 0
        #: Grows with each frame that a read left unfinished: two answers of `held_bytes` may be those of two frames.
        self.frame_number = 0

    def feed(self, data: bytes) -> Iterator[RemotingCommand]:
        """The commands that `data` completes, in order. Exhaust the iterator before feeding again.

        Raises FrameError for an impossible length or encoding and HeaderError for an unreadable header, after the
        commands before it were yielded.
        """
        pos = 0
        if self._held:
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
                # Here alone: a frame that is complete at once is no longer than one read.
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
                    # A send's or its answer's: 0.25 us less than by way of `binary_header.decode`.
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
                    if self._make_room is None
                    else _FrameInRoom(fields, serialize_type, frame_end - body_start, self._make_room)
                )
                # A view keeps all of the read.
                self._large.take(memoryview(data)[body_start:] if 2 * (end - body_start) > end else data[body_start:])
                self.frame_length = frame_end - pos
                self.frame_number += 1
                return
            pos = frame_end
            yield RemotingCommand(*fields, data[body_start:pos], serialize_type)
        if pos < end:
            self._held += data[pos:] if pos else data
            self._wanted = wanted
            self.frame_length = frame_length
            self.frame_number += 1

    def joined(self, data: bytes) -> bytes:
        """What is held of a frame that isn't large, and `data` behind it; nothing until `feed` could read on there.

        What comes of it is to be fed, or at least what begins at one of its frames.
        """
        if not self._held:
            return data
        self._held += data
        if len(self._held) < self._wanted:
            return b""
        joined = bytes(self._held)
        self._held = bytearray()
        self.frame_length = 0
        return joined

    def room(self) -> memoryview | None:
        """Where the next bytes may be put: the rest of a large body; None between frames, and without `make_room`."""
        return self._large.rest if isinstance(self._large, _FrameInRoom) else None

    def filled(self, count: int) -> Iterator[RemotingCommand]:
        """So many bytes were put into `room`; the command that they complete, if they do."""
        large = self._large
        assert isinstance(large, _FrameInRoom), "there is a room"
        large.rest = large.rest[count:]
        if not large.missing:
            self._large = None
            self.frame_length = 0
            yield large.command()

    def ends_large(self, count: int) -> bool:
        """Whether so many bytes more complete a large frame, to deal with which takes a while."""
        return self._large is not None and count >= self._large.missing

    def clear(self) -> None:
        """Forgets the frame under way: nothing follows."""
        self._held = bytearray()
        self._large = None
        self.frame_length = 0

    @property
    def held_bytes(self) -> int:
        """Bytes of an unfinished frame, without a header that was read already."""
        return len(self._held) + (self._large.held_bytes if self._large is not None else 0)


class _LargeFrame:
    """A frame whose header was read, and what has come of its body."""

    def __init__(self, fields: _Fields, serialize_type: int, body_length: int) -> None:
        self._fields = fields
        self._serialize_type = serialize_type
        self._pieces: list[bytes | memoryview | bytearray] = []
        self.held_bytes = 0
        self.missing = body_length

    def take(self, data: bytes | memoryview) -> int:
        """Takes what belongs to this frame; how many bytes that were."""
        taken = min(len(data), self.missing)
        piece = data if taken == len(data) else memoryview(data)[:taken]
        if taken >= SMALL_PIECE:
            self._pieces.append(piece)
        elif self._pieces and isinstance(last := self._pieces[-1], bytearray):
            last += piece
        else:
            self._pieces.append(bytearray(piece))
        self.held_bytes += taken
        self.missing -= taken
        return taken

    def command(self) -> RemotingCommand:
        return RemotingCommand(*self._fields, b"".join(self._pieces), self._serialize_type)


class _FrameInRoom:
    """A frame whose header was read, and whose body comes into a room."""

    def __init__(self, fields: _Fields, serialize_type: int, body_length: int, make_room: MakeRoom) -> None:
        self._fields = fields
        self._serialize_type = serialize_type
        self._body_length = body_length
        self._room = make_room(body_length)
        self.rest = memoryview(self._room)

    @property
    def missing(self) -> int:
        return len(self.rest)

    @property
    def held_bytes(self) -> int:
        return self._body_length - len(self.rest)

    def take(self, data: bytes | memoryview) -> int:
        """Copies what belongs to this frame; how many bytes that were."""
        taken = min(len(data), len(self.rest))
        self.rest[:taken] = memoryview(data)[:taken]
        self.rest = self.rest[taken:]
        return taken

    def command(self) -> RemotingCommand:
        return RemotingCommand(*self._fields, self._room.finish(), self._serialize_type)
