"""The console's HTTP server: uvicorn with an accept queue, connection limits and timeouts of the console."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from gantrymq.background.tasks import Tasks
from gantrymq.console.connections import HEAD_WITHIN_S, MAX_PER_ADDRESS, Connections, Peer, source_of
from gantrymq.fair_queue import FairQueue
from gantrymq.remoting.address import format_address
from gantrymq.remoting.listener import Listener, ListenOptions
from gantrymq.system.clock import monotonic
from gantrymq.system.network import Socket

#: Size of the write buffer at which the application waits for the client, bytes. The default of TLS is 512 KiB.
_WRITE_BUFFER = 64 * 1024
#: Connections accepted in one event-loop iteration. The limit is low: if many connections arrive before the server has
#: read a request, it would close the request's connection as incomplete.
_CONNECTS_PER_ITERATION = 8
#: Pause after a connection from an address that has its maximum, s. Each new connection of this address closes an older
#: one.
_FULL_PAUSE_S = 0.01
#: Ticks of uvicorn between two checks. There are ten ticks a second.
_TICKS_A_CHECK = 10


class AcceptQueue(FairQueue[str, Socket]):
    """A fair queue of accepted sockets that have no HTTP connection yet, at most MAX_PER_ADDRESS of each source.

    An HTTP connection costs more time than an accepted socket. If one address opens connections faster than the console
    can serve them, browsers of other addresses therefore do not wait.
    """

    def add(self, source: str, item: Socket) -> None:
        """Adds a socket. If the source has too many sockets, closes the oldest of them."""
        super().add(source, item)
        if self.count_of(source) > MAX_PER_ADDRESS:
            self.take_of(source).close()


class HttpServer(uvicorn.Server):
    """The server on `host` and `port` (0: any free port). Calls `listening` with its URL."""

    def __init__(self, config: uvicorn.Config, host: str, port: int, listening: Callable[[str], None]) -> None:
        super().__init__(config)
        self._host = host
        self._port = port
        self._listening = listening
        self._listener: Listener | None = None
        self._connections = Connections()
        self._protocols: dict[Peer, _Connection] = {}
        self._accepted = AcceptQueue()
        self._is_connecting = False
        self._arrivals = Tasks("connection of a browser")

    async def serve(self, sockets: list[Socket] | None = None) -> None:
        """Serves until a signal. Raises GantryError if the port is in use."""
        self._listener = listener = Listener(
            ListenOptions(self._host, self._port), self._accept, self._count, peers="browsers"
        )
        try:
            await super().serve()
        finally:
            listener.stop()

    async def startup(self, sockets: list[Socket] | None = None) -> None:
        assert self._listener is not None
        await super().startup([])
        self._listener.start()
        scheme = "https" if self.config.is_ssl else "http"
        self._listening(f"{scheme}://{format_address(self._host, self._listener.port)}/")

    async def on_tick(self, counter: int) -> bool:
        if not counter % _TICKS_A_CHECK:
            self._connections.check(monotonic(), self._unread_bytes)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[Socket] | None = None) -> None:
        if self._listener is not None:
            self._listener.stop()
        await self._arrivals.stop()
        while self._accepted:
            self._accepted.take()[1].close()
        self._connections.close_stalled()
        # The protocols of closed connections are notified in the next event-loop iteration.
        await asyncio.sleep(0)
        await super().shutdown()

    def _count(self) -> int:
        return len(self._connections) + len(self._accepted)

    def _unread_bytes(self, peer: Peer) -> int:
        protocol = self._protocols.get(peer)
        return 0 if protocol is None else protocol.transport.get_write_buffer_size()

    def _accept(self, sock: Socket) -> None:
        """Adds an accepted socket to the queue."""
        try:
            source = source_of(sock.getpeername()[0])
        except OSError:
            # The peer has already disconnected.
            sock.close()
            return
        self._accepted.add(source, sock)
        if not self._is_connecting:
            self._is_connecting = True
            asyncio.get_running_loop().call_soon(self._connect_some)

    def _connect_some(self) -> None:
        """Creates HTTP connections for some sockets, then schedules the next sockets."""
        pause_s = 0.0
        for _ in range(min(_CONNECTS_PER_ITERATION, len(self._accepted))):
            source, sock = self._accepted.take()
            self._arrivals.start(self._connect(sock, source))
            if self._connections.is_full(source):
                pause_s = _FULL_PAUSE_S
                break
        self._is_connecting = bool(pause_s or self._accepted)
        if self._is_connecting:
            asyncio.get_running_loop().call_later(pause_s, self._connect_some)

    async def _connect(self, sock: Socket, source: str) -> None:
        """Creates the HTTP connection of a socket. It counts as a connection from the start of the TLS handshake."""
        task = asyncio.current_task()
        assert task is not None
        peer = Peer(source, partial(_cancel, task), monotonic())
        self._connections.add(peer)
        handshake = {"ssl_handshake_timeout": HEAD_WITHIN_S} if self.config.ssl is not None else {}
        loop = asyncio.get_running_loop()
        is_connected = False
        try:
            with suppress(OSError):
                await loop.connect_accepted_socket(
                    lambda: _Connection(self.config, self.server_state, self.lifespan.state, peer, self._opened),
                    sock,
                    ssl=self.config.ssl,
                    **handshake,
                )
                is_connected = True
        finally:
            if not is_connected:
                self._connections.remove(peer)
                if (protocol := self._protocols.get(peer)) is not None:
                    # uvloop does not notify the protocol of a connection that was closed while it was created.
                    protocol.connection_lost(None)

    def _opened(self, peer: Peer, protocol: _Connection | None) -> None:
        """Records that a connection has opened or, if `protocol` is None, closed."""
        if protocol is not None:
            self._protocols[peer] = protocol
        else:
            self._protocols.pop(peer, None)
            self._connections.remove(peer)


def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()


class _Connection(H11Protocol):
    """An HTTP connection. It reports its state to `peer`."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        peer: Peer,
        opened: Callable[[Peer, _Connection | None], None],
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._peer = peer
        self._opened = opened

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(_WRITE_BUFFER)
        self._peer.connected(transport.abort)
        self._opened(self._peer, self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._opened(self._peer, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._note_state()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._note_state()

    def pause_writing(self) -> None:
        self._peer.unread(monotonic())
        super().pause_writing()

    def resume_writing(self) -> None:
        self._peer.read()
        super().resume_writing()

    def _note_state(self) -> None:
        """Reports the state of the connection after a read or a response."""
        now, cycle = monotonic(), self.cycle
        if cycle is not None and cycle.more_body:
            self._peer.incomplete(now, has_head=True)
        elif cycle is not None and not cycle.response_complete:
            self._peer.complete(now, is_working=True)
        elif self.conn.trailing_data[0]:
            self._peer.incomplete(now, has_head=False)
        else:
            self._peer.complete(now, is_working=False)
