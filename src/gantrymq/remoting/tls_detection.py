"""Detects TLS on accepted sockets and runs the handshake, before a protocol takes the connection.

A server with TLS peeks at the first byte. 0x16 starts a TLS handshake and cannot start a remoting frame.
Source: remoting/netty/NettyRemotingServer (TlsModeHandler).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from gantrymq.background.tasks import Tasks
from gantrymq.logs import peer_log
from gantrymq.remoting.address import format_address
from gantrymq.remoting.incomplete_input import IncompleteInputs
from gantrymq.remoting.server_tls import ServerTls
from gantrymq.system import network
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: Timeout of a TLS handshake, in seconds. The default of netty.
HANDSHAKE_TIMEOUT_S = 10.0
#: Approximate memory that OpenSSL and the event loop allocate for one handshake, in bytes.
HANDSHAKE_BYTES = 128 * 1024

#: The content type of a handshake record, which is the first byte of a TLS connection (RFC 8446, 5.1).
_HANDSHAKE = b"\x16"


class _Handshake:
    """A TLS handshake in progress. Counts as incomplete input of its peer."""

    #: A handshake is never paused by this side.
    is_paused = False

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self._task = asyncio.current_task()

    def input_refused(self, reason: str) -> None:
        log.info("ending the TLS handshake with %s: %s", self._peer, reason)
        if self._task is not None:
            self._task.cancel()


class TlsDetection:
    """The new connections of one server, until a protocol takes them.

    `connected` creates the protocol of a connection. If `tls` is None, the server accepts plain connections only.
    Handshakes count towards the limit of `incomplete`: beyond it, the oldest input is closed. If `incomplete` is None,
    the handshakes have a limit of their own.
    """

    def __init__(
        self,
        tls: ServerTls | None,
        connected: Callable[[], asyncio.BaseProtocol],
        incomplete: IncompleteInputs | None = None,
    ) -> None:
        self._tls = tls
        self._incomplete = incomplete if incomplete is not None else IncompleteInputs()
        self._connected = connected
        self._loop = asyncio.get_running_loop()
        #: Sockets that have sent no byte, with their time of arrival, oldest first.
        self._silent: dict[network.Socket, float] = {}
        #: Sockets whose connection is being made. They leave as soon as their protocol has the connection.
        self._opening: set[network.Socket] = set()
        self._beginning = Tasks("new connections")

    def __len__(self) -> int:
        return len(self._silent) + len(self._opening)

    def add(self, sock: network.Socket) -> None:
        """Adds a connected, non-blocking socket."""
        if self._tls is None:
            self._start(sock, is_tls=False)
            return
        self._loop.add_reader(sock, self._first_byte, sock)
        self._silent[sock] = monotonic()

    def close_silent(self, since: float, most: int) -> None:
        """Closes sockets that have sent nothing and arrived before `since`, at most `most` of them."""
        for sock, arrived in list(self._silent.items())[:most]:
            if arrived >= since:
                break
            self._drop(sock)

    async def stop(self) -> None:
        """Closes all connections that no protocol has taken yet."""
        for sock in list(self._silent):
            self._drop(sock)
        await self._beginning.stop()

    def _first_byte(self, sock: network.Socket) -> None:
        try:
            first = sock.recv(1, network.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            first = b""
        is_tls = first == _HANDSHAKE
        assert self._tls is not None
        if not first or (not is_tls and self._tls.is_enforced):
            if first:
                log.warning("closing the connection with %s: TLS is required", _peer(sock))
            self._drop(sock)
            return
        self._forget(sock)
        self._start(sock, is_tls=is_tls)

    def _start(self, sock: network.Socket, *, is_tls: bool) -> None:
        self._opening.add(sock)
        self._beginning.start(self._begin(sock, is_tls=is_tls))

    async def _begin(self, sock: network.Socket, *, is_tls: bool) -> None:
        try:
            await self._open(sock, is_tls=is_tls)
        finally:
            self._opening.discard(sock)

    async def _open(self, sock: network.Socket, *, is_tls: bool) -> None:
        context = None
        if is_tls:
            assert self._tls is not None
            try:
                context = await self._tls.context()
            except asyncio.CancelledError:
                sock.close()
                raise
            if context is None:
                sock.close()
                return
        peer = _peer(sock)
        timeout = HANDSHAKE_TIMEOUT_S if context is not None else None
        handshake = _Handshake(peer)
        if context is not None:
            self._incomplete.begin(handshake, HANDSHAKE_BYTES, monotonic())
        opening = asyncio.ensure_future(
            self._loop.connect_accepted_socket(self._connected, sock, ssl=context, ssl_handshake_timeout=timeout)
        )
        opening.add_done_callback(lambda _: self._opening.discard(sock))
        try:
            await asyncio.shield(opening)
        except OSError as e:
            # Errors of ssl and TimeoutError are subclasses of OSError. The loop has already closed the socket.
            log.info("the connection with %s didn't come about: %s", peer, e)
        except asyncio.CancelledError:
            # If `opening` were cancelled after `connection_made`, uvloop would close the transport without
            # `connection_lost`. The end of the input ends a handshake.
            if context is not None:
                with suppress(OSError):
                    sock.shutdown(network.SHUT_RD)
            opening.add_done_callback(_retrieve_error)
            # `wait` does not cancel `opening` if this task is cancelled again.
            await asyncio.wait([opening])
            raise
        finally:
            self._incomplete.complete(handshake)

    def _drop(self, sock: network.Socket) -> None:
        self._forget(sock)
        sock.close()

    def _forget(self, sock: network.Socket) -> None:
        self._loop.remove_reader(sock)
        del self._silent[sock]


def _retrieve_error(opening: asyncio.Future[Any]) -> None:
    """Retrieves the error of a connection that did not come about, so that asyncio does not log it."""
    if not opening.cancelled():
        opening.exception()


def _peer(sock: network.Socket) -> str:
    try:
        host, port = sock.getpeername()[:2]
    except OSError:
        return "?"
    return format_address(host, port)
