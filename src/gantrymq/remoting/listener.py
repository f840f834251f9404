"""Listener: the sockets that a server listens on, and how many connections it takes.

Connections share a process's descriptors with its files, and a broker that can't open a file of its log can't take
messages. So some are kept for files, and connections that would need them are refused: taken and closed, at once, so
that a client learns of it. A new socket has the lowest number that is free; so its number tells, without a count, how
many descriptors the process has at least.

Accepting is done here and not by the event loop: asyncio's own accepts nothing for a second when descriptors have run
out, and lets those who connect wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from gantrymq.background.jobs import Jobs
from gantrymq.errors import GantryError
from gantrymq.logs import peer_log
from gantrymq.remoting.address import format_address
from gantrymq.system import files, network
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: serverSocketBacklog.
BACKLOG = 1024
#: Java's "fast" server listens so much below (`BrokerController.initializeRemotingServer`, `MixAll.brokerVIPChannel`).
_FAST_PORT_BEFORE = 2
#: Of two ports that are to be free, the first is taken at random so often.
_PORT_ATTEMPTS = 20
#: So many connections are taken in one turn of the loop.
_ACCEPTS_PER_TURN = 100
#: An eighth of the descriptors, within these bounds, is left to files, and to connections that the process makes.
_LEAST_RESERVE = 32
_LARGEST_RESERVE = 1024
#: So many connections are taken in any case.
_LEAST_CONNECTIONS = 16
#: Refused connections are logged once in so many seconds.
_LOG_INTERVAL_S = 1.0
#: The system has no room for another socket: the next attempt, s.
_PAUSE_S = 0.5


def reserved_descriptors(limit: int) -> int:
    """How many of them connections leave alone, whatever files there are."""
    return min(max(limit // 8, _LEAST_RESERVE), _LARGEST_RESERVE)


def most_connections(limit: int) -> int:
    """How many connections a server takes."""
    return max(limit - reserved_descriptors(limit), _LEAST_CONNECTIONS)


class Listener:
    """Takes connections at `host` and `port` and hands their sockets, which don't block, to `accepted`.

    The port is taken when this is made; 0 takes a free one, `port` is the real one. With `fast_listen` there is a
    second socket, at port - 2, for clients of RocketMQ before 4.5.1 (the VIP channel). A `shared` port may be other
    processes', too. `count` tells how many
    connections there are, `job` is known under the name of the `peers`. Raises GantryError when a port is taken.
    """

    def __init__(
        self,
        host: str,
        port: int,
        accepted: Callable[[network.Socket], None],
        count: Callable[[], int],
        *,
        fast_listen: bool = False,
        shared: bool = False,
        jobs: Jobs | None = None,
        peers: str = "connections",
    ) -> None:
        self._host = host
        self._fast_listen = fast_listen
        self._shared = shared
        self._accepted = accepted
        self._count = count
        self.job = (jobs or Jobs()).repeating(f"accept {peers} again", self._listen)
        self._sockets = _bound_sockets(host, port, fast_listen=fast_listen, shared=shared)
        self.port: int = self._sockets[0].getsockname()[1]
        self._is_listening = False
        self._first_reserved = self._most = 0
        #: A descriptor to refuse connections with when there is no other.
        self._spare = -1
        self._refused = 0
        self._logged_at = -_LOG_INTERVAL_S

    def start(self) -> None:
        """Begins to take connections. Raises GantryError when another socket listens on a port after all."""
        if not self._sockets:
            # It was stopped before, and begins again.
            self._sockets = _bound_sockets(self._host, self.port, fast_listen=self._fast_listen, shared=self._shared)
        limit = files.descriptor_limits()[0]
        self._first_reserved = limit - reserved_descriptors(limit)
        self._most = most_connections(limit)
        for sock in self._sockets:
            try:
                sock.listen(BACKLOG)
            except OSError as e:
                raise _taken(self._host, sock.getsockname()[1], e) from e
        self.job.start()
        self._listen()

    def stop(self) -> None:
        """Closes the sockets; once more does no harm."""
        self.job.cancel()
        self._ignore()
        for sock in self._sockets:
            sock.close()
        self._sockets = []
        self._close_spare()

    def _close_spare(self) -> None:
        # Its number may be somebody else's as soon as it is closed.
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
        """Files have taken even those that were kept; false if the one that was spared doesn't help either."""
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


def _bound_sockets(host: str, port: int, *, fast_listen: bool, shared: bool) -> list[network.Socket]:
    """Sockets that have the port, and with `fast_listen` port - 2, and don't listen yet. Raises GantryError."""
    if not fast_listen:
        return [bound_socket(host, port, shared=shared)]
    for _ in range(_PORT_ATTEMPTS if not port else 1):
        first = bound_socket(host, port)
        try:
            return [first, bound_socket(host, first.getsockname()[1] - _FAST_PORT_BEFORE)]
        except GantryError as e:
            first.close()
            error = e
    raise error


def bound_socket(host: str, port: int, *, shared: bool = False) -> network.Socket:
    """As `network.bind`. Raises GantryError when the port is taken."""
    try:
        return network.bind(host, port, shared=shared)
    except (OSError, OverflowError) as e:
        raise _taken(host, port, e) from e


def _taken(host: str, port: int, error: Exception) -> GantryError:
    reason = error.strerror if isinstance(error, OSError) else None
    return GantryError(f"can't listen on {format_address(host, port)}: {reason or error}; is another server using it?")
