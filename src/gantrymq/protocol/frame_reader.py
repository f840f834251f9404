"""FrameReader: fed the bytes of one connection, yields its commands. Knows no socket.

Only whole frames are looked at. The bytes of an unfinished frame gather in one growing buffer, so that neither a
frame of 16 MiB in small pieces nor one byte at a time costs more than its size; at most one frame and one read
are held.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from gantrymq.errors import FrameError
from gantrymq.protocol import binary_header, json_header
from gantrymq.protocol.command import MAX_FRAME_LENGTH, RemotingCommand

_PREFIX = Struct(">iI")
_unpack_prefix = _PREFIX.unpack_from
_decode_binary = binary_header.decode
_decode_json = json_header.decode


class FrameReader:
    """One connection's decoder. After a FrameError or HeaderError the stream can't be trusted: close it."""

    def __init__(self, max_frame_length: int = MAX_FRAME_LENGTH) -> None:
        self._max_frame_length = max_frame_length
        self._held = bytearray()
        self._wanted = 8

    def feed(self, data: bytes) -> Iterator[RemotingCommand]:
        """The commands that `data` completes, in order. Exhaust the iterator before feeding again.

        Raises FrameError for an impossible length or encoding and HeaderError for an unreadable header, after the
        commands before it were yielded.
        """
        if self._held:
            self._held += data
            if len(self._held) < self._wanted:
                return
            data = bytes(self._held)
            self._held = bytearray()
        pos, end = 0, len(data)
        wanted = 8
        while end - pos >= 8:
            length, header_word = _unpack_prefix(data, pos)
            if not 4 <= length <= self._max_frame_length:
                raise FrameError(
                    f"frame of {length} bytes: a frame has 4 to {self._max_frame_length} (is the peer a RocketMQ one?)"
                )
            if end - pos < 4 + length:
                wanted = 4 + length
                break
            header_start = pos + 8
            body_start = header_start + (header_word & 0xFFFFFF)
            pos += 4 + length
            if body_start > pos:
                raise FrameError(f"header of {header_word & 0xFFFFFF} bytes in a frame of {length}")
            serialize_type = header_word >> 24
            header = data[header_start:body_start]
            if serialize_type == 1:
                fields = _decode_binary(header)
            elif serialize_type == 0:
                fields = _decode_json(header)
            else:
                raise FrameError(f"header encoding {serialize_type}: only 0 (JSON) and 1 (ROCKETMQ) are known")
            yield RemotingCommand(*fields, data[body_start:pos], serialize_type)
        if pos < end:
            self._held += data[pos:] if pos else data
            self._wanted = wanted

    @property
    def held_bytes(self) -> int:
        """Bytes of an unfinished frame."""
        return len(self._held)
