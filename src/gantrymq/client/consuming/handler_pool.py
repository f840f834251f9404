"""MessageHandler pools: run a push consumer's handler on messages, several at a time.

`TaskPool` is for coroutine functions, `ThreadPool` for plain ones. Both call `done` in the event loop with each
message and the exception that the handler raised, or None. Messages of dropped queues are skipped.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from queue import SimpleQueue
from types import FrameType
from typing import Any, NamedTuple, Protocol, cast

from gantrymq.client.consuming.consume_statistics import TopicCounters
from gantrymq.protocol.message import MessageExt, MessageQueue

log = logging.getLogger(__name__)

#: Messages that one task handles before it lets the event loop go round, for handlers that never wait.
_MESSAGES_PER_TURN = 64
#: How long a handler that is cancelled may take to end.
CANCEL_TIMEOUT_S = 2.0


class Source(Protocol):
    """Where messages come from: a ProcessQueue or a PopProcessQueue."""

    queue: MessageQueue
    dropped: bool
    counters: TopicCounters
    last_consume: float


#: A plain function or a coroutine function; what it returns doesn't matter, what it raises does.
MessageHandler = Callable[[MessageExt], object]
#: Called with the Source as it was submitted.
Done = Callable[[Any, MessageExt, BaseException | None], None]


class Running(NamedTuple):
    """A message in its handler, since `started` (seconds since the epoch)."""

    source: Source
    message: MessageExt
    started: float


class HandlerPool(Protocol):
    """What the two pools have in common."""

    concurrency: int

    def submit(self, source: Source, messages: Iterable[MessageExt]) -> None:
        """Has the messages handled, in this order but at the same time."""

    def running(self) -> list[Running]:
        """What is in handlers now."""

    def stacks(self) -> str:
        """Where the handlers are, as text for an operator."""

    async def close(self, timeout_s: float) -> None:
        """Begins no further message; waits so long for those under way."""


def is_coroutine_handler(handler: MessageHandler) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


def handler_pool(handler: MessageHandler, concurrency: int, done: Done) -> HandlerPool:
    """The pool that fits `handler`; at most `concurrency` messages are handled at a time."""
    if is_coroutine_handler(handler):
        return TaskPool(cast(Callable[[MessageExt], Awaitable[object]], handler), concurrency, done)
    return ThreadPool(handler, concurrency, done)


def _count(source: Source, started: float, ended: float, error: BaseException | None) -> None:
    source.last_consume = ended
    counters = source.counters
    counters.handled += 1
    counters.handle_s += ended - started
    if error is not None:
        counters.failed += 1


class TaskPool:
    """Tasks that take messages from one line.

    There is at most one task that has not begun to work, and it is made only when the others may all be waiting in
    their handlers. So a handler that never waits costs one task for a whole pull, and one that does gets up to
    `concurrency` of them.
    """

    def __init__(self, handler: Callable[[MessageExt], Awaitable[object]], concurrency: int, done: Done) -> None:
        self.concurrency = concurrency
        self._handler = handler
        self._done = done
        self._line: deque[tuple[Source, MessageExt]] = deque()
        #: What each task has in hand, or had last: a tuple, not a Running, which takes longer to make.
        self._tasks: dict[asyncio.Task[None], tuple[Source, MessageExt, float] | None] = {}
        self._has_spare = False
        self._closing = False

    def submit(self, source: Source, messages: Iterable[MessageExt]) -> None:
        if not self._closing:
            self._line.extend([(source, message) for message in messages])
            self._add_spare()

    def running(self) -> list[Running]:
        return [Running(*running) for running in self._tasks.values() if running is not None]

    def stacks(self) -> str:
        return "\n".join(
            f"{task.get_name()} handles {running[1]!r}\n" + "".join(traceback.format_list(_waiting_at(task)))
            for task, running in self._tasks.items()
            if running is not None
        )

    async def close(self, timeout_s: float) -> None:
        self._closing = True
        self._line.clear()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CANCEL_TIMEOUT_S)
        for task in self._tasks:
            log.warning("a handler still runs in %s: its message will be delivered again", task.get_name())

    def _add_spare(self) -> None:
        if not self._has_spare and len(self._tasks) < self.concurrency:
            self._has_spare = True
            task = asyncio.create_task(self._work())
            self._tasks[task] = None
            task.add_done_callback(self._tasks.pop)

    async def _work(self) -> None:
        line, handler, done, tasks, now = self._line, self._handler, self._done, self._tasks, time.time
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._has_spare = False
        handled = 0
        while line:
            source, message = line.popleft()
            if source.dropped:
                continue
            if line:
                self._add_spare()
            started = now()
            tasks[task] = (source, message, started)
            error: BaseException | None = None
            try:
                await handler(message)
            except asyncio.CancelledError as e:
                if task.cancelling():
                    raise
                error = e  # The handler's own: something that it waited for was cancelled.
            except Exception as e:
                error = e
            # As `_count`, without the call.
            source.last_consume = ended = now()
            counters = source.counters
            counters.handled += 1
            counters.handle_s += ended - started
            if error is not None:
                counters.failed += 1
            done(source, message, error)
            handled += 1
            if handled % _MESSAGES_PER_TURN == 0:
                await asyncio.sleep(0)


def _waiting_at(task: asyncio.Task[None]) -> list[traceback.FrameSummary]:
    """Where a task waits, the innermost call last. `Task.get_stack` has the outermost only."""
    frames: list[tuple[FrameType, int]] = []
    waiting: Any = task.get_coro()
    while (frame := getattr(waiting, "cr_frame", None)) is not None:
        frames.append((frame, frame.f_lineno))
        waiting = waiting.cr_await
    return traceback.StackSummary.extract(frames)


class ThreadPool:
    """Threads that take messages from one line."""

    def __init__(self, handler: MessageHandler, concurrency: int, done: Done) -> None:
        self.concurrency = concurrency
        self._handler = handler
        self._done = done
        self._line: SimpleQueue[tuple[Source, MessageExt] | None] = SimpleQueue()
        self._running: dict[int, Running] = {}
        self._results: deque[tuple[Running, float, BaseException | None]] = deque()
        self._wake_is_due = False
        self._closing = False
        self._loop = asyncio.get_running_loop()
        # Daemons: a handler that hangs doesn't keep the process alive.
        self._threads = [
            threading.Thread(target=self._work, name=f"gantrymq-handler-{n}", daemon=True) for n in range(concurrency)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, source: Source, messages: Iterable[MessageExt]) -> None:
        for message in messages:
            self._line.put((source, message))

    def running(self) -> list[Running]:
        return list(self._running.values())

    def stacks(self) -> str:
        frames = sys._current_frames()
        running = dict(self._running)
        return "\n".join(
            f"{thread.name} handles {running[thread.ident].message!r}\n"
            + "".join(traceback.format_stack(frames[thread.ident]))
            for thread in self._threads
            if thread.ident in running and thread.ident in frames
        )

    async def close(self, timeout_s: float) -> None:
        self._closing = True
        for _ in self._threads:
            self._line.put(None)
        deadline = self._loop.time() + timeout_s
        await asyncio.to_thread(self._join, deadline)
        self._drain()

    def _join(self, deadline: float) -> None:
        for thread in self._threads:
            thread.join(max(0.0, deadline - self._loop.time()))
            if thread.is_alive():
                log.warning("a handler still runs in %s: its message will be delivered again", thread.name)

    def _work(self) -> None:
        me = threading.get_ident()
        while (item := self._line.get()) is not None:
            source, message = item
            if source.dropped or self._closing:
                continue
            running = self._running[me] = Running(source, message, time.time())
            error: BaseException | None = None
            try:
                result = self._handler(message)
                if inspect.iscoroutine(result):
                    result.close()
                    raise TypeError("the handler is a plain function that returns a coroutine: make it `async def`")
            except BaseException as e:
                error = e  # SystemExit too: this is no main thread.
            del self._running[me]
            self._results.append((running, time.time(), error))
            # While the pool closes nobody needs waking: `close` looks at the results itself.
            if not self._wake_is_due and not self._closing:
                self._wake_is_due = True
                self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        # First the flag, then the results: a thread that finds it set has its result seen below.
        self._wake_is_due = False
        results = self._results
        while results:
            (source, message, started), ended, error = results.popleft()
            _count(source, started, ended, error)
            self._done(source, message, error)
