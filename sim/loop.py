"""asyncio event loop on virtual time.

If nothing is ready, the time jumps to the next timer. Each iteration takes a microsecond, so a busy loop advances the
time, too. `run_in_executor` runs the work of a thread in a later iteration, so its order is deterministic.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from heapq import heapify, heappop, heappush
from random import Random
from typing import Any

from msgspec import Struct

from sim.machine import PROCESS, Process, State
from sim.network import Network, SimSocket

#: Duration of one iteration, in seconds.
SLICE_S = 1e-6
#: Longest duration of work in a thread, in seconds.
_THREAD_S = 0.002
#: Number of cancelled timers from which the timer heap is cleaned up.
_MANY_CANCELLED = 100


class Standstill(Exception):
    """Raised if nothing is ready and no timer is set before the run is over."""


class SimHandle(Struct, eq=False):
    """A fast replacement of `asyncio.Handle`, made in C. A run creates about a hundred for each message."""

    _callback: Callable[..., Any]
    _args: tuple[Any, ...]
    _context: Context
    _cancelled: bool = False

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None  # type: ignore[assignment]

    def cancelled(self) -> bool:
        return self._cancelled


class SimTimer(Struct, eq=False):
    """A fast replacement of `asyncio.TimerHandle`."""

    _when: float
    _callback: Callable[..., Any]
    _args: tuple[Any, ...]
    _loop: SimLoop
    _context: Context
    _cancelled: bool = False
    _scheduled: bool = True

    def when(self) -> float:
        return self._when

    def cancelled(self) -> bool:
        return self._cancelled

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._callback = self._args = None  # type: ignore[assignment]
            self._loop.timer_cancelled(self)


class SimLoop(asyncio.BaseEventLoop):
    """Event loop of a run. `run_until_complete` raises Standstill if its coroutine can never finish."""

    def __init__(self, chance: Random) -> None:
        super().__init__()
        #: The time in seconds. Faster to read than `time()`.
        self.now = 0.0
        #: Timers ordered by time. Timers of the same time are in the order in which they were set.
        self._timers: list[tuple[float, int, SimTimer]] = []
        self._timer_count = 0
        #: Number of cancelled timers in `_timers`.
        self._cancelled_count = 0
        self._chance = chance
        self.network = Network(self, chance)
        #: Unhandled exceptions: the contexts that asyncio passes to its exception handler.
        self.unhandled: list[dict[str, Any]] = []
        #: Number of iterations.
        self.turns = 0
        #: Duration of an iteration at present, in seconds. The script `Handed` increases it.
        self.turn_s = SLICE_S
        self.set_exception_handler(lambda _, context: self.unhandled.append(context))

    def time(self) -> float:
        return self.now

    # -- faster versions of asyncio's methods -------------------------------------------------------------------

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> SimHandle:  # type: ignore[override]
        if self._closed:  # type: ignore[attr-defined]
            raise RuntimeError("Event loop is closed")
        handle = SimHandle(callback, args, copy_context() if context is None else context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> SimTimer:
        # Repeats the body of `call_at`, to save a call.
        if self._closed:  # type: ignore[attr-defined]
            raise RuntimeError("Event loop is closed")
        when = self.now + delay
        timer = SimTimer(when, callback, args, self, copy_context() if context is None else context)
        self._timer_count += 1
        heappush(self._timers, (when, self._timer_count, timer))
        return timer

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> SimTimer:
        if self._closed:  # type: ignore[attr-defined]
            raise RuntimeError("Event loop is closed")
        timer = SimTimer(when, callback, args, self, copy_context() if context is None else context)
        self._timer_count += 1
        heappush(self._timers, (when, self._timer_count, timer))
        return timer

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        if self._closed:  # type: ignore[attr-defined]
            raise RuntimeError("Event loop is closed")
        # asyncio's default names count the tasks of all loops.
        task = asyncio.Task(coro, loop=self, context=context, name=name or "task")
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is not None:
            if len(process.tasks) > process.many:
                process.forget_some()
            process.tasks.append(task)
        return task

    def get_debug(self) -> bool:
        """Returns False. Each task and future calls this."""
        return False

    def set_again(self, timer: SimTimer, when: float) -> None:
        """Schedules an expired timer again."""
        timer._when, timer._scheduled = when, True
        self._timer_count += 1
        heappush(self._timers, (when, self._timer_count, timer))

    def close(self) -> None:
        super().close()
        self._timers.clear()

    def _run_once(self) -> None:
        """Runs iterations until the loop is stopped."""
        ready: deque[Any] = self._ready  # type: ignore[attr-defined]
        timers = self._timers
        running, stopped = State.RUNNING, State.STOPPED
        while True:
            now = self.now = self.now + self.turn_s
            self.turns += 1
            if not ready and not self._stopping:  # type: ignore[attr-defined]
                while timers and timers[0][2]._cancelled:
                    self._cancelled_count -= 1
                    heappop(timers)
                if not timers:
                    raise Standstill(f"at {now:.6f} s nothing is left to do")
                if timers[0][0] > now:
                    now = self.now = timers[0][0]
            while timers and timers[0][0] <= now:
                timer = heappop(timers)[2]
                timer._scheduled = False
                if timer._cancelled:
                    self._cancelled_count -= 1
                else:
                    ready.append(timer)
            for _ in range(len(ready)):
                handle = ready.popleft()
                if handle._cancelled:
                    continue
                context: Context = handle._context
                process = context.get(PROCESS)
                if process is None or (state := process.state) is running:
                    try:
                        # A call without `*` is faster, and most callbacks have no arguments.
                        if args := handle._args:
                            context.run(handle._callback, *args)
                        else:
                            context.run(handle._callback)
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as e:
                        self._raised(handle, e)
                elif state is stopped:
                    process.parked.append(handle)
            if self._stopping:  # type: ignore[attr-defined]
                return

    def _raised(self, handle: Any, error: BaseException) -> None:
        self.call_exception_handler(
            {"message": f"Exception in callback {_name(handle)}", "exception": error, "handle": handle}
        )

    def go_on(self, process: Process) -> None:
        """Runs one iteration of a process while one of its threads blocks.

        Timers, and with them all other threads, wait.
        """
        ready: deque[Any] = self._ready  # type: ignore[attr-defined]
        for _ in range(len(ready)):
            handle = ready.popleft()
            context: Context = handle._context
            if context.get(PROCESS) is process and not handle._cancelled and not isinstance(handle, SimTimer):
                try:
                    context.run(handle._callback, *handle._args)
                except BaseException as e:
                    self._raised(handle, e)
                # The current iteration counted this handle, so a cancelled one takes its position.
                handle = SimHandle(handle._callback, (), context, True)
            ready.append(handle)

    def ready(self, handle: asyncio.Handle) -> None:
        """Runs the handle in the next iteration. The same handle can be used several times."""
        self._ready.append(handle)  # type: ignore[attr-defined]

    def unpark(self, handles: deque[asyncio.Handle]) -> None:
        """Schedules the callbacks that were deferred while their process was stopped."""
        self._ready.extend(handles)  # type: ignore[attr-defined]
        handles.clear()

    def timer_cancelled(self, timer: SimTimer) -> None:
        """Counts a cancelled timer. If more than 100 timers and more than half of them are cancelled, removes these."""
        self._cancelled_count += timer._scheduled
        timers = self._timers
        if self._cancelled_count > max(_MANY_CANCELLED, len(timers) // 2):
            timers[:] = [entry for entry in timers if not entry[2]._cancelled]
            heapify(timers)
            self._cancelled_count = 0

    # -- system interface of asyncio's loop ---------------------------------------------------------------------

    def _process_events(self, event_list: list[Any]) -> None:
        """Does nothing: the simulated network calls back directly."""

    def _write_to_self(self) -> None:
        """Does nothing: the loop never sleeps."""

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        result: asyncio.Future[Any] = self.create_future()

        def run() -> None:
            if result.cancelled():
                # As with a real thread: a cancelled future prevents the start of the work, but does not stop running
                # work.
                return
            value, error = None, None
            try:
                value = func(*args)
            except BaseException as e:
                error = e
            self.call_later(self._chance.uniform(0, _THREAD_S), done, value, error)

        def done(value: Any, error: BaseException | None) -> None:
            if not result.done():
                if error is None:
                    result.set_result(value)
                else:
                    result.set_exception(error)

        process = PROCESS.get()
        longer_s = process.host.thread_s if process is not None else 0.0
        self.call_later(self._chance.uniform(0, _THREAD_S + longer_s), run)
        return result

    # -- the network --------------------------------------------------------------------------------------------

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]
        _socket(fd).add_reader(events.Handle(callback, args, self, copy_context()))

    def remove_reader(self, fd: Any) -> bool:
        return _socket(fd).remove_reader()

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **options: Any
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        assert not options.get("ssl"), "the simulated network has no TLS"
        return await self.network.connect(protocol_factory, host, port)

    async def connect_accepted_socket(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], sock: Any, **options: Any
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        assert not options.get("ssl"), "the simulated network has no TLS"
        return _socket(sock).begin(protocol_factory)

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        """Returns the host as its own address."""
        return [(2, 1, 6, "", (host, port))]


def _socket(fd: Any) -> SimSocket:
    assert isinstance(fd, SimSocket), f"{fd!r} is no simulated socket"
    return fd


def _name(handle: asyncio.Handle) -> str:
    """Returns the name of the callback without its memory address, which differs in each run."""
    callback = handle._callback  # type: ignore[attr-defined]
    return getattr(callback, "__qualname__", type(callback).__name__)
