"""RocketMQ's remoting server (`NettyRemotingServer`): accepts connections, closes idle ones and sets shared limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from gantrymq.background.jobs import Jobs
from gantrymq.limits import RESPONSE_TASKS
from gantrymq.logs import peer_log
from gantrymq.remoting.connection import Connection, FirstLook, RequestHandler, RpcHook, close_all
from gantrymq.remoting.connection_limits import ConnectionLimits
from gantrymq.remoting.incomplete_frames import IncompleteFrames
from gantrymq.remoting.listener import Listener, ListenOptions
from gantrymq.remoting.loop_watch import LoopWatch
from gantrymq.remoting.quota import Quota
from gantrymq.remoting.server_tls import ServerTls
from gantrymq.remoting.time_slices import TimeSlices
from gantrymq.remoting.tls import TlsConfig
from gantrymq.remoting.tls_detection import TlsDetection
from gantrymq.remoting.unread_responses import UnreadResponses
from gantrymq.system import network
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: A silent client is disconnected after this time, in seconds (`serverChannelMaxIdleTimeSeconds`). Clients send a
#: heartbeat every 30 s.
MAX_IDLE_S = 120.0
#: A stopping server waits until no request has arrived for DRAIN_QUIET_S, but at most DRAIN_TIMEOUT_S. In seconds.
DRAIN_QUIET_S = 0.02
DRAIN_TIMEOUT_S = 1.0
#: Interval of the check for idle connections, in seconds, and the limit of closes in one loop iteration.
LOOK_S = 1.0
CLOSED_PER_TURN = 200


class RemotingServer:
    """A listening socket and its connections.

    The constructor binds the port, so that `port` is the actual port from the beginning. `serve` starts to accept
    connections. Raises GantryError if a port is in use.

    Args:
        handlers: Plain functions by request code. See `remoting.connection`.
        listen: Address and port to listen on.
        tls: TLS configuration. None accepts plain connections only.
        hooks: Called before each request and after each response.
        max_idle_s: Time after which a silent connection is closed, in seconds.
        alpn: Further protocols that TLS clients may negotiate.
        on_close: Called after a connection is closed.
        jobs: Report for the background jobs.
    """

    def __init__(
        self,
        handlers: Mapping[int, RequestHandler],
        listen: ListenOptions,
        *,
        tls: TlsConfig | None = None,
        hooks: Sequence[RpcHook] = (),
        max_idle_s: float = MAX_IDLE_S,
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
        self._first_look: FirstLook | None = None
        #: In the order of their arrival.
        self.connections: dict[Connection, None] = {}
        #: None while the server is not running.
        self._tls_detection: TlsDetection | None = None
        self.loop_watch = LoopWatch(jobs)
        self.incomplete_frames = IncompleteFrames(jobs)
        self._unread_responses = UnreadResponses(jobs)
        #: The requests that are answered by tasks.
        self.response_tasks = Quota(RESPONSE_TASKS)
        self._limits = ConnectionLimits(
            TimeSlices(self.loop_watch, jobs), self.incomplete_frames, self._unread_responses, self.response_tasks
        )
        self._idle_job = jobs.repeating("close idle connections", self._close_idle, min(LOOK_S, max_idle_s / 4))
        # Last, because it binds the port: if a later step failed, nothing would free the port.
        self._listener = Listener(listen, self._accepted, self._count, jobs=jobs)

    @property
    def port(self) -> int:
        return self._listener.port

    @property
    def first_look(self) -> FirstLook | None:
        """The function that handles requests of new connections before they are decoded."""
        return self._first_look

    def release(self) -> None:
        """Frees the port of a server that is never started."""
        self._listener.stop()

    async def start(self) -> None:
        """Accepts connections. Raises ConfigError if a TLS file is not usable, and GantryError as `serve` does."""
        await self.bind()
        await self.serve()

    async def bind(self) -> None:
        """Does the steps that can fail before `serve`. Raises ConfigError if a TLS file is not usable."""
        if self._tls is not None:
            self._tls.load()

    async def serve(self, first_look: FirstLook | None = None) -> None:
        """Starts to accept connections. Raises GantryError if another socket already listens on the port.

        `first_look` may handle requests before they are decoded. See `Connection`.
        """
        self._first_look = first_look
        tls = self._tls
        self._tls_detection = TlsDetection(tls if tls is not None and tls.is_there else None, self._connected)
        self._listener.start()
        if tls is not None:
            tls.start()
        self.loop_watch.start()
        self.incomplete_frames.start()
        self._unread_responses.start()
        self._idle_job.start()

    async def drain(self) -> None:
        """Stops accepting connections and waits for the responses to received requests, at most DRAIN_TIMEOUT_S."""
        if self._tls_detection is None:
            return
        self._listener.stop()
        deadline = monotonic() + DRAIN_TIMEOUT_S
        while self._count() and (looked := monotonic()) < deadline:
            await asyncio.sleep(DRAIN_QUIET_S)
            if all(connection.last_read < looked and not connection.is_behind for connection in self.connections):
                break

    async def stop(self) -> None:
        """Stops listening and closes all connections. Pending output is sent for a limited time (see `close_all`)."""
        self.loop_watch.stop()
        self.incomplete_frames.stop()
        self._unread_responses.stop()
        self._idle_job.cancel()
        if self._tls is not None:
            self._tls.stop()
        self._listener.stop()
        tls_detection, self._tls_detection = self._tls_detection, None
        if tls_detection is not None:
            await tls_detection.stop()
            await close_all(list(self.connections))

    def _accepted(self, sock: network.Socket) -> None:
        assert self._tls_detection is not None
        self._tls_detection.add(sock)

    def _count(self) -> int:
        return len(self.connections) + (len(self._tls_detection) if self._tls_detection is not None else 0)

    def _connected(self) -> asyncio.Protocol:
        return Connection(
            self._handlers,
            hooks=self._hooks,
            is_server=True,
            limits=self._limits,
            first_look=self._first_look,
            on_open=self._opened,
            on_close=self._disconnected,
        )

    def _opened(self, connection: Connection) -> None:
        if self._tls_detection is None:
            # The connection's TLS handshake ended after `stop`.
            connection.abort()
        self.connections[connection] = None

    def _disconnected(self, connection: Connection) -> None:
        self.connections.pop(connection, None)
        if self._on_close:
            self._on_close(connection)

    def _close_idle(self) -> float | None:
        """Closes some of the idle connections. The check of 10,000 connections takes 0.6 ms."""
        oldest = monotonic() - self._max_idle_s
        if self._tls_detection is not None:
            self._tls_detection.close_silent(oldest, CLOSED_PER_TURN)
        idle = [c for c in self.connections if c.last_read < oldest and not c.is_stopped and not c.is_closed]
        for connection in idle[:CLOSED_PER_TURN]:
            log.info("closing the connection with %s: idle for %d s", connection.address, self._max_idle_s)
            # `close` would wait until the unsent data is sent, but the peer may be down or may not read.
            connection.abort()
        return 0.0 if len(idle) > CLOSED_PER_TURN else None
