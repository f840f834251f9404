"""SimLoop: asyncio's event loop on virtual time.

When nothing is ready, time jumps to the next timer. Each turn takes a microsecond, so that a loop that waits for
nothing gets on. Threads' work (`run_in_executor`) runs in a turn of its own, some time later, in the loop's order.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from random import Random
from typing import Any

from sim.machine import PROCESS, State
from sim.network import Network, SimSocket

#: What a turn of the loop takes, s.
_TURN_S = 1e-6
#: Work in a thread takes up to so long, s.
_THREAD_S = 0.002
#: So many cancelled timers may wait for their time.
_MANY_CANCELLED = 100


class Standstill(Exception):
    """Nothing is ready and no timer is set, but the run isn't over."""


class SimLoop(asyncio.BaseEventLoop):
    """Runs until the coroutine of `run_until_complete` is done; raises Standstill when it never can be."""

    def __init__(self, chance: Random) -> None:
        super().__init__()
        self._now = 0.0
        #: Timers that were cancelled and are still in the heap.
        self._cancelled_count = 0
        self._chance = chance
        self.network = Network(self, chance)
        #: Exceptions that nobody handled, as asyncio tells them: a message and the error.
        self.unhandled: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.unhandled.append(context))
        self.set_task_factory(_make_task)  # type: ignore[arg-type]

    def time(self) -> float:
        return self._now

    # -- what asyncio's loop asks its system for ----------------------------------------------------------------

    def _run_once(self) -> None:
        ready: deque[asyncio.Handle] = self._ready  # type: ignore[attr-defined]
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        self._drop_cancelled(timers)
        self._now += _TURN_S
        if not ready:
            if not timers:
                if self._stopping:  # type: ignore[attr-defined]
                    return
                raise Standstill(f"at {self._now:.6f} s nothing is left to do")
            self._now = max(self._now, timers[0].when())
        while timers and timers[0].when() <= self._now:
            timer = heapq.heappop(timers)
            timer._scheduled = False  # type: ignore[attr-defined]
            ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle.cancelled():
                continue
            process = handle._context.get(PROCESS)  # type: ignore[attr-defined]
            if process is None or process.state is State.RUNNING:
                handle._run()
            elif process.state is State.STOPPED:
                process.parked.append(handle)

    def ready(self, handle: asyncio.Handle) -> None:
        """Runs in the next turn; the same handle may again."""
        self._ready.append(handle)  # type: ignore[attr-defined]

    def unpark(self, handles: deque[asyncio.Handle]) -> None:
        """Work that waited for its process to go on."""
        self._ready.extend(handles)  # type: ignore[attr-defined]
        handles.clear()

    def _drop_cancelled(self, timers: list[asyncio.TimerHandle]) -> None:
        """Those at the head, and all of them when they are half of many."""
        while timers and timers[0].cancelled():
            self._cancelled_count -= 1
            heapq.heappop(timers)._scheduled = False  # type: ignore[attr-defined]
        if self._cancelled_count > max(_MANY_CANCELLED, len(timers) // 2):
            for timer in timers:
                timer._scheduled = not timer.cancelled()  # type: ignore[attr-defined]
            timers[:] = [timer for timer in timers if not timer.cancelled()]
            heapq.heapify(timers)
            self._cancelled_count = 0

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        # Called by asyncio.
        self._cancelled_count += handle._scheduled  # type: ignore[attr-defined]

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none: the network calls back by itself."""

    def _write_to_self(self) -> None:
        """Nothing sleeps that would have to be woken."""

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        result: asyncio.Future[Any] = self.create_future()

        def run() -> None:
            if result.cancelled():
                # As in a thread: who waits no longer doesn't stop it, once it runs.
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

        self.call_later(self._chance.uniform(0, _THREAD_S), run)
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
        """Hosts are known by their addresses."""
        return [(2, 1, 6, "", (host, port))]


def _socket(fd: Any) -> SimSocket:
    assert isinstance(fd, SimSocket), f"{fd!r} is no simulated socket"
    return fd


def _make_task(
    loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], context: Context | None = None
) -> asyncio.Task[Any]:
    # Names in the order of creation, of this run: those of asyncio count all loops' tasks.
    task = asyncio.Task(coro, loop=loop, context=context, name="task")
    process = (context or copy_context()).get(PROCESS)
    if process is not None:
        process.has(task)
    return task
