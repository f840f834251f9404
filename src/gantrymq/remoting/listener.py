"""Accepts connections on the ports of a server, and limits their number.

Connections and files share the process's file descriptors. A broker that cannot open a log file cannot store messages.
The server therefore reserves descriptors for files. It accepts and closes connections beyond the limit at once, so that
clients get an error. A new socket gets the lowest free descriptor number, so at least that many descriptors are open.
No count is needed.

asyncio's own accept loop is not used: if descriptors run out, it accepts nothing for a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from gantrymq.background.jobs import Jobs
from gantrymq.errors import GantryError
from gantrymq.logs import peer_log
from gantrymq.remoting.address import format_address
from gantrymq.system import files, network
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: Length of the kernel's accept queue (`serverSocketBacklog`).
BACKLOG = 1024
#: Distance of Java's "fast" port below the main port (`BrokerController.initializeRemotingServer`,
#: `MixAll.brokerVIPChannel`).
_FAST_PORT_BEFORE = 2
#: Number of attempts to find two free ports with this distance, if the port is not configured.
_PORT_ATTEMPTS = 20
#: Maximum number of connections that are accepted in one event-loop iteration.
_ACCEPTS_PER_TURN = 100
#: One eighth of the descriptors, within these bounds, is reserved for files and for outgoing connections.
_LEAST_RESERVE = 32
_LARGEST_RESERVE = 1024
#: Lower bound of the connection limit, whatever the descriptor limit is.
_LEAST_CONNECTIONS = 16
#: Interval between log lines about refused connections, in seconds.
_LOG_INTERVAL_S = 1.0
#: Delay before the next attempt if the system cannot create a socket, in seconds.
_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class ListenOptions:
    """The address and port on which a server listens.

    Attributes:
        host: Address to listen on.
        port: Port to listen on. 0 selects a free one.
        fast_listen: Also listen on port - 2, for clients of RocketMQ before 4.5.1 (the VIP channel).
        shared: Other processes may listen on the same port.
    """

    host: str = "0.0.0.0"
    port: int = 0
    fast_listen: bool = False
    shared: bool = False


def reserved_descriptors(limit: int) -> int:
    """Returns the number of descriptors that are reserved for files, of a total of `limit`."""
    return min(max(limit // 8, _LEAST_RESERVE), _LARGEST_RESERVE)


def most_connections(limit: int) -> int:
    """Returns the largest number of connections of a server with `limit` descriptors."""
    return max(limit - reserved_descriptors(limit), _LEAST_CONNECTIONS)


class Listener:
    """Accepts connections and passes their non-blocking sockets to a callback.

    The constructor binds the port. Raises GantryError if the port is in use.

    Args:
        options: Address and port to listen on. The attribute `port` contains the actual port number.
        accepted: Called with each accepted socket.
        count: Returns the current number of connections.
        jobs: Report for the background job.
        peers: Name of the connections in the background job's name.
    """

    def __init__(
        self,
        options: ListenOptions,
        accepted: Callable[[network.Socket], None],
        count: Callable[[], int],
        *,
        jobs: Jobs | None = None,
        peers: str = "connections",
    ) -> None:
        self._options = options
        self._accepted = accepted
        self._count = count
        self.job = (jobs or Jobs()).repeating(f"accept {peers} again", self._listen)
        self._sockets = _bound_sockets(options)
        self.port: int = self._sockets[0].getsockname()[1]
        self._is_listening = False
        self._first_reserved = self._most = 0
        #: Spare descriptor. Closed to accept and refuse a connection if no other descriptor is free.
        self._spare = -1
        self._refused = 0
        self._logged_at = -_LOG_INTERVAL_S

    def start(self) -> None:
        """Starts to accept connections. Raises GantryError if another socket already listens on a port."""
        if not self._sockets:
            # `start` after `stop` creates new sockets.
            self._sockets = _bound_sockets(replace(self._options, port=self.port))
        limit = files.descriptor_limits()[0]
        self._first_reserved = limit - reserved_descriptors(limit)
        self._most = most_connections(limit)
        for sock in self._sockets:
            try:
                sock.listen(BACKLOG)
            except OSError as e:
                raise _taken(self._options.host, sock.getsockname()[1], e) from e
        self.job.start()
        self._listen()

    def stop(self) -> None:
        """Closes the sockets. Further calls have no effect."""
        self.job.cancel()
        self._ignore()
        for sock in self._sockets:
            sock.close()
        self._sockets = []
        self._close_spare()

    def _close_spare(self) -> None:
        # Cleared before it is closed, because another thread may get the same descriptor number afterwards.
        spare, self._spare = self._spare, -1
        if spare >= 0:
            files.close(spare)

    def _listen(self) -> None:
        if self._spare < 0:
            self._spare = files.open_nothing()
        self._is_listening = True
        loop = asyncio.get_running_loop()
        for sock in self._sockets:
            loop.add_reader(sock, self._accept, sock)

    def _ignore(self) -> None:
        if self._is_listening:
            self._is_listening = False
            loop = asyncio.get_running_loop()
            for sock in self._sockets:
                loop.remove_reader(sock)

    def _accept(self, listening: network.Socket) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                sock, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as e:
                if self._refuse_without_descriptor(listening):
                    continue
                log.error("can't accept connections, trying again in %g s: %s", _PAUSE_S, e)
                self._ignore()
                self.job.wake(_PAUSE_S)
                return
            if sock.fileno() >= self._first_reserved or self._count() >= self._most:
                sock.close()
                self._was_refused()
            else:
                sock.setblocking(False)
                self._accepted(sock)

    def _refuse_without_descriptor(self, listening: network.Socket) -> bool:
        """Refuses a connection with the spare descriptor if no other is free. Returns false on failure."""
        self._close_spare()
        try:
            with suppress(BlockingIOError):
                listening.accept()[0].close()
                self._was_refused()
            self._spare = files.open_nothing()
        except OSError:
            return False
        return True

    def _was_refused(self) -> None:
        self._refused += 1
        now = monotonic()
        if now - self._logged_at >= _LOG_INTERVAL_S:
            log.warning(
                "%d connections were refused: there are %d, and the other descriptors (of %d, ulimit -n) are for files",
                self._refused,
                self._count(),
                files.descriptor_limits()[0],
            )
            self._logged_at = now
            self._refused = 0


def _bound_sockets(options: ListenOptions) -> list[network.Socket]:
    """Returns bound sockets that do not listen yet. Raises GantryError."""
    host, port = options.host, options.port
    if not options.fast_listen:
        return [bound_socket(host, port, shared=options.shared)]
    for _ in range(_PORT_ATTEMPTS if not port else 1):
        first = bound_socket(host, port)
        try:
            return [first, bound_socket(host, first.getsockname()[1] - _FAST_PORT_BEFORE)]
        except GantryError as e:
            first.close()
            error = e
    raise error


def bound_socket(host: str, port: int, *, shared: bool = False) -> network.Socket:
    """Returns a socket as `network.bind` does. Raises GantryError if the port is in use."""
    try:
        return network.bind(host, port, shared=shared)
    except (OSError, OverflowError) as e:
        raise _taken(host, port, e) from e


def _taken(host: str, port: int, error: Exception) -> GantryError:
    reason = error.strerror if isinstance(error, OSError) else None
    return GantryError(f"can't listen on {format_address(host, port)}: {reason or error}; is another server using it?")
