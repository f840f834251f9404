"""Received: what has come of a stream of frames; each byte is copied once at most, however large the frames."""

from __future__ import annotations


class Received:
    """Bytes that nobody has taken yet."""

    def __init__(self) -> None:
        #: Taken up to `_at`. Once it is a bytearray of which nothing was taken, there are no views of it: it may grow.
        self._buffer: bytes | bytearray = b""
        self._at = 0

    def __len__(self) -> int:
        return len(self._buffer) - self._at

    def add(self, data: bytes) -> None:
        if not len(self):
            self._buffer, self._at = data, 0
            return
        if self._at or isinstance(self._buffer, bytes):
            self._buffer, self._at = bytearray(memoryview(self._buffer)[self._at :]), 0
        self._buffer += data

    @property
    def place(self) -> tuple[bytes | bytearray, int]:
        """A buffer, and where in it they begin; to look at before more is done here."""
        return self._buffer, self._at

    def take(self, count: int) -> memoryview:
        """The first `count` of them, of which there are so many; they stay as they are as long as somebody has them."""
        begin, self._at = self._at, self._at + count
        return memoryview(self._buffer)[begin : self._at]
