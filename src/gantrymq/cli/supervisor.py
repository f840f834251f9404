"""Supervisor: watches the servers of `gantry up`, and restarts brokers that end."""

from __future__ import annotations

import selectors
import time
from typing import TYPE_CHECKING, NoReturn, cast

from gantrymq.errors import ConfigError, GantryError
from gantrymq.testing.processes import START_TIMEOUT_S, ProcessCluster, ServerProcess
from gantrymq.testing.signals import Interruption

if TYPE_CHECKING:
    from gantrymq.console.server import ConsoleThread

#: The interval at which the console, due restarts and hanging starts are checked. The end of a process is detected at
#: once.
WATCH_INTERVAL_S = 0.5
#: The pause before the first restart of a broker. The pause doubles before each further restart.
FIRST_PAUSE_S = 1.0
#: The number of restarts of a broker after which the supervisor does not restart it again.
MAX_RESTARTS = 5
#: If a broker is ready for this time, the count of its restarts returns to 0.
STABLE_S = 60.0


class RestartLimit:
    """Decides when a broker is restarted. Times are in seconds, on any clock that only increases.

    Args:
        first_pause_s: The pause before the first restart.
        max_restarts: The restarts after which the broker is given up.
    """

    def __init__(self, first_pause_s: float = FIRST_PAUSE_S, max_restarts: int = MAX_RESTARTS) -> None:
        self._first_pause_s = first_pause_s
        self._max_restarts = max_restarts
        self.restarts = 0
        self._ready_at: float | None = None

    def ready(self, now: float) -> None:
        """Records that the broker is ready."""
        self._ready_at = now

    def ended(self, now: float) -> float | None:
        """Records the end of the broker. Returns the pause before its restart; None if there are no more restarts."""
        if self._ready_at is not None and now - self._ready_at >= STABLE_S:
            self.restarts = 0
        self._ready_at = None
        if self.restarts >= self._max_restarts:
            return None
        self.restarts += 1
        return self._first_pause_s * float(2 ** (self.restarts - 1))


class Supervisor:
    """Watches the servers of a cluster.

    A broker that ends is restarted, with growing pauses and up to MAX_RESTARTS times. If another server ends, or if all
    brokers are given up, the cluster ends.

    Args:
        cluster: The started cluster.
        interruption: Delivers signals to this thread.
        first_pause_s: The pause before the first restart of a broker.
        max_restarts: The restarts after which a broker is given up.
        start_timeout_s: The time after which a restarted broker that is not ready is killed.
    """

    def __init__(
        self,
        cluster: ProcessCluster,
        interruption: Interruption,
        *,
        first_pause_s: float = FIRST_PAUSE_S,
        max_restarts: int = MAX_RESTARTS,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        self._cluster = cluster
        self._interruption = interruption
        self._limits = {broker: RestartLimit(first_pause_s, max_restarts) for broker in cluster.brokers}
        #: The time of each due restart (time.monotonic).
        self._due: dict[ServerProcess, float] = {}
        self._start_timeout_s = start_timeout_s
        #: The deadline for each restarted broker to be ready (time.monotonic).
        self._deadlines: dict[ServerProcess, float] = {}
        self._given_up: set[ServerProcess] = set()
        self._selector = selectors.DefaultSelector()
        #: True if a server has ended. The directory is then kept for the server's log.
        self.has_failed = False

    def run(self, console: ConsoleThread | None) -> NoReturn:
        """Watches until a signal. Raises GantryError if the cluster cannot continue."""
        with self._selector:
            now = time.monotonic()
            for server in self._cluster.servers:
                self._selector.register(server, selectors.EVENT_READ)
            for limit in self._limits.values():
                limit.ready(now)
            while True:
                if console is not None and console.error is not None:
                    raise GantryError(f"the console has ended: {console.error}")
                for key, _ in self._selector.select(WATCH_INTERVAL_S):
                    self._read(cast(ServerProcess, key.fileobj))
                self._restart_due()
                self._kill_hanging()

    def _read(self, server: ServerProcess) -> None:
        was_ready = server.is_ready
        if server.read_output():
            if server.is_ready and not was_ready:
                self._deadlines.pop(server, None)
                self._limits[server].ready(time.monotonic())
                print(f"{server.name} is ready again at {server.address}, pid {server.pid}", flush=True)
            return
        # Set before `deferred`, which may raise.
        self.has_failed = True
        self._deadlines.pop(server, None)
        self._selector.unregister(server)
        # A signal must not interrupt `Popen.wait` (see `interruptible`).
        with self._interruption.deferred():
            server.stop()
        if server not in self._limits:
            raise GantryError(server.ending())
        self._ended(server, server.ending())

    def _ended(self, broker: ServerProcess, ending: str) -> None:
        """Schedules the restart of a broker, or gives the broker up."""
        pause_s = self._limits[broker].ended(time.monotonic())
        if pause_s is not None:
            self._due[broker] = time.monotonic() + pause_s
            print(f"{ending}\n{broker.name} restarts in {pause_s:g} s; its log: {broker.log_path}", flush=True)
            return
        self._given_up.add(broker)
        given_up = f"{broker.name} is not restarted any more, after {self._limits[broker].restarts} restarts"
        if len(self._given_up) == len(self._limits):
            raise GantryError(f"{ending}; {given_up}, and no other broker runs")
        print(f"{ending}\n{given_up}; its log: {broker.log_path}", flush=True)

    def _restart_due(self) -> None:
        now = time.monotonic()
        for broker in [broker for broker, due in self._due.items() if due <= now]:
            del self._due[broker]
            try:
                # A signal between the start of the process and its assignment to the variable would lose the process.
                with self._interruption.deferred():
                    broker.restart()
            except (OSError, ConfigError) as e:
                self._ended(broker, f"{broker.name} can't be started: {e}")
            else:
                self._deadlines[broker] = time.monotonic() + self._start_timeout_s
                self._selector.register(broker, selectors.EVENT_READ)

    def _kill_hanging(self) -> None:
        """Kills each restarted broker that is not ready in time. The next `_read` handles its end."""
        now = time.monotonic()
        for broker in [broker for broker, deadline in self._deadlines.items() if deadline <= now]:
            del self._deadlines[broker]
            print(f"{broker.name} is not ready {self._start_timeout_s:g} s after its restart: it is killed", flush=True)
            # `Popen.kill` polls the process.
            with self._interruption.deferred():
                broker.kill()
