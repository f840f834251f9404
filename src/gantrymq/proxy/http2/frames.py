"""HTTP/2 frames: types, flags, error codes, settings and encoding (RFC 9113, 4 and 6)."""

from __future__ import annotations

from enum import IntEnum
from struct import Struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA = 0x0
HEADERS = 0x1
PRIORITY = 0x2
RST_STREAM = 0x3
SETTINGS = 0x4
PUSH_PROMISE = 0x5
PING = 0x6
GOAWAY = 0x7
WINDOW_UPDATE = 0x8
CONTINUATION = 0x9

END_STREAM = 0x1
ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
WITH_PRIORITY = 0x20

SETTING_HEADER_TABLE_SIZE = 0x1
SETTING_ENABLE_PUSH = 0x2
SETTING_MAX_CONCURRENT_STREAMS = 0x3
SETTING_INITIAL_WINDOW_SIZE = 0x4
SETTING_MAX_FRAME_SIZE = 0x5
SETTING_MAX_HEADER_LIST_SIZE = 0x6

DEFAULT_WINDOW = 65_535
MAX_WINDOW = (1 << 31) - 1
DEFAULT_FRAME_SIZE = 16_384
LARGEST_FRAME_SIZE = (1 << 24) - 1
HEADER_LENGTH = 9

_U32 = Struct(">I")
_SETTING = Struct(">HI")
_TWO = Struct(">II")
#: Frame header: length and type in one number, flags, stream id.
_HEADER = Struct(">IBI")

read_header = _HEADER.unpack_from
read_u32 = _U32.unpack_from
read_setting = _SETTING.iter_unpack


class ErrorCode(IntEnum):
    """The reason why a stream or a connection ends (RFC 9113, 7)."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    ENHANCE_YOUR_CALM = 0xB


class ConnectionEnded(Exception):
    """Raised if the peer violates HTTP/2 or exceeds a limit. The connection is closed with this code."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def frame_head(kind: int, flags: int, stream_id: int, length: int) -> bytes:
    """Returns the header of a frame with a payload of `length` bytes."""
    return _HEADER.pack(length << 8 | kind, flags, stream_id)


def settings(values: dict[int, int]) -> bytes:
    payload = b"".join(_SETTING.pack(key, value) for key, value in values.items())
    return frame_head(SETTINGS, 0, 0, len(payload)) + payload


def window_update(stream_id: int, increment: int) -> bytes:
    return frame_head(WINDOW_UPDATE, 0, stream_id, 4) + _U32.pack(increment)


def rst_stream(stream_id: int, code: int) -> bytes:
    return frame_head(RST_STREAM, 0, stream_id, 4) + _U32.pack(code)


def ping(payload: bytes, *, ack: bool = False) -> bytes:
    return frame_head(PING, ACK if ack else 0, 0, 8) + payload


def goaway(last_stream_id: int, code: int, reason: str = "") -> bytes:
    text = reason.encode()
    return frame_head(GOAWAY, 0, 0, 8 + len(text)) + _TWO.pack(last_stream_id, code) + text


SETTINGS_ACK = frame_head(SETTINGS, ACK, 0, 0)
