"""Receives large bodies on a client connection without an extra copy: the socket writes into the final buffer."""

from __future__ import annotations

import asyncio

from gantrymq.remoting.connection import Connection

#: Size of the buffer for everything except the rest of a large body, in bytes.
SMALL_READ = 64 * 1024


class ZeroCopyBody(asyncio.BufferedProtocol):
    """Passes events from a transport to `connection`, which must be created with `new_buffer`.

    This is a separate class because uvloop and asyncio pass bytes objects to every subclass of Protocol.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._small = memoryview(bytearray(SMALL_READ))
        self._body_buffer: memoryview | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.connection.connection_made(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        self._body_buffer = self.connection.receive_buffer()
        return self._small if self._body_buffer is None else self._body_buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._body_buffer is None:
            self.connection.data_received(bytes(self._small[:nbytes]))
        else:
            self._body_buffer = None
            self.connection.buffer_filled(nbytes)

    def eof_received(self) -> bool | None:
        return self.connection.eof_received()

    def pause_writing(self) -> None:
        self.connection.pause_writing()

    def resume_writing(self) -> None:
        self.connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._body_buffer = None
        self.connection.connection_lost(exc)
