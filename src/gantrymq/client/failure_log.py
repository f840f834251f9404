"""Logs recurrent failures of a client's servers in few lines.

If a broker is down, the pull of each queue fails every second. Heartbeats, commits and rebalances fail as well. Without
this module, one broker that is down causes 420 lines in 20 s. With it, the log has a line at the start of the failure
and one at its end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gantrymq.errors import BrokerError, RemotingError
from gantrymq.logs import peer_log
from gantrymq.system.clock import monotonic, time

log = peer_log(__name__)

#: If a server keeps failing in the same way, the failure is logged once in this interval, s.
LOG_INTERVAL_S = 60.0
#: Largest number of tracked failures. Each failure beyond this limit is logged.
MAX_REMEMBERED = 1000


@dataclass(slots=True)
class _Failure:
    began: float
    logged: float
    error: Exception
    failures: int = 1


class FailureLog:
    """Failures of one client, by server and kind. `listener` is called with each logged failure."""

    def __init__(self, listener: Callable[[Exception], object] | None = None) -> None:
        self._listener = listener
        self._open: dict[tuple[str, str], _Failure] = {}
        #: Newest failure and its time (s since the epoch). Stays set after the failure is over.
        self.last: Exception | None = None
        self.last_time = 0.0
        self._is_closing = False

    def close(self) -> None:
        """Marks the client as closing. Later failures are expected and are not logged as warnings."""
        self._is_closing = True

    def report(self, what: str, error: Exception) -> None:
        """Logs that `what` failed. If the same server has just failed in the same way, only counts it."""
        if self._is_closing:
            log.debug("%s, while the client closes: %s", what, error)
            return
        now = monotonic()
        self.last, self.last_time = error, time()
        key = _server(error), _kind(error)
        failure = self._open.get(key)
        if failure is None:
            if len(self._open) < MAX_REMEMBERED:
                self._open[key] = _Failure(now, now, error)
            log.warning("%s: %s", what, error)
            self._notify_listener(error)
            return
        failure.failures += 1
        failure.error = error
        if now - failure.logged >= LOG_INTERVAL_S:
            failure.logged = now
            log.warning("%s: %s (%d failures like it in %d s)", what, error, failure.failures, now - failure.began)
            self._notify_listener(error)

    def of(self, server: str) -> Exception | None:
        """Returns the current failure of a server, or None if its last request succeeded."""
        return next((failure.error for key, failure in self._open.items() if key[0] == server), None)

    def _notify_listener(self, error: Exception) -> None:
        if self._listener is not None:
            try:
                self._listener(error)
            except Exception:
                log.exception("%s failed", getattr(self._listener, "__name__", self._listener))

    def recovered(self, server: str) -> None:
        """Records a successful request. `server` is an address or a broker name."""
        if not self._open:
            return
        ended = [key for key in self._open if key[0] == server]
        if ended:
            recovered = [self._open.pop(key) for key in ended]
            failures = sum(failure.failures for failure in recovered)
            seconds = monotonic() - min(failure.began for failure in recovered)
            log.info("%s works again, after %d failures in %d s", server, failures, seconds)


def _server(error: Exception) -> str:
    return error.address if isinstance(error, RemotingError | BrokerError) else ""


def _kind(error: Exception) -> str:
    # Unreachable, disconnected and unresponsive count as one kind of failure.
    if isinstance(error, RemotingError):
        return "network"
    return f"code {error.code}" if isinstance(error, BrokerError) else f"{type(error).__name__}: {error}"
