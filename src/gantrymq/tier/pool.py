"""TierThreads: the threads that read and write the objects of a tier.

They are not those of the event loop: an object store that hangs must not delay other work. They are daemon threads: a
call that hangs must not keep the process from ending.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, TypeVar

from gantrymq.system import threads
from gantrymq.system.clock import monotonic

T = TypeVar("T")

#: The future, the function, and the monotonic time in seconds until which the call may start.
_Call = tuple["Future[Any]", Callable[[], Any], float]


class TierThreads:
    """Up to `count` threads. `run` calls a function in one of them.

    At most `most_calls` calls wait or run. A call that was abandoned counts until a thread takes it or it ends. It does
    not run if it has not started: the threads would otherwise be busy with calls whose results nobody needs.
    """

    def __init__(self, name: str, count: int, most_calls: int) -> None:
        self._name = name
        self._count = count
        self._most_calls = most_calls
        self._queue: threads.SimpleQueue[_Call | None] = threads.SimpleQueue()
        self._threads: list[threads.Thread] = []
        #: Number of calls that have not ended.
        self.calls = 0

    @property
    def is_full(self) -> bool:
        """Whether `run` would refuse a call."""
        return self.calls >= self._most_calls

    async def run(self, function: Callable[[], T], timeout_s: float | None = None) -> T:
        """Returns the result of a function, or raises its exception.

        Raises TimeoutError after `timeout_s`, None for no limit, or at once if too many calls have not ended. Half of
        the time remains for the call: if it could not start before, it is not made.
        """
        if self.is_full:
            raise TimeoutError(f"{self.calls} calls have not ended")
        future: Future[T] = Future()
        self.calls += 1
        if len(self._threads) < min(self._count, self.calls):
            target = partial(self._work, asyncio.get_running_loop())
            thread = threads.Thread(target=target, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._queue.put((future, function, inf if timeout_s is None else monotonic() + timeout_s / 2))
        # Cancels the future, which has no effect on a call that runs.
        return await asyncio.wait_for(asyncio.wrap_future(future), timeout_s)

    def close(self) -> None:
        """Ends each thread after its current call. Calls that have not started are not made."""
        for _ in self._threads:
            self._queue.put(None)
        self._threads.clear()

    def _ended(self) -> None:
        self.calls -= 1

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        while (call := self._queue.get()) is not None:
            _make(*call)
            # RuntimeError: the loop has been closed.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._ended)
            # The next call may come much later.
            del call


def _make(future: Future[Any], function: Callable[[], Any], latest_start: float) -> None:
    """Makes a call, unless it was abandoned or waited for too long."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        if monotonic() > latest_start:
            raise TimeoutError("no thread was free in time")
        future.set_result(function())
    except BaseException as e:
        future.set_exception(e)
