"""The proxy's gRPC server. It accepts TLS and plain connections on one port."""

from __future__ import annotations

import asyncio

from gantrymq.background.jobs import Jobs
from gantrymq.logs import peer_log
from gantrymq.proxy.grpc_call import Service
from gantrymq.proxy.http2.connection import Http2Connection
from gantrymq.proxy.http2.limits import Limits
from gantrymq.remoting.listener import Listener, ListenOptions
from gantrymq.remoting.server_tls import ServerTls
from gantrymq.remoting.tls import TlsConfig
from gantrymq.remoting.tls_detection import HANDSHAKE_TIMEOUT_S, TlsDetection
from gantrymq.system import network
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: The protocol that TLS clients must request (RFC 9113, 3.2).
_ALPN = ("h2",)
#: Interval between two checks of idle connections, and timeout of a ping, s.
_LOOK_S = 10.0
#: Interval between two checks for slow messages and incomplete input, s.
_LOOK_AT_INPUTS_S = 1.0
#: Timeout of running calls when the server stops, s.
_DRAIN_S = 3.0


class ProxyServer:
    """Serves gRPC on one port. The constructor binds the port; `start` accepts connections.

    If a connection has sent nothing for `max_idle_s`, the server closes it. If the connection has open calls, the
    server sends a ping first, and closes it only without a response. Raises GantryError if the port is in use.
    """

    def __init__(
        self,
        service: Service,
        *,
        host: str,
        port: int,
        tls: TlsConfig,
        max_idle_s: float,
        jobs: Jobs,
        shared_port: bool = False,
    ) -> None:
        self._service = service
        self._tls = ServerTls(tls, jobs, peers="gRPC clients", alpn=_ALPN)
        self._max_idle_s = max_idle_s
        self._limits = Limits(service.unread, slices=service.slices)
        #: Open connections, oldest first.
        self.connections: dict[Http2Connection, None] = {}
        self._tls_detection: TlsDetection | None = None
        self._closed = asyncio.Event()
        self._idle_job = jobs.repeating("close idle gRPC connections", self._look, min(_LOOK_S, max_idle_s / 4))
        self._inputs_job = jobs.repeating("look for slow gRPC clients", self._look_at_inputs, _LOOK_AT_INPUTS_S)
        self._listener = Listener(
            ListenOptions(host, port, shared=shared_port), self._accepted, self._count, jobs=jobs, peers="gRPC clients"
        )

    @property
    def port(self) -> int:
        return self._listener.port

    async def start(self) -> None:
        """Accepts connections. Raises ConfigError for invalid TLS files, GantryError if the port is in use."""
        self._tls.load()
        self._tls_detection = TlsDetection(
            self._tls if self._tls.is_there else None, self.connected, self._limits.incomplete
        )
        self._listener.start()
        self._tls.start()
        self._idle_job.start()
        self._inputs_job.start()

    async def stop(self) -> None:
        """Accepts no more connections and calls, and closes the connections. A second call does nothing.

        Running calls may complete within _DRAIN_S.
        """
        self._idle_job.cancel()
        self._inputs_job.cancel()
        self._tls.stop()
        self._listener.stop()
        tls_detection, self._tls_detection = self._tls_detection, None
        if tls_detection is not None:
            await tls_detection.stop()
        for connection in list(self.connections):
            connection.end()
        try:
            async with asyncio.timeout(_DRAIN_S):
                await self._all_closed()
        except TimeoutError:
            for connection in list(self.connections):
                connection.abort()
            await self._all_closed()

    async def _all_closed(self) -> None:
        while self.connections:
            self._closed.clear()
            await self._closed.wait()

    def _accepted(self, sock: network.Socket) -> None:
        assert self._tls_detection is not None
        self._tls_detection.add(sock)

    def _count(self) -> int:
        return len(self.connections) + (len(self._tls_detection) if self._tls_detection is not None else 0)

    def connected(self) -> Http2Connection:
        """Returns the protocol for a new connection. The remoting port also uses it, for gRPC clients."""
        return Http2Connection(self._service.accept, self._limits, self._opened, self._disconnected)

    def _opened(self, connection: Http2Connection) -> None:
        self.connections[connection] = None
        if self._tls_detection is None:
            connection.abort()

    def _disconnected(self, connection: Http2Connection) -> None:
        self.connections.pop(connection, None)
        self._closed.set()

    def _look(self) -> None:
        """Closes idle connections, and sends a ping on silent connections with calls."""
        now = monotonic()
        for connection in list(self.connections):
            silent_s = now - connection.last_read
            if silent_s < self._max_idle_s / 2:
                continue
            if connection.is_closing:
                connection.abort()
            elif silent_s >= self._max_idle_s and (connection.is_asked or not connection.streams):
                log.info("closing the HTTP/2 connection with %s: silent for %d s", connection.peer, silent_s)
                if connection.streams:
                    connection.abort()
                else:
                    connection.end()
            elif connection.streams and not connection.is_asked:
                connection.ask()

    def _look_at_inputs(self) -> None:
        now = monotonic()
        self._service.incomplete_messages.revoke_slow(now)
        self._limits.incomplete.close_expired(now)
        if self._tls_detection is not None:
            # A gRPC client sends its preface or its TLS handshake immediately.
            self._tls_detection.close_silent(now - min(HANDSHAKE_TIMEOUT_S, self._max_idle_s), len(self._tls_detection))
