"""LoopThread: an event loop in a thread of its own, for callers that have none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from gantrymq.background.event_loop import new_event_loop
from gantrymq.background.thread import SupervisedThread
from gantrymq.errors import ThreadDied
from gantrymq.logs import peer_log
from gantrymq.system import threads

log = peer_log(__name__)

#: How long work that is cancelled at the end may take to end.
CANCEL_TIMEOUT_S = 2.0

T = TypeVar("T")


class LoopThread:
    """Runs what `submit` is given; a context manager, whose end cancels what is under way.

    SystemExit or KeyboardInterrupt, raised by anything in the loop, end it. All who wait get ThreadDied, `at_death` is
    awaited, in which the owner closes what it has, and the thread ends.
    """

    def __init__(self, name: str, at_death: Callable[[], Awaitable[object]] | None = None) -> None:
        #: What the thread died of.
        self.error: BaseException | None = None
        self._name = name
        self._at_death = at_death
        self._loop = new_event_loop()
        self._thread = SupervisedThread(name, self._run, self._died)
        #: Of what was given to the loop and hasn't ended.
        self._futures: dict[Future[Any], None] = {}
        #: The loop runs no more: nobody is to wait for it.
        self._is_over = False
        self._stopping: asyncio.Task[None] | None = None
        #: Held while work is given to the loop, so that none comes after its death, and while it is closed.
        self._lock = threads.Lock()

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive

    @property
    def is_current(self) -> bool:
        """The caller runs in it."""
        return self._thread.is_current

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Starts `work`; may be called from any thread. Raises ThreadDied; so does the future's result."""
        future: Future[T] = Future()
        with self._lock:
            if self.error is not None:
                work.close()
                raise self._thread_died()
            if self._is_over:
                work.close()
                raise ThreadDied(f"the thread {self._name} has ended")
            self._futures[future] = None
            self._loop.call_soon_threadsafe(self._begin, work, future)
        return future

    def stop(self) -> None:
        """Cancels what is under way, ends the thread and closes the loop. Not to be called in the thread itself.

        Once more does no harm; whoever was interrupted here may call it again.
        """
        with self._lock:
            if self.error is None and self._thread.is_alive:
                self._loop.call_soon_threadsafe(self._begin_stop)
        self._thread.join()
        with self._lock:
            self._loop.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        self._loop.run_forever()
        with self._lock:
            self._is_over = True
        # What came after the stop: tasks that have not begun, or are not even made.
        self._loop.run_until_complete(_end_others())
        for future in list(self._futures):
            future.cancel()

    def _begin_stop(self) -> None:
        if self._stopping is None:
            self._stopping = self._loop.create_task(self._stop_loop())

    async def _stop_loop(self) -> None:
        try:
            await _end_others()
        finally:
            # Not at once: what has ended is told first to those who wait for it.
            self._loop.call_soon(self._loop.stop)

    def _begin(self, work: Coroutine[Any, Any, T], future: Future[T]) -> None:
        task = self._loop.create_task(work)
        task.add_done_callback(partial(self._hand_over, future))
        future.add_done_callback(partial(self._given_up, task))

    def _hand_over(self, future: Future[T], task: asyncio.Task[T]) -> None:
        self._futures.pop(future, None)
        if task.cancelled():
            future.cancel()
        if future.done() or not future.set_running_or_notify_cancel():
            return
        if (error := task.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(task.result())

    def _given_up(self, task: asyncio.Task[T], future: Future[T]) -> None:
        """Whoever waited cancelled the future."""
        if future.cancelled() and not task.done():
            self._loop.call_soon_threadsafe(task.cancel)

    def _died(self, error: BaseException) -> None:
        with self._lock:
            self.error = error
        for future in list(self._futures):
            if future.set_running_or_notify_cancel():
                future.set_exception(self._thread_died())
        try:
            self._loop.run_until_complete(self._end())
        except BaseException:
            log.exception("the thread %s left something behind", self._name)

    async def _end(self) -> None:
        if self._at_death is not None:
            await self._at_death()
        await _end_others()

    def _thread_died(self) -> ThreadDied:
        died = ThreadDied(f"the thread {self._name} died of {self.error!r}")
        died.__cause__ = self.error
        return died


async def _end_others() -> None:
    """Cancels what still runs: some thread may wait for it."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=CANCEL_TIMEOUT_S)
    await asyncio.get_running_loop().shutdown_asyncgens()
