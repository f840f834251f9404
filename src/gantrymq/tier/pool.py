"""TierThreads: the threads that read and write the objects of a tier.

They are not those of the event loop: an object store that hangs must not delay other work. They are daemon threads: a
call that hangs must not keep the process from ending.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from gantrymq.system import threads

T = TypeVar("T")

_Call = tuple["Future[Any]", Callable[[], Any]]


class TierThreads:
    """Up to `count` threads. `run` calls a function in one of them.

    At most `most_calls` calls wait or run. A call that was abandoned after its timeout counts until it ends.
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

        Raises TimeoutError after `timeout_s`, None for no limit, or at once if too many calls have not ended.
        """
        if self.is_full:
            raise TimeoutError(f"{self.calls} calls have not ended")
        future: Future[T] = Future()
        self.calls += 1
        loop = asyncio.get_running_loop()

        def ended(future: Future[T]) -> None:
            # RuntimeError: the loop has been closed.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._ended)

        future.add_done_callback(ended)
        if len(self._threads) < min(self._count, self.calls):
            thread = threads.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._queue.put((future, function))
        result = asyncio.wrap_future(future)
        # After a timeout, nobody else retrieves the exception.
        result.add_done_callback(lambda done: done.cancelled() or done.exception())
        # Not cancelled, because the call may run.
        return await asyncio.wait_for(asyncio.shield(result), timeout_s)

    def close(self) -> None:
        """Ends each thread after its current call. Calls that have not started are not made."""
        for _ in self._threads:
            self._queue.put(None)
        self._threads.clear()

    def _ended(self) -> None:
        self.calls -= 1

    def _work(self) -> None:
        while (call := self._queue.get()) is not None:
            future, function = call
            try:
                future.set_result(function())
            except BaseException as e:
                future.set_exception(e)
            # The next call may come much later.
            del call, future, function
