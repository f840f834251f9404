"""Runs functions in daemon threads, which do not delay the end of the process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from gantrymq.background.thread import SupervisedThread

T = TypeVar("T")


def in_background(name: str, work: Callable[[], T]) -> Future[T]:
    """Runs `work` in a daemon thread. Returns a future with its result or error."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as e:
            future.set_exception(e)

    SupervisedThread(name, run, future.set_exception).start()
    return future
