"""Hosts and processes: who a piece of work belongs to, and whether it still runs.

Every callback of the loop carries a context; the process that it belongs to is a variable of that context, so whatever
a process starts (tasks, timers, connections) is its own without its knowing. The loop asks before it calls back: the
work of a process that was killed never runs again, that of one that is stopped waits until it goes on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.loop import SimLoop

#: The process whose work runs now; None for the simulator's own.
PROCESS: ContextVar[Process | None] = ContextVar("PROCESS", default=None)


#: So many tasks that have ended may stay with a process: each keeps what it returned or raised.
_FEW = 30


class State(Enum):
    RUNNING = 1
    #: SIGSTOP: its work waits, its connections stay.
    STOPPED = 2
    #: Gone: nothing of it ever runs again.
    DEAD = 3


class Host:
    """A machine with an address, a wall clock of its own, and one process at a time."""

    def __init__(self, loop: SimLoop, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self._clock_ahead_s = 0.0
        self._clock_drift = 0.0
        #: (since, ahead, drift) of each setting of the clock; times in s.
        self._clock_settings = [(0.0, 0.0, 0.0)]
        #: What its threads do takes up to so much longer, s.
        self.thread_s = 0.0
        self.process: Process | None = None
        #: Start time of the process, in s.
        self.started_at = 0.0
        #: What its process was, and from when on, s.
        self.states: list[tuple[float, State]] = []
        #: Those before it. Kept, or else Python would take their tasks apart, and run the `finally` of each.
        self._dead: list[Process] = []
        self._loop = loop
        self._count = 0

    @property
    def clock_ahead_s(self) -> float:
        """Seconds by which the wall clock is ahead of the simulated time, without its drift."""
        return self._clock_ahead_s

    @clock_ahead_s.setter
    def clock_ahead_s(self, ahead_s: float) -> None:
        self._clock_ahead_s = ahead_s
        self._clock_settings.append((self._loop.now, self._clock_ahead_s, self._clock_drift))

    @property
    def clock_drift(self) -> float:
        """Relative speed error of the wall clock: 0.001 means 1 ms per second ahead."""
        return self._clock_drift

    @clock_drift.setter
    def clock_drift(self, drift: float) -> None:
        self._clock_drift = drift
        self._clock_settings.append((self._loop.now, self._clock_ahead_s, self._clock_drift))

    def wall_s(self, epoch_s: float) -> float:
        """Seconds since 1970 by this host's clock; the simulation began at `epoch_s`."""
        now = self._loop.now
        return epoch_s + now + self._clock_ahead_s + now * self._clock_drift

    def clock_errors(self, since: float, until: float) -> tuple[float, float]:
        """The least and the greatest error of the wall clock between two times, in s. Positive: it is ahead."""
        errors: list[float] = []
        for number, (begin, ahead_s, drift) in enumerate(self._clock_settings):
            following = self._clock_settings[number + 1 :]
            end = following[0][0] if following else until
            if begin <= until and end >= since:
                errors += [ahead_s + max(begin, since) * drift, ahead_s + min(end, until) * drift]
        return min(errors), max(errors)

    def start(self, main: Callable[[], Coroutine[Any, Any, None]]) -> Process:
        """Begins a process whose main task is `main()`; the one before must be dead."""
        assert self.process is None or self.process.state is State.DEAD, f"{self.name} runs already"
        if self.process is not None:
            self._dead.append(self.process)
        self._count += 1
        self.process = Process(self._loop, self, self._count)
        self.states.append((self._loop.now, State.RUNNING))
        self.started_at = self._loop.now
        self.process.main = self.process.spawn(main())
        return self.process


class Process:
    """One life of a program on a host."""

    def __init__(self, loop: SimLoop, host: Host, number: int) -> None:
        self.host = host
        self.name = f"{host.name}#{number}"
        self.state = State.RUNNING
        self.main: asyncio.Task[None] | None = None
        #: Called when it dies, with True when the machine went with it: what it has open goes too.
        self.at_death: list[Callable[[bool], None]] = []
        #: Callbacks that have come due while it was stopped.
        self.parked: deque[asyncio.Handle] = deque()
        #: What it runs, with some that have ended; to be looked through when there are more than `many`.
        self.tasks: list[asyncio.Task[Any]] = []
        self.many = _FEW
        self._loop = loop

    @property
    def context(self) -> Context:
        """A new context in which work is this process's."""
        context = copy_context()
        context.run(PROCESS.set, self)
        return context

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._loop.create_task(work, context=self.context)

    def stop(self) -> None:
        if self.state is State.RUNNING:
            self._becomes(State.STOPPED)

    def go_on(self) -> None:
        if self.state is State.STOPPED:
            self._becomes(State.RUNNING)
            self._loop.unpark(self.parked)

    def kill(self, *, machine: bool = False) -> None:
        """SIGKILL; with `machine` the power goes: nobody hears of it, and files lose what wasn't synced."""
        if self.state is State.DEAD:
            return
        self._becomes(State.DEAD)
        self.parked.clear()
        for dies in reversed(self.at_death):
            dies(machine)

    def _becomes(self, state: State) -> None:
        self.state = state
        self.host.states.append((self._loop.now, state))

    def forget_some(self) -> None:
        """The tasks that have ended."""
        self.tasks = [known for known in self.tasks if not known.done()]
        self.many = 2 * len(self.tasks) + _FEW
