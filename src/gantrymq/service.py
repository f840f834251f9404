"""Runs the main coroutine of a service, and stops it cleanly on SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, TypeVar

from gantrymq.background.event_loop import new_event_loop
from gantrymq.times import duration_s

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Default timeout for an orderly stop after the first signal, in seconds. systemd kills the process after 90 s.
STOP_TIMEOUT_S = 30.0


def run(
    main: Callable[[], Coroutine[Any, Any, T]] | Callable[[asyncio.Event], Coroutine[Any, Any, T]],
    *,
    stop_timeout: float | timedelta = STOP_TIMEOUT_S,
) -> T | None:
    """Runs `main` on a new event loop until it returns, or until the process receives SIGTERM or SIGINT (Ctrl-C).

    On the first signal:

    - If `main` has no parameter, it is cancelled. Its `async with` blocks then close the consumers and producers, which
      finish their pending work.
    - If `main` has a parameter, it receives an `asyncio.Event`. The signal sets the event, and `main` should return.

    If `main` is still running after `stop_timeout`, it is cancelled, possibly for the second time. A second signal
    has the same effect. Signals are handled only in the main thread. On Windows, only Ctrl-C is handled.

    Example:
        async def main() -> None:
            consumer = PushConsumer("127.0.0.1:9876", "group", handle)
            consumer.subscribe("topic")
            async with consumer:
                await asyncio.Event().wait()

        run(main)

    Args:
        main: Coroutine function without parameters, or with one parameter for the stop event.
        stop_timeout: Timeout for an orderly stop, in seconds or as a timedelta. Default: 30.0.

    Returns:
        The result of `main`, or None if SIGTERM cancelled it.

    Raises:
        SystemExit: The first signal was Ctrl-C. The exit code is 130, and no traceback is printed.
        Exception: An error of `main`, unchanged.
    """
    stop_timeout_s = duration_s("stop_timeout", stop_timeout)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        result, stopped_by = runner.run(_run(main, stop_timeout_s))
    if stopped_by == signal.SIGINT:
        raise SystemExit(128 + stopped_by)
    return result


async def _run(main: Callable[..., Coroutine[Any, Any, T]], stop_timeout_s: float) -> tuple[T | None, int]:
    """Returns the result of `main`, and the first stop signal or 0."""
    stop = asyncio.Event()
    takes_event = bool(inspect.signature(main).parameters)
    task = asyncio.ensure_future(main(stop) if takes_event else main())
    loop, signals = asyncio.get_running_loop(), _StopSignals(task, stop, takes_event, stop_timeout_s)
    handled = _signals()
    for number in handled:
        loop.add_signal_handler(number, signals, number)
    try:
        return await task, signals.by
    except asyncio.CancelledError:
        if not signals.by:
            raise
        return None, signals.by
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
        signals.end()


class _StopSignals:
    """The handler of stop signals. `by` is the first signal, or 0 before a signal."""

    def __init__(self, task: asyncio.Future[Any], stop: asyncio.Event, takes_event: bool, timeout_s: float) -> None:
        self.by = 0
        self._task = task
        self._stop = stop
        self._takes_event = takes_event
        self._timeout_s = timeout_s
        self._timer: asyncio.TimerHandle | None = None

    def __call__(self, number: int) -> None:
        """Handles a signal: the first starts the stop, and later signals cancel `main`."""
        if self.by:
            log.warning("second stop signal (%s): pending work is cancelled", signal.Signals(number).name)
            self._task.cancel()
            return
        self.by = number
        log.info("stop signal (%s)", signal.Signals(number).name)
        self._stop.set()
        if not self._takes_event:
            self._task.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._timeout_s, self._give_up)

    def _give_up(self) -> None:
        """Cancels `main` after the stop timeout."""
        log.error("the stop took longer than %g s: pending work is cancelled", self._timeout_s)
        self._task.cancel()

    def end(self) -> None:
        """Cancels the stop timeout, because `main` has ended."""
        if self._timer is not None:
            self._timer.cancel()


def _signals() -> list[signal.Signals]:
    """Returns the signals that this thread's event loop can handle."""
    if threading.current_thread() is not threading.main_thread():
        return []
    # On Windows, asyncio's runner handles Ctrl-C and raises KeyboardInterrupt.
    return [] if sys.platform == "win32" else [signal.SIGTERM, signal.SIGINT]
