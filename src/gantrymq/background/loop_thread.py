"""Runs an event loop in its own thread, for callers without an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from gantrymq.background.event_loop import new_event_loop
from gantrymq.background.thread import SupervisedThread
from gantrymq.errors import ThreadDied
from gantrymq.logs import peer_log
from gantrymq.system import threads

log = peer_log(__name__)

#: Time for cancelled work to end when the loop stops, in seconds.
CANCEL_TIMEOUT_S = 2.0

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class Watched(Protocol[T_contra]):
    """The part of `concurrent.futures.Future` that LoopThread needs."""

    def cancel(self) -> bool: ...
    def cancelled(self) -> bool: ...
    def done(self) -> bool: ...
    def set_running_or_notify_cancel(self) -> bool: ...
    def set_result(self, result: T_contra, /) -> None: ...
    def set_exception(self, exception: BaseException | None, /) -> None: ...
    def add_done_callback(self, callback: Callable[[Any], object], /) -> None: ...


class LoopThread:
    """Runs coroutines that are passed to `submit`. As a context manager, cancels the running ones at the end.

    If SystemExit or KeyboardInterrupt is raised in the loop, the thread ends. All pending futures then fail with
    ThreadDied, and `at_death` is awaited, so that the owner can close its resources.
    """

    def __init__(self, name: str, at_death: Callable[[], Awaitable[object]] | None = None) -> None:
        #: The exception that ended the thread.
        self.error: BaseException | None = None
        self._name = name
        self._at_death = at_death
        self._loop = new_event_loop()
        self._thread = SupervisedThread(name, self._run, self._died)
        #: Futures of submitted work that has not ended.
        self._futures: dict[Watched[Any], None] = {}
        #: True after the loop has stopped. New work is then rejected.
        self._is_over = False
        self._stopping: asyncio.Task[None] | None = None
        #: Guards the submission of work against the end of the thread and the closing of the loop.
        self._lock = threads.Lock()

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive

    @property
    def is_current(self) -> bool:
        """True if the caller runs in this thread."""
        return self._thread.is_current

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Starts `work` from any thread. Raises ThreadDied. If the thread dies later, the future fails with it, too."""
        future: Future[T] = Future()
        with self._lock:
            try:
                self._check_alive()
            except ThreadDied:
                work.close()
                raise
            self._futures[future] = None
            self._loop.call_soon_threadsafe(self.begin, work, future)
        return future

    def watch(self, future: Watched[Any]) -> None:
        """Cancels `future` when the loop stops, and fails it with ThreadDied if the thread dies. Raises ThreadDied."""
        with self._lock:
            self._check_alive()
            self._futures[future] = None
        future.add_done_callback(self._forget)

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Calls `callback` in the loop. Can be called from any thread. Raises ThreadDied."""
        with self._lock:
            self._check_alive()
            self._loop.call_soon_threadsafe(callback)

    def _check_alive(self) -> None:
        if self.error is not None:
            raise self._thread_died()
        if self._is_over:
            raise ThreadDied(f"the thread {self._name} has ended")

    def _forget(self, future: Watched[Any]) -> None:
        self._futures.pop(future, None)

    def stop(self) -> None:
        """Cancels running work, ends the thread and closes the loop. Must not be called in this thread.

        Further calls have no effect. After an interruption it can be called again.
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
        # Work that was submitted during the stop: tasks that have not begun or do not exist yet.
        self._loop.run_until_complete(_end_others())
        for future in list(self._futures):
            if future.cancel():
                # Wakes callers of `concurrent.futures.wait`.
                future.set_running_or_notify_cancel()

    def _begin_stop(self) -> None:
        if self._stopping is None:
            self._stopping = self._loop.create_task(self._stop_loop())

    async def _stop_loop(self) -> None:
        try:
            await _end_others()
        finally:
            # Runs one iteration later, so that results of ended work are delivered first.
            self._loop.call_soon(self._loop.stop)

    def begin(self, work: Coroutine[Any, Any, T], future: Watched[T]) -> None:
        """Starts `work` for a submitted or watched future. Must be called in the loop."""
        task = self._loop.create_task(work)
        task.add_done_callback(partial(self._hand_over, future))
        future.add_done_callback(partial(self._given_up, task))

    def _hand_over(self, future: Watched[T], task: asyncio.Task[T]) -> None:
        self._futures.pop(future, None)
        if task.cancelled():
            future.cancel()
        if future.done() or not future.set_running_or_notify_cancel():
            return
        if (error := task.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(task.result())

    def _given_up(self, task: asyncio.Task[T], future: Watched[T]) -> None:
        """Cancels the task after its future was cancelled."""
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
    """Cancels all other tasks, because other threads may wait for them."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=CANCEL_TIMEOUT_S)
    await asyncio.get_running_loop().shutdown_asyncgens()
