"""One HTTP/2 stream: a request and its response, which is sent within the peer's windows."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Protocol

from gantrymq.proxy.http2 import frames
from gantrymq.proxy.http2.time_quota import EARNED_US, EMPTY_CALL_US, FRAME_US, SMALL_DATA

if TYPE_CHECKING:
    from gantrymq.proxy.http2.connection import Http2Connection


class Receiver(Protocol):
    """Receives the events of a stream."""

    def data_received(self, data: bytes, ended: bool) -> None:
        """Receives bytes, possibly none. If `ended` is true, no more bytes follow."""

    def server_stops(self) -> None:
        """Called when the connection accepts no more streams. The connection closes when all streams have ended."""

    def stream_lost(self) -> None:
        """Called when the peer has reset the stream or disconnected. Nothing more can be sent."""


class Http2Stream:
    """One stream. It buffers data while the window of the stream or of the connection is closed."""

    __slots__ = (
        "_drained",
        "_trailers",
        "_waiting",
        "connection",
        "has_sent_data",
        "is_closed",
        "is_remote_open",
        "missing_bytes",
        "receive_window",
        "receiver",
        "stream_id",
        "window",
    )

    def __init__(self, connection: Http2Connection, stream_id: int, window: int) -> None:
        self.connection = connection
        self.stream_id = stream_id
        #: Window for sending: the bytes that the peer still accepts.
        self.window = window
        #: Window for receiving: the bytes that the peer may still send.
        self.receive_window = frames.DEFAULT_WINDOW
        self.is_remote_open = True
        #: Missing bytes of the request by its `content-length`; None without that field.
        self.missing_bytes: int | None = None
        self.has_sent_data = False
        #: True if nothing more is sent.
        self.is_closed = False
        self.receiver: Receiver | None = None
        self._waiting: deque[memoryview] | None = None
        self._trailers: bytes | None = None
        self._drained: asyncio.Future[None] | None = None

    @property
    def is_full(self) -> bool:
        """True while data waits for the peer's windows."""
        return bool(self._waiting)

    @property
    def waiting_bytes(self) -> int:
        """Size of the data that waits for the peer's windows, bytes."""
        return sum(map(len, self._waiting)) if self._waiting else 0

    def send_headers(self, block: bytes) -> None:
        """Sends the first header block of the response."""
        if not self.is_closed:
            block = self.connection.header_block(block)
            self.connection.send(
                frames.frame_head(frames.HEADERS, frames.END_HEADERS, self.stream_id, len(block)), block
            )

    def send_data(self, data: bytes) -> None:
        """Sends data at once if the windows and the socket accept all of it; otherwise buffers it."""
        if self.is_closed:
            return
        self.has_sent_data = True
        size = len(data)
        connection = self.connection
        if (
            not self._waiting
            and connection.is_writable
            and size <= self.window
            and size <= connection.window
            and size <= connection.settings.frame_size
        ):
            self.window -= size
            connection.window -= size
            connection.quota.earned_us += EARNED_US
            connection.send_data(frames.frame_head(frames.DATA, 0, self.stream_id, size), data)
            return
        if self._waiting is None:
            self._waiting = deque()
        self._waiting.append(memoryview(data))
        connection.unread.add(connection, size)
        self.pump()

    def finish(self, trailers: bytes) -> None:
        """Ends the response with these fields, after the buffered data."""
        if self.is_closed or self._trailers is not None:
            return
        if self._waiting:
            self._trailers = trailers
        else:
            self._finish(trailers)

    def _finish(self, trailers: bytes) -> None:
        trailers = self.connection.header_block(trailers)
        self.connection.send(
            frames.frame_head(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, self.stream_id, len(trailers)),
            trailers,
        )
        self.is_closed = True
        if not self.has_sent_data:
            self.connection.quota.spent_us += EMPTY_CALL_US
        self.connection.local_end(self)

    def let_in(self, size: int) -> None:
        """Opens the peer's window by `size` bytes."""
        if self.is_remote_open and not self.is_closed and size > 0:
            self.receive_window += size
            self.connection.send(frames.window_update(self.stream_id, size))

    def pump(self) -> None:
        """Sends as much of the buffered data as the windows and the socket accept."""
        waiting, connection = self._waiting, self.connection
        while waiting:
            data = waiting[0]
            size = min(len(data), self.window, connection.window, connection.settings.frame_size)
            if self.window <= 0:
                return
            if size <= 0 or not connection.is_writable:
                connection.blocked[self.stream_id] = self
                return
            self.window -= size
            connection.window -= size
            if size >= SMALL_DATA:
                connection.quota.earned_us += EARNED_US
            elif size < len(data):
                connection.quota.spent_us += FRAME_US
            connection.unread.remove(connection, size)
            connection.send_data(frames.frame_head(frames.DATA, 0, self.stream_id, size), bytes(data[:size]))
            if size == len(data):
                waiting.popleft()
            else:
                waiting[0] = data[size:]
        connection.blocked.pop(self.stream_id, None)
        self._wake()
        if self._trailers is not None and not self.is_closed:
            self._finish(self._trailers)

    async def drained(self) -> None:
        """Returns when all data is sent, or when the stream is closed."""
        while self._waiting and not self.is_closed:
            if self._drained is None:
                self._drained = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._drained)

    def lost(self) -> None:
        """Closes the stream after the peer has reset it or disconnected. Buffered data is discarded."""
        self.is_closed = True
        if self._waiting:
            self.connection.unread.remove(self.connection, self.waiting_bytes)
        self._waiting = None
        self.connection.blocked.pop(self.stream_id, None)
        self._wake()
        if self.receiver is not None:
            self.receiver.stream_lost()

    def _wake(self) -> None:
        if self._drained is not None:
            if not self._drained.done():
                self._drained.set_result(None)
            self._drained = None
