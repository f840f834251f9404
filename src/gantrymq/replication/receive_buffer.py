"""A buffer for received frames that copies each byte at most once, whatever the frame size."""

from __future__ import annotations


class ReceiveBuffer:
    """Buffers received bytes that are not consumed yet."""

    def __init__(self) -> None:
        #: The buffer is consumed up to `_at`. While `_at` is 0, a bytearray has no views, so it may grow.
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
        """A buffer and the position in it where the unconsumed bytes begin. Valid until the next call."""
        return self._buffer, self._at

    def take(self, count: int) -> memoryview:
        """Consumes `count` bytes, which must have arrived. The bytes stay valid as long as the view is referenced."""
        begin, self._at = self._at, self._at + count
        return memoryview(self._buffer)[begin : self._at]
