"""The settings of a peer that a server must respect (RFC 9113, 6.5)."""

from __future__ import annotations

from gantrymq.proxy.http2 import frames
from gantrymq.proxy.http2.frames import ConnectionEnded, ErrorCode
from gantrymq.proxy.http2.hpack import TABLE_SIZE

#: Largest frame that the proxy sends, bytes, even if the peer accepts larger frames.
_LARGEST_SENT = 64 * 1024


class PeerSettings:
    """The peer's settings on one connection."""

    __slots__ = ("frame_size", "must_shrink_table", "stream_window")

    def __init__(self) -> None:
        #: The window of a new stream, bytes.
        self.stream_window = frames.DEFAULT_WINDOW
        #: The largest frame to send, bytes.
        self.frame_size = frames.DEFAULT_FRAME_SIZE
        #: True if the peer has reduced its header table. The next header block must confirm this (RFC 7541, 4.2).
        self.must_shrink_table = False

    def update(self, payload: bytes) -> None:
        """Applies the entries of a SETTINGS frame in their order. Raises ConnectionEnded for invalid values."""
        for key, value in frames.read_setting(payload):
            if key == frames.SETTING_INITIAL_WINDOW_SIZE:
                if value > frames.MAX_WINDOW:
                    raise ConnectionEnded(ErrorCode.FLOW_CONTROL_ERROR, f"an initial window of {value} bytes")
                self.stream_window = value
            elif key == frames.SETTING_MAX_FRAME_SIZE:
                if not frames.DEFAULT_FRAME_SIZE <= value <= frames.LARGEST_FRAME_SIZE:
                    raise ConnectionEnded(ErrorCode.PROTOCOL_ERROR, f"a maximum frame size of {value} bytes")
                self.frame_size = min(value, _LARGEST_SENT)
            elif key == frames.SETTING_HEADER_TABLE_SIZE:
                if value < TABLE_SIZE:
                    self.must_shrink_table = True
            elif key == frames.SETTING_ENABLE_PUSH and value > 1:
                raise ConnectionEnded(ErrorCode.PROTOCOL_ERROR, f"{value} for SETTINGS_ENABLE_PUSH")
