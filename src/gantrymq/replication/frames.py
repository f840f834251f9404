"""Encodes and decodes the frames of a master and its slaves.

In Java's protocol, a slave sends an int64: the end of its log. A master sends `int64 offset | int32 size | bytes`,
where a heartbeat has no bytes. The frames contain no checksums, no bounds of the master's log and no id of the slave.

A GantryMQ slave therefore first sends -1, then the offset for a Java master. A Java master ignores the -1: -1 is the
field's initial value, and Java uses only the last value of each read. A GantryMQ master responds to -1 with a greeting.
From then on both sides send `int64 | int32 | int32 CRC32` (16 bytes). For a master these are offset, size and the CRC
of the first 12 bytes and the data. For a slave they are offset, broker id and the CRC of both.
Source: ha/DefaultHAConnection, ha/DefaultHAClient.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple
from zlib import crc32

from gantrymq.errors import FrameError
from gantrymq.protocol.record import Buffer
from gantrymq.replication.receive_buffer import ReceiveBuffer

#: Largest frame: a Java slave's buffer has 4 MiB (`DefaultHAClient.READ_MAX_BUFFER_SIZE`).
MAX_FRAME = 4 * 1024 * 1024
#: The first value that a GantryMQ slave sends. It is also the offset in a greeting.
GREETING = -1
#: A larger offset is invalid, in bytes. It may be a -1 that was damaged in transit.
_LONGEST_LOG = 1 << 60
#: Version of the format with checksums. The greeting contains it, so that later versions can differ.
VERSION = 1

_WORD = Struct(">q")
_HEADER = Struct(">qi")
_CRC = Struct(">I")
_CHECKED = Struct(">qiI")
#: First and last offset of the master's log, the size of its files, VERSION.
_GREETED = Struct(">qqii")
_GREETING_WORD = _WORD.pack(GREETING)

HEADER_SIZE = _HEADER.size
CHECKED_HEADER_SIZE = _CHECKED.size
#: Maximum number of log bytes in a frame of either format.
MAX_BODY = MAX_FRAME - CHECKED_HEADER_SIZE


class Frame(NamedTuple):
    """A master's frame: bytes of its log from a physical offset on. An empty body is a heartbeat."""

    offset: int
    body: Buffer


class Greeting(NamedTuple):
    """A GantryMQ master's first frame: the bounds of its log, its file size and the protocol version."""

    min_offset: int
    max_offset: int
    file_size: int
    version: int


class Report(NamedTuple):
    """A slave's frame: the end of its log. `broker_id` is -1 for a Java slave, which does not send it."""

    offset: int
    broker_id: int


def encode_header(offset: int, body: bytes | memoryview, *, checked: bool) -> bytes:
    """Returns the header of a frame with `body`."""
    header = _HEADER.pack(offset, len(body))
    return header + _CRC.pack(crc32(body, crc32(header))) if checked else header


def encode_greeting(greeting: Greeting) -> bytes:
    body = _GREETED.pack(*greeting)
    return encode_header(GREETING, body, checked=True) + body


def encode_opening(offset: int) -> bytes:
    """Returns the first message of a GantryMQ slave. `offset` is for Java masters."""
    return _GREETING_WORD + _WORD.pack(offset)


def is_opening_of_ours(opening: bytes) -> bool:
    """Returns true if these bytes begin the opening of a GantryMQ slave outside controller mode."""
    return opening.startswith(_GREETING_WORD)


def encode_report(offset: int, broker_id: int, *, checked: bool) -> bytes:
    if not checked:
        return _WORD.pack(offset)
    words = _HEADER.pack(offset, broker_id)
    return words + _CRC.pack(crc32(words))


class FrameReader:
    """Splits a master's input into frames. Buffers at most one frame and the input that arrived with its end.

    `checked` becomes true with a greeting: from then on frames have checksums.
    """

    def __init__(self) -> None:
        self.checked = False
        self._received = ReceiveBuffer()

    def feed(self, data: bytes) -> None:
        self._received.add(data)

    def next(self) -> Frame | Greeting | None:
        """Returns the next complete frame, or None. Raises FrameError for invalid input."""
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
        # A later version may append further fields.
        return Greeting._make(_GREETED.unpack_from(body))


class ReportReader:
    """Splits a slave's input into reports. Buffers less than 24 bytes."""

    def __init__(self) -> None:
        #: True for a GantryMQ slave, whose reports have checksums.
        self.checked = False
        self._is_first = True
        self._buffer = b""

    def feed(self, data: bytes) -> Report | None:
        """Returns the last complete report or None. It supersedes earlier ones. Raises FrameError for invalid input."""
        data = self._buffer + data
        if self._is_first:
            if data[: _WORD.size] == _GREETING_WORD:
                self.checked = True
                if len(data) < 2 * _WORD.size:
                    self._buffer = data
                    return None
                # The offset after the -1 is for a Java master.
                data = data[2 * _WORD.size :]
            elif len(data) >= _WORD.size:
                # A -1 that was damaged in transit must not count as a Java slave's report, which has no checksum.
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
    """Returns the offset of a Java slave's report. Raises FrameError if it is invalid."""
    if number > _LONGEST_LOG:
        raise FrameError(f"a report says {number}: no log is so long")
    return not_negative(number)


def not_negative(number: int) -> int:
    """Returns `number` of a report. Raises FrameError if it is negative."""
    if number < 0:
        raise FrameError(f"a report says {number}")
    return number
