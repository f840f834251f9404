"""The socket of a slave's connection to its master."""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from gantrymq.replication.authentication import SlaveHandshake
from gantrymq.replication.autoswitch_link import AutoSwitchLink
from gantrymq.replication.link import Link

#: The protocol state of one connection, without or with a controller.
AnyLink = Link | AutoSwitchLink


#: Time to send the last bytes to a master, in seconds.
_LAST_WORDS_S = 1.0


class Slave(Protocol):
    """Receives the events of a connection."""

    def opened(self, connection: SlaveConnection) -> None:
        """Called when the connection is open."""

    def received(self, connection: SlaveConnection, data: bytes) -> None:
        """Called with received bytes."""

    def closed(self, connection: SlaveConnection, error: Exception | None) -> None:
        """Called when the connection is lost."""


class SlaveConnection(asyncio.Protocol):
    """Passes the events of one socket to a slave."""

    #: Set when the connection is open.
    link: AnyLink

    def __init__(self, slave: Slave, master: str, handshake: SlaveHandshake) -> None:
        self._slave = slave
        self.master = master
        self.handshake = handshake
        self.is_paused = False
        #: True if the master has sent something after the handshake.
        self.has_heard = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A transport of uvloop is not a subclass of asyncio.Transport.
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
        """Stops reading until the received data is stored."""
        if not self.is_paused and self._transport is not None:
            self.is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self.is_paused and self._transport is not None:
            self.is_paused = False
            self._transport.resume_reading()

    def leave(self, last_words: bytes) -> None:
        """Sends `last_words` and closes the connection. After _LAST_WORDS_S, unsent data is discarded."""
        if self._transport is not None:
            self._transport.write(last_words)
            self._transport.close()
            asyncio.get_running_loop().call_later(_LAST_WORDS_S, self._transport.abort)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
