"""Frames: what a master and its slaves send each other.

Java's: a slave sends int64, up to where it has the log; a master sends `int64 offset | int32 size | bytes` (12 bytes
before them), without bytes as a sign of life. Nothing of that has a checksum, says where the master's log begins and
ends, or tells one slave from another.

So a slave of ours begins with -1, then says what it asks Java's master for. To Java's master -1 means nothing: it is
the value that its own field has before the first report, and of what came in one read it looks at the last only. Our
master answers -1 with a greeting; from then on both send `int64 | int32 | int32 CRC32` (16 bytes). In a master's frames
these are offset and size, and the CRC is that of the 12 bytes and of what follows; in a slave's they are offset and
broker id.
Source: ha/DefaultHAConnection, ha/DefaultHAClient.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple
from zlib import crc32

from gantrymq.errors import FrameError
from gantrymq.protocol.record import Buffer
from gantrymq.replication.received import Received

#: A Java slave's buffer has 4 MiB, so no frame can be larger (`DefaultHAClient.READ_MAX_BUFFER_SIZE`).
MAX_FRAME = 4 * 1024 * 1024
#: What our slave says first, and the offset of a greeting.
GREETING = -1
#: -1 with another sign is no offset, bytes.
_LONGEST_LOG = 1 << 60
#: The form of checked frames; a greeting tells it, for versions to come.
VERSION = 1

_WORD = Struct(">q")
_HEADER = Struct(">qi")
_CRC = Struct(">I")
_CHECKED = Struct(">qiI")
#: First and last offset of the master's log, size of its files, VERSION.
_GREETED = Struct(">qqii")
_GREETING_WORD = _WORD.pack(GREETING)

HEADER_SIZE = _HEADER.size
CHECKED_HEADER_SIZE = _CHECKED.size
#: The most that fits into a frame of either kind.
MAX_BODY = MAX_FRAME - CHECKED_HEADER_SIZE


class Frame(NamedTuple):
    """What a master sent: bytes of its log from a physical offset on; none is a sign of life."""

    offset: int
    body: Buffer


class Greeting(NamedTuple):
    """What our master says of its log before anything else."""

    min_offset: int
    max_offset: int
    file_size: int
    version: int


class Report(NamedTuple):
    """What a slave sent: up to where it has the log; `broker_id` is -1 where a Java slave doesn't say."""

    offset: int
    broker_id: int


def encode_header(offset: int, body: bytes | memoryview, *, checked: bool) -> bytes:
    """What goes before the bytes of the log."""
    header = _HEADER.pack(offset, len(body))
    return header + _CRC.pack(crc32(body, crc32(header))) if checked else header


def encode_greeting(greeting: Greeting) -> bytes:
    body = _GREETED.pack(*greeting)
    return encode_header(GREETING, body, checked=True) + body


def encode_opening(offset: int) -> bytes:
    """What a slave of ours says first; `offset` is for Java's master."""
    return _GREETING_WORD + _WORD.pack(offset)


def is_opening_of_ours(opening: bytes) -> bool:
    """Whether these first bytes are those of a slave of ours, outside of controller mode."""
    return opening.startswith(_GREETING_WORD)


def encode_report(offset: int, broker_id: int, *, checked: bool) -> bytes:
    if not checked:
        return _WORD.pack(offset)
    words = _HEADER.pack(offset, broker_id)
    return words + _CRC.pack(crc32(words))


class FrameReader:
    """A master's frames out of the bytes that come; keeps no more than one and what came with its end.

    `checked` turns True with a greeting.
    """

    def __init__(self) -> None:
        self.checked = False
        self._received = Received()

    def feed(self, data: bytes) -> None:
        self._received.add(data)

    def next(self) -> Frame | Greeting | None:
        """The next whole frame, None until there is one. Raises FrameError for what can't be one."""
        received = self._received
        if len(received) < HEADER_SIZE:
            return None
        offset, size = _HEADER.unpack_from(*received.place)
        greeted = not self.checked and offset == GREETING
        start = CHECKED_HEADER_SIZE if self.checked or greeted else HEADER_SIZE
        if not 0 <= size <= MAX_FRAME - start:
            raise FrameError(f"a frame of {size} bytes at {offset}")
        if len(received) < start + size:
            return None
        frame = received.take(start + size)
        body = frame[start:]
        if start == CHECKED_HEADER_SIZE:
            (crc,) = _CRC.unpack_from(frame, HEADER_SIZE)
            if crc32(body, crc32(frame[:HEADER_SIZE])) != crc:
                raise FrameError(f"a frame of {size} bytes at {offset} has the wrong CRC")
        if not greeted:
            return Frame(offset, body)
        if size < _GREETED.size:
            raise FrameError(f"a greeting of {size} bytes")
        self.checked = True
        # A later version may say more.
        return Greeting._make(_GREETED.unpack_from(body))


class ReportReader:
    """A slave's reports out of the bytes that come; keeps less than 24 bytes."""

    def __init__(self) -> None:
        #: The slave is one of ours, and what it sends has checksums.
        self.checked = False
        self._is_first = True
        self._buffer = b""

    def feed(self, data: bytes) -> Report | None:
        """The last whole report that has come: it says more than those before it. Raises FrameError for rubbish."""
        data = self._buffer + data
        if self._is_first:
            if data[: _WORD.size] == _GREETING_WORD:
                self.checked = True
                if len(data) < 2 * _WORD.size:
                    self._buffer = data
                    return None
                # That was for Java's master.
                data = data[2 * _WORD.size :]
            elif len(data) >= _WORD.size:
                # One of ours whose -1 was damaged on the way must not be taken for Java's, which have no checksums.
                _offset(_WORD.unpack_from(data)[0])
            self._is_first = len(data) < _WORD.size and not self.checked
        size = _CHECKED.size if self.checked else _WORD.size
        whole = len(data) // size * size
        self._buffer = data[whole:]
        if not whole:
            return None
        if not self.checked:
            return Report(_offset(_WORD.unpack_from(data, whole - size)[0]), -1)
        offset, broker_id, crc = _CHECKED.unpack_from(data, whole - size)
        if crc32(data[whole - size : whole - _CRC.size]) != crc:
            raise FrameError("a report has the wrong CRC")
        return Report(not_negative(offset), not_negative(broker_id))


def _offset(number: int) -> int:
    """`number` of a Java slave's report. Raises FrameError."""
    if number > _LONGEST_LOG:
        raise FrameError(f"a report says {number}: no log is so long")
    return not_negative(number)


def not_negative(number: int) -> int:
    """`number` of a report. Raises FrameError."""
    if number < 0:
        raise FrameError(f"a report says {number}")
    return number
