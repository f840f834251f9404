"""Troubles: what a client's servers fail at again and again, in few lines of the log.

A broker that is away fails every queue's pull each second, and heartbeats, commits and rebalances beside them: 420
lines in 20 s. What matters is that it is away, since when, and that it is back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gantrymq.errors import BrokerError, RemotingError
from gantrymq.logs import peer_log
from gantrymq.system.clock import monotonic, time

log = peer_log(__name__)

#: A server that goes on failing in the same way is logged once in so many seconds.
LOG_INTERVAL_S = 60.0
#: More kinds of troubles than this are not remembered, and all logged.
MAX_REMEMBERED = 1000


@dataclass(slots=True)
class _Trouble:
    began: float
    logged: float
    error: Exception
    failures: int = 1


class Troubles:
    """Of one client; by server and kind of failure."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], _Trouble] = {}
        #: The newest of all, over or not, and when it was told (s since the epoch).
        self.last: Exception | None = None
        self.last_time = 0.0
        #: Told of what is logged.
        self.listener: Callable[[Exception], object] | None = None
        #: The client closes: that it loses its connections then is no trouble.
        self.is_closing = False

    def tell(self, what: str, error: Exception) -> None:
        """Logs that `what` failed, or counts it when the same server has failed in this way a moment ago."""
        if self.is_closing:
            log.debug("%s, while the client closes: %s", what, error)
            return
        now = monotonic()
        self.last, self.last_time = error, time()
        key = _server(error), _kind(error)
        trouble = self._open.get(key)
        if trouble is None:
            if len(self._open) < MAX_REMEMBERED:
                self._open[key] = _Trouble(now, now, error)
            log.warning("%s: %s", what, error)
            self._tell_listener(error)
            return
        trouble.failures += 1
        trouble.error = error
        if now - trouble.logged >= LOG_INTERVAL_S:
            trouble.logged = now
            log.warning("%s: %s (%d failures like it in %d s)", what, error, trouble.failures, now - trouble.began)
            self._tell_listener(error)

    def of(self, server: str) -> Exception | None:
        """What the server failed at, if it hasn't done what it was asked since."""
        return next((trouble.error for key, trouble in self._open.items() if key[0] == server), None)

    def _tell_listener(self, error: Exception) -> None:
        if self.listener is not None:
            try:
                self.listener(error)
            except Exception:
                log.exception("%s failed", getattr(self.listener, "__name__", self.listener))

    def over(self, server: str) -> None:
        """The server, an address or a broker's name, has done what it was asked."""
        if not self._open:
            return
        ended = [key for key in self._open if key[0] == server]
        if ended:
            troubles = [self._open.pop(key) for key in ended]
            failures = sum(trouble.failures for trouble in troubles)
            seconds = monotonic() - min(trouble.began for trouble in troubles)
            log.info("%s works again, after %d failures in %d s", server, failures, seconds)


def _server(error: Exception) -> str:
    return error.address if isinstance(error, RemotingError | BrokerError) else ""


def _kind(error: Exception) -> str:
    # Whether it can't be reached, breaks off or doesn't answer is one trouble.
    if isinstance(error, RemotingError):
        return "network"
    return f"code {error.code}" if isinstance(error, BrokerError) else f"{type(error).__name__}: {error}"
