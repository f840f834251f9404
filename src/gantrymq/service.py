"""run: a service's main function, ended in order by SIGTERM and Ctrl-C."""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from gantrymq.background.event_loop import new_event_loop

log = logging.getLogger(__name__)

T = TypeVar("T")

#: What is in hand may take so long when the process is told to stop. systemd kills after 90 s.
STOP_TIMEOUT_S = 30.0


def run(
    main: Callable[[], Coroutine[Any, Any, T]] | Callable[[asyncio.Event], Coroutine[Any, Any, T]],
    *,
    stop_timeout_s: float = STOP_TIMEOUT_S,
) -> T | None:
    """Runs `main` on an event loop of its own until it returns, or the process gets SIGTERM or SIGINT (Ctrl-C).

    A `main` without parameters is cancelled then: its `async with` blocks close consumers and producers, which finish
    what is in hand. One with a parameter is given an event that is set then, and returns when it likes. What takes
    longer than `stop_timeout_s`, and what is under way at a second signal, is cancelled.

    Returns what `main` returns, None if SIGTERM ended it; after Ctrl-C raises SystemExit with code 130. Neither prints
    a traceback. Other errors of `main` are raised. Signals are only heard in the main thread; on Windows it is Ctrl-C
    alone.
    """
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        result, told_by = runner.run(_run(main, stop_timeout_s))
    if told_by == signal.SIGINT:
        raise SystemExit(128 + told_by)
    return result


async def _run(main: Callable[..., Coroutine[Any, Any, T]], stop_timeout_s: float) -> tuple[T | None, int]:
    """What `main` returned, and the signal that ended it, 0 for none."""
    stop = asyncio.Event()
    takes_event = bool(inspect.signature(main).parameters)
    task = asyncio.ensure_future(main(stop) if takes_event else main())
    loop, told = asyncio.get_running_loop(), _Told(task, stop, takes_event, stop_timeout_s)
    handled = _signals()
    for number in handled:
        loop.add_signal_handler(number, told, number)
    try:
        return await task, told.by
    except asyncio.CancelledError:
        if not told.by:
            raise
        return None, told.by
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
        told.end()


class _Told:
    """The process was told to stop; `by` is the first signal, 0 before it."""

    def __init__(self, task: asyncio.Future[Any], stop: asyncio.Event, takes_event: bool, timeout_s: float) -> None:
        self.by = 0
        self._task = task
        self._stop = stop
        self._takes_event = takes_event
        self._timeout_s = timeout_s
        self._timer: asyncio.TimerHandle | None = None

    def __call__(self, number: int) -> None:
        if self.by:
            log.warning("told to stop once more (%s): what is under way is given up", signal.Signals(number).name)
            self._task.cancel()
            return
        self.by = number
        log.info("told to stop (%s)", signal.Signals(number).name)
        self._stop.set()
        if not self._takes_event:
            self._task.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._timeout_s, self._give_up)

    def _give_up(self) -> None:
        log.error("not stopped in %g s: what is under way is given up", self._timeout_s)
        self._task.cancel()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _signals() -> list[signal.Signals]:
    """Those that this thread's event loop can be told."""
    if threading.current_thread() is not threading.main_thread():
        return []
    # On Windows Ctrl-C comes by asyncio's runner, as KeyboardInterrupt.
    return [] if sys.platform == "win32" else [signal.SIGTERM, signal.SIGINT]
