"""Threads and what they share; `Worker` is one that makes rounds, `in_parallel` has several wait at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
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
    """What `work` raised, called for each item, at most so many at a time; for what waits without the GIL."""

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
    """A daemon thread that calls `step` after `pause_s`, or when it is woken, and again after as many as that returns.

    It ends when `step` returns None. What `step` raises ends it too, and `died` is called with that, in the thread.
    """

    def __init__(
        self, name: str, step: Callable[[], float | None], pause_s: float, died: Callable[[BaseException], None]
    ) -> None:
        self._step = step
        self._pause_s = pause_s
        self._died = died
        self._awake = Event()
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def wake(self) -> None:
        """Has a step begin at once, or once more after the one that is under way."""
        if not self._awake.is_set():
            self._awake.set()

    def join(self) -> None:
        """Waits until it has ended; one that was never started has."""
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            pause_s: float | None = self._pause_s
            while pause_s is not None:
                self._awake.wait(pause_s)
                # Before the step: who wakes it meanwhile wants another.
                self._awake.clear()
                pause_s = self._step()
        except BaseException as e:
            self._died(e)
