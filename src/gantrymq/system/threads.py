"""Threads and locks. `Worker` is a thread that repeats a step, `in_parallel` calls a function in several threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Condition, Event, Lock, Thread, current_thread, enumerate, get_ident, local
from typing import TypeVar

__all__ = [
    "Condition",
    "Event",
    "Lock",
    "SimpleQueue",
    "Thread",
    "Worker",
    "current_thread",
    "enumerate",
    "get_ident",
    "in_parallel",
    "local",
]

T = TypeVar("T")


def in_parallel(work: Callable[[T], None], items: Sequence[T], most: int) -> list[Exception | None]:
    """Calls `work` for each item, in up to `most` threads, for I/O. Returns an exception or None for each item."""

    def outcome(item: T) -> Exception | None:
        try:
            work(item)
        except Exception as e:
            return e
        return None

    if most == 1 or len(items) < 2:
        return [outcome(item) for item in items]
    with ThreadPoolExecutor(most, "gantry-parallel") as pool:
        return list(pool.map(outcome, items))


class Worker:
    """A daemon thread that calls `step` repeatedly: first after `pause_s`, then after the pause that `step` returns.

    `wake` ends a pause early. The thread ends when `step` returns None. If `step` raises, the thread calls `died` with
    the error and ends.
    """

    def __init__(
        self, name: str, step: Callable[[], float | None], pause_s: float, died: Callable[[BaseException], None]
    ) -> None:
        self._step = step
        self._pause_s = pause_s
        self._died = died
        #: Has an item from a `wake` to the next step. Costs less than an Event, which is written in Python.
        self._wakes: SimpleQueue[None] = SimpleQueue()
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def wake(self) -> None:
        """Starts the next step at once, or directly after the current one."""
        if self._wakes.empty():
            self._wakes.put(None)

    def join(self) -> None:
        """Waits until the thread has ended. Returns at once if it was never started."""
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            pause_s: float | None = self._pause_s
            while pause_s is not None:
                # Removes the item before the step, so that a `wake` during the step starts another one.
                with suppress(Empty):
                    self._wakes.get(timeout=pause_s)
                pause_s = self._step()
        except BaseException as e:
            self._died(e)
