"""Hosts and processes, and the process to which each callback belongs.

Each callback of the loop has a context, and a variable of this context contains its process. Tasks, timers and
connections inherit the context, so they belong to the process that started them. The loop never runs callbacks of a
killed process. It defers those of a stopped process until the process continues.
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

#: The process of the current callback. None for the simulator's own callbacks.
PROCESS: ContextVar[Process | None] = ContextVar("PROCESS", default=None)


#: Number of finished tasks that a process may keep. Each one keeps its result or its exception.
_FEW = 30


class State(Enum):
    RUNNING = 1
    #: SIGSTOP: the callbacks are deferred, and the connections stay open.
    STOPPED = 2
    #: None of its callbacks ever runs again.
    DEAD = 3


class Host:
    """A machine with an address, its own wall clock, and one process at a time."""

    def __init__(self, loop: SimLoop, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self._clock_ahead_s = 0.0
        self._clock_drift = 0.0
        #: (begin, ahead, drift) of each setting of the clock; times in seconds.
        self._clock_settings = [(0.0, 0.0, 0.0)]
        #: Longest additional time of work in a thread, in seconds.
        self.thread_s = 0.0
        self.process: Process | None = None
        #: Start time of the process, in seconds.
        self.started_at = 0.0
        #: States of the process, each with the time of its begin in seconds.
        self.states: list[tuple[float, State]] = []
        #: Earlier processes. Without this reference, Python would destroy their tasks and run their `finally` blocks.
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
        """Returns the seconds since 1970 by this host's clock. `epoch_s` is the start time of the simulation."""
        now = self._loop.now
        return epoch_s + now + self._clock_ahead_s + now * self._clock_drift

    def clock_errors(self, since: float, until: float) -> tuple[float, float]:
        """Returns the smallest and the largest error of the wall clock between two times, in seconds.

        Positive errors are ahead.
        """
        errors: list[float] = []
        for number, (begin, ahead_s, drift) in enumerate(self._clock_settings):
            following = self._clock_settings[number + 1 :]
            end = following[0][0] if following else until
            if begin <= until and end >= since:
                errors += [ahead_s + max(begin, since) * drift, ahead_s + min(end, until) * drift]
        return min(errors), max(errors)

    def start(self, main: Callable[[], Coroutine[Any, Any, None]]) -> Process:
        """Starts a process whose main task is `main()`. The previous process must be dead."""
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
    """One lifetime of a program on a host."""

    def __init__(self, loop: SimLoop, host: Host, number: int) -> None:
        self.host = host
        self.name = f"{host.name}#{number}"
        self.state = State.RUNNING
        self.main: asyncio.Task[None] | None = None
        #: Called at its death. The argument is true if the machine lost power, so that open connections and files are
        #: lost, too.
        self.at_death: list[Callable[[bool], None]] = []
        #: Callbacks that became due while the process was stopped.
        self.parked: deque[asyncio.Handle] = deque()
        #: Running and some finished tasks. If there are more than `many`, finished ones are removed.
        self.tasks: list[asyncio.Task[Any]] = []
        self.many = _FEW
        self._loop = loop

    @property
    def context(self) -> Context:
        """A new context for callbacks of this process."""
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
        """Kills the process (SIGKILL).

        With `machine`, the power fails: peers get no reset, and files lose unsynced data.
        """
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
        """Removes finished tasks."""
        self.tasks = [known for known in self.tasks if not known.done()]
        self.many = 2 * len(self.tasks) + _FEW
