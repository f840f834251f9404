"""A client's connection into whose large answers the socket writes: their bytes are copied once, by the kernel."""

from __future__ import annotations

import asyncio

from gantrymq.remoting.connection import Connection

#: What isn't the rest of a large body comes here first: small frames, and where large ones begin.
SMALL_READ = 64 * 1024


class InPlace(asyncio.BufferedProtocol):
    """Stands between a transport and `connection`, which was made with `make_room`.

    A class of its own, as uvloop and asyncio take what is a Protocol, too, for one that is given bytes.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._small = memoryview(bytearray(SMALL_READ))
        self._room: memoryview | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.connection.connection_made(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        self._room = self.connection.room()
        return self._small if self._room is None else self._room

    def buffer_updated(self, nbytes: int) -> None:
        if self._room is None:
            self.connection.data_received(bytes(self._small[:nbytes]))
        else:
            self._room = None
            self.connection.room_filled(nbytes)

    def eof_received(self) -> bool | None:
        return self.connection.eof_received()

    def pause_writing(self) -> None:
        self.connection.pause_writing()

    def resume_writing(self) -> None:
        self.connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._room = None
        self.connection.connection_lost(exc)
