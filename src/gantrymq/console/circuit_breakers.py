"""Circuit breakers: requests to a server that does not respond fail at once, so that pages do not wait for it.

    closed  Requests go to the server. If a request has no response after SLOW_S or more, the circuit opens.
    open    Requests fail at once. Every PROBE_EVERY_S, one request also starts a probe. If the server responds to the
            probe, the circuit closes.

A refused connection takes no time and does not open the circuit.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from gantrymq.system import threads

SLOW_S = 0.5
PROBE_EVERY_S = 5.0
#: Largest number of open circuits. Forged registrations at NameServers could open any number.
MAX_OPEN = 10_000


@dataclass(slots=True)
class _Open:
    problem: str
    #: Time of the next probe, s. A caller that starts a probe sets the time of the next one, and reports the outcome
    #: before that time.
    probe_at: float


class CircuitBreakers:
    """The circuits of all servers by host:port, for several event loops. The caller passes the time, s."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._lock = threads.Lock()

    def problem(self, address: str) -> str | None:
        """Returns the reason why the circuit of a server is open; None if it is closed."""
        found = self._open.get(address)
        return None if found is None else found.problem

    def begins_probe(self, address: str, now: float) -> bool:
        """Returns True if the caller must probe the server now.

        The caller then reports `answered` or `failed` within PROBE_EVERY_S.
        """
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
        """Opens the circuit of a server that did not respond."""
        with self._lock:
            self._open[address] = _Open(problem, now + PROBE_EVERY_S)
            self._open.move_to_end(address)
            while len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)
