"""SlaveConnection: the socket of one link, as the slave has it."""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from gantrymq.replication.authentication import SlaveHandshake
from gantrymq.replication.autoswitch_link import AutoSwitchLink
from gantrymq.replication.link import Link

#: What one connection has come to.
AnyLink = Link | AutoSwitchLink


#: So long the last bytes to a master may take, s.
_LAST_WORDS_S = 1.0


class Slave(Protocol):
    """Whom a connection tells what happens to it."""

    def opened(self, connection: SlaveConnection) -> None:
        """It stands."""

    def received(self, connection: SlaveConnection, data: bytes) -> None:
        """Bytes have come."""

    def closed(self, connection: SlaveConnection, error: Exception | None) -> None:
        """It is lost."""


class SlaveConnection(asyncio.Protocol):
    """The socket of one link."""

    #: Made when it stands.
    link: AnyLink

    def __init__(self, slave: Slave, master: str, handshake: SlaveHandshake) -> None:
        self._slave = slave
        self.master = master
        self.handshake = handshake
        self.is_paused = False
        #: The master has said something.
        self.has_heard = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is no asyncio.Transport.
        self._transport = cast(asyncio.Transport, transport)
        self._slave.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._slave.closed(self, exc)

    def data_received(self, data: bytes) -> None:
        self._slave.received(self, data)

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def pause(self) -> None:
        """Reads no more: what has come must be put into the store first."""
        if not self.is_paused and self._transport is not None:
            self.is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self.is_paused and self._transport is not None:
            self.is_paused = False
            self._transport.resume_reading()

    def leave(self, last_words: bytes) -> None:
        """Writes this and closes the connection. A master that doesn't take it within a while loses it."""
        if self._transport is not None:
            self._transport.write(last_words)
            self._transport.close()
            asyncio.get_running_loop().call_later(_LAST_WORDS_S, self._transport.abort)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
