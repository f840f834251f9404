"""Circuit breakers: requests to a server that doesn't answer fail at once, so that pages don't wait for it.

    closed  requests go to the server; one that has no answer after SLOW_S or more opens the circuit
    open    requests fail at once. Every PROBE_EVERY_S, one of them starts a probe; if the server answers it, the
            circuit is closed

A refused connection costs no time, and opens nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from gantrymq.system import threads

SLOW_S = 0.5
PROBE_EVERY_S = 5.0
#: Servers that are remembered; NameServers believe everybody who registers.
MAX_OPEN = 10_000


@dataclass(slots=True)
class _Open:
    problem: str
    #: The next probe; a caller that has begun one puts it off, and reports what came of it before that.
    probe_at: float


class CircuitBreakers:
    """Of all servers, by host:port, for several event loops. Told the time, s."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._lock = threads.Lock()

    def problem(self, address: str) -> str | None:
        """Why the circuit of a server is open; None while it is closed."""
        found = self._open.get(address)
        return None if found is None else found.problem

    def begins_probe(self, address: str, now: float) -> bool:
        """Whether the caller is to probe the server, in less than PROBE_EVERY_S, and report `answered` or `failed`."""
        with self._lock:
            found = self._open.get(address)
            if found is None or now < found.probe_at:
                return False
            found.probe_at = now + PROBE_EVERY_S
            return True

    def answered(self, address: str) -> None:
        with self._lock:
            self._open.pop(address, None)

    def failed(self, address: str, problem: str, now: float) -> None:
        """The server didn't answer."""
        with self._lock:
            self._open[address] = _Open(problem, now + PROBE_EVERY_S)
            self._open.move_to_end(address)
            while len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)
