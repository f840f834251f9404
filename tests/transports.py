"""In-memory transports whose peer accepts all data, for connections without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

Written = bytes | bytearray | memoryview


class Swallowing(asyncio.Transport):
    """Counts the bytes written."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        super().__init__({"peername": (host, 40_000), "sockname": ("127.0.0.1", 10_911)})
        self.written = 0
        self.is_read = True
        self.closed = False

    def write(self, data: Written) -> None:
        self.written += len(data)

    def writelines(self, data: Iterable[Written]) -> None:
        for piece in data:
            self.write(piece)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True


class Keeping(Swallowing):
    """Stores the data written, and counts the calls."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        super().__init__(host)
        self.data = b""
        self.calls = 0

    def write(self, data: Written) -> None:
        super().write(data)
        self.data += data
        self.calls += 1

    def writelines(self, data: Iterable[Written]) -> None:
        self.write(b"".join(data))
