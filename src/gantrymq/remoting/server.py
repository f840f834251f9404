"""RemotingServer: listens, hands each connection the handler table, closes the idle ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from gantrymq.background.jobs import Jobs
from gantrymq.logs import peer_log
from gantrymq.remoting.arrivals import Arrivals
from gantrymq.remoting.connection import Connection, FirstLook, RequestHandler, RpcHook, close_all
from gantrymq.remoting.listener import Listener
from gantrymq.remoting.loop_watch import LoopWatch
from gantrymq.remoting.open_answers import new_rooms_for_answers
from gantrymq.remoting.server_tls import ServerTls
from gantrymq.remoting.tls import TlsConfig
from gantrymq.remoting.turns import Turns
from gantrymq.remoting.unfinished_frames import UnfinishedFrames
from gantrymq.remoting.untaken_answers import UntakenAnswers
from gantrymq.system import network
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: serverChannelMaxIdleTimeSeconds: a client that sent nothing for so long is dropped (it heartbeats each 30 s).
MAX_IDLE_S = 120.0
#: A stopping server goes on until nothing has come for the first, at most for the second, s.
DRAIN_QUIET_S = 0.02
DRAIN_TIMEOUT_S = 1.0
#: How often idle connections are looked for, s; the most of them that are closed in one turn of the loop.
LOOK_S = 1.0
CLOSED_PER_TURN = 200


class RemotingServer:
    """A listening socket; `handlers` maps request codes to plain functions (see `remoting.connection`).

    The port is taken here and now, so that `port` is the real one before anything is built that carries it; connections
    are taken from `serve` on. With `fast_listen` a second port is listened on, port - 2; a `shared_port` may be other
    processes', too. `alpn` is what TLS clients may ask for beside the remoting protocol. Raises GantryError when a port
    is taken.
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
        fast_listen: bool = False,
        shared_port: bool = False,
        alpn: Sequence[str] = (),
        on_close: Callable[[Connection], None] | None = None,
        jobs: Jobs | None = None,
    ) -> None:
        jobs = jobs if jobs is not None else Jobs()
        self._handlers = handlers
        self._tls = ServerTls(tls, jobs, alpn=alpn) if tls is not None else None
        self._hooks = hooks
        self._max_idle_s = max_idle_s
        self._on_close = on_close
        #: Of connections that are made from now on; see `Connection`.
        self.first_look: FirstLook | None = None
        #: In the order in which they came.
        self.connections: dict[Connection, None] = {}
        #: While it runs.
        self._arrivals: Arrivals | None = None
        self.loop_watch = LoopWatch(jobs)
        self._turns = Turns(self.loop_watch, jobs)
        self.unfinished_frames = UnfinishedFrames(jobs)
        self._untaken_answers = UntakenAnswers(jobs)
        self._rooms_for_answers = new_rooms_for_answers()
        self._idle_job = jobs.repeating("close idle connections", self._close_idle, min(LOOK_S, max_idle_s / 4))
        # At last: it takes the port, which nobody would free if anything else failed.
        self._listener = Listener(
            host, port, self._accepted, self._count, fast_listen=fast_listen, shared=shared_port, jobs=jobs
        )

    @property
    def port(self) -> int:
        return self._listener.port

    def release(self) -> None:
        """Frees the port of a server that is never started."""
        self._listener.stop()

    async def start(self) -> None:
        """Takes connections. Raises ConfigError for TLS files that can't be used, GantryError as `serve`."""
        await self.bind()
        await self.serve()

    async def bind(self) -> None:
        """Prepares to listen, so that `serve` can't fail. Raises ConfigError for TLS files that can't be used."""
        if self._tls is not None:
            self._tls.load()

    async def serve(self) -> None:
        """Begins to take connections. Raises GantryError when another socket listens on the port after all."""
        tls = self._tls
        self._arrivals = Arrivals(tls if tls is not None and tls.is_there else None, self._connected)
        self._listener.start()
        if tls is not None:
            tls.start()
        self.loop_watch.start()
        self.unfinished_frames.start()
        self._untaken_answers.start()
        self._idle_job.start()

    async def drain(self) -> None:
        """Takes no more connections, and returns when the requests that have arrived are answered."""
        if self._arrivals is None:
            return
        self._listener.stop()
        deadline = monotonic() + DRAIN_TIMEOUT_S
        while (looked := monotonic()) < deadline:
            await asyncio.sleep(DRAIN_QUIET_S)
            if all(connection.last_read < looked and not connection.is_behind for connection in self.connections):
                break

    async def stop(self) -> None:
        """Stops listening and closes every connection, after what was answered is written if the peers take it soon."""
        self.loop_watch.stop()
        self.unfinished_frames.stop()
        self._untaken_answers.stop()
        self._idle_job.cancel()
        if self._tls is not None:
            self._tls.stop()
        self._listener.stop()
        arrivals, self._arrivals = self._arrivals, None
        if arrivals is not None:
            await arrivals.stop()
            await close_all(list(self.connections))

    def _accepted(self, sock: network.Socket) -> None:
        assert self._arrivals is not None
        self._arrivals.add(sock)

    def _count(self) -> int:
        return len(self.connections) + (len(self._arrivals) if self._arrivals is not None else 0)

    def _connected(self) -> asyncio.Protocol:
        return Connection(
            self._handlers,
            hooks=self._hooks,
            is_server=True,
            turns=self._turns,
            frames=self.unfinished_frames,
            untaken=self._untaken_answers,
            rooms_for_answers=self._rooms_for_answers,
            first_look=self.first_look,
            on_open=self._opened,
            on_close=self._disconnected,
        )

    def _opened(self, connection: Connection) -> None:
        if self._arrivals is None:
            # Its TLS handshake ended after stop().
            connection.abort()
        self.connections[connection] = None

    def _disconnected(self, connection: Connection) -> None:
        self.connections.pop(connection, None)
        if self._on_close:
            self._on_close(connection)

    def _close_idle(self) -> float | None:
        """Looks at all, which takes 0.6 ms for 10,000, and closes some of the idle ones."""
        oldest = monotonic() - self._max_idle_s
        if self._arrivals is not None:
            self._arrivals.close_silent(oldest, CLOSED_PER_TURN)
        idle = [c for c in self.connections if c.last_read < oldest and not c.is_stopped and not c.is_closed]
        for connection in idle[:CLOSED_PER_TURN]:
            log.info("closing the connection with %s: idle for %d s", connection.address, self._max_idle_s)
            # Not close(): a peer that is gone, or stopped reading, would never take what it is still to get.
            connection.abort()
        return 0.0 if len(idle) > CLOSED_PER_TURN else None
