"""RemotingServer: listens, hands each connection the handler table, closes the idle ones."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from time import monotonic

from gantrymq.background.jobs import Jobs
from gantrymq.errors import GantryError
from gantrymq.logs import peer_log
from gantrymq.remoting.address import format_address
from gantrymq.remoting.connection import Connection, RequestHandler, RpcHook, close_all
from gantrymq.remoting.loop_watch import LoopWatch
from gantrymq.remoting.open_answers import MAX_BYTES, MAX_REQUESTS, Room
from gantrymq.remoting.tls import ServerTls, TlsConfig
from gantrymq.remoting.unfinished_frames import UnfinishedFrames

log = peer_log(__name__)

#: serverChannelMaxIdleTimeSeconds: a client that sent nothing for so long is dropped (it heartbeats each 30 s).
MAX_IDLE_S = 120.0
#: serverSocketBacklog.
BACKLOG = 1024
#: A stopping server goes on until nothing has come for the first, at most for the second, s.
DRAIN_QUIET_S = 0.02
DRAIN_TIMEOUT_S = 1.0
#: How often idle connections are looked for, s, and how many are closed in one turn of the loop.
LOOK_S = 1.0
CLOSED_PER_TURN = 200


class RemotingServer:
    """A listening socket; `handlers` maps request codes to plain functions (see `remoting.connection`).

    The port is taken here and now, so that `port` is the real one before anything is built that carries it; connections
    are taken from `serve` on. Raises GantryError when the port is taken.
    """

    def __init__(
        self,
        handlers: Mapping[int, RequestHandler],
        *,
        host: str = "0.0.0.0",
        port: int = 0,
        tls: TlsConfig | None = None,
        hooks: Sequence[RpcHook] = (),
        max_idle_s: float = MAX_IDLE_S,
        on_close: Callable[[Connection], None] | None = None,
        jobs: Jobs | None = None,
    ) -> None:
        jobs = jobs if jobs is not None else Jobs()
        self._handlers = handlers
        self._host = host
        self._socket = _bound(host, port)
        self.port: int = self._socket.getsockname()[1]
        self._tls_config = tls
        self._tls: ServerTls | None = None
        self._hooks = hooks
        self._max_idle_s = max_idle_s
        self._on_close = on_close
        self.connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self.loop_watch = LoopWatch(jobs)
        self.unfinished_frames = UnfinishedFrames(jobs)
        self._room_for_answers = Room(MAX_REQUESTS, MAX_BYTES)
        self._idle_job = jobs.repeating("close idle connections", self._close_idle, min(LOOK_S, max_idle_s / 4))

    async def start(self) -> None:
        """Takes connections. Raises ConfigError for TLS files that can't be used."""
        await self.bind()
        await self.serve()

    async def bind(self) -> None:
        """Prepares to listen, so that `serve` can't fail. Raises ConfigError for TLS files that can't be used."""
        if self._tls_config is not None:
            self._tls = ServerTls.create(self._tls_config, max_idle_s=self._max_idle_s)
        if self._socket.fileno() < 0:
            # It was stopped before, and begins again.
            self._socket = _bound(self._host, self.port)
        self._server = await asyncio.get_running_loop().create_server(
            self._accepted, sock=self._socket, backlog=BACKLOG, start_serving=False
        )

    async def serve(self) -> None:
        """Begins to take connections. Raises GantryError when another socket listens on the port after all."""
        assert self._server is not None
        try:
            await self._server.start_serving()
        except OSError as e:
            raise _taken(self._host, self.port, e) from e
        if self._tls is not None:
            self._tls.start()
        self.loop_watch.start()
        self.unfinished_frames.start()
        self._idle_job.start()

    async def drain(self) -> None:
        """Takes no more connections, and returns when the requests that have arrived are answered."""
        if self._server is None:
            return
        self._server.close()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DRAIN_TIMEOUT_S
        while (looked := loop.time()) < deadline:
            await asyncio.sleep(DRAIN_QUIET_S)
            if all(connection.last_read < looked for connection in self.connections):
                break

    async def stop(self) -> None:
        """Stops listening and closes every connection, after what was answered is written if the peers take it soon."""
        self.loop_watch.stop()
        self.unfinished_frames.stop()
        self._idle_job.cancel()
        if self._tls is not None:
            self._tls.stop()
        if self._server is not None:
            self._server.close()
            self._server = None
            await close_all(self.connections.copy())
        self._socket.close()

    def _accepted(self) -> asyncio.Protocol:
        return self._tls.accept(self._connected) if self._tls is not None else self._connected()

    def _connected(self) -> Connection:
        return Connection(
            self._handlers,
            hooks=self._hooks,
            is_server=True,
            watch=self.loop_watch,
            frames=self.unfinished_frames,
            room_for_answers=self._room_for_answers,
            on_open=self._opened,
            on_close=self._disconnected,
        )

    def _opened(self, connection: Connection) -> None:
        if self._server is None:
            # Its TLS handshake ended after stop().
            connection.abort()
        self.connections.add(connection)

    def _disconnected(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if self._on_close:
            self._on_close(connection)

    def _close_idle(self) -> float | None:
        """Looks at all, which takes 0.6 ms for 10,000, and closes some of the idle ones."""
        oldest = monotonic() - self._max_idle_s
        idle = [c for c in self.connections if c.last_read < oldest and not c.is_stopped and not c.is_closed]
        for connection in idle[:CLOSED_PER_TURN]:
            log.info("closing the connection with %s: idle for %d s", connection.address, self._max_idle_s)
            # Not close(): a peer that is gone, or stopped reading, would never take what it is still to get.
            connection.abort()
        return 0.0 if len(idle) > CLOSED_PER_TURN else None


def _bound(host: str, port: int) -> socket.socket:
    """A socket that has the port and doesn't listen yet. Raises GantryError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
        except BaseException:
            sock.close()
            raise
    except OSError as e:
        raise _taken(host, port, e) from e
    return sock


def _taken(host: str, port: int, error: OSError) -> GantryError:
    address = format_address(host, port)
    return GantryError(f"can't listen on {address}: {error.strerror or error}; is another server using it?")
