"""Handler pools: run a push consumer's handler on messages, several at a time.

`TaskPool` is for coroutine functions, `ThreadPool` for plain ones. Both call `done` in the event loop with each
message and the exception that the handler raised, or None. Messages of dropped queues are skipped.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from queue import SimpleQueue
from typing import Protocol, cast

from gantrymq.client.process_queue import ProcessQueue
from gantrymq.protocol.message import MessageExt

log = logging.getLogger(__name__)

#: A plain function or a coroutine function; what it returns doesn't matter, what it raises does.
Handler = Callable[[MessageExt], object]
Done = Callable[[ProcessQueue, MessageExt, Exception | None], None]

#: Messages that one task handles before it lets the event loop go round, for handlers that never wait.
_MESSAGES_PER_TURN = 64


class HandlerPool(Protocol):
    """What the two pools have in common."""

    def submit(self, process_queue: ProcessQueue, messages: Iterable[MessageExt]) -> None:
        """Has the messages handled, in this order but at the same time."""

    async def close(self, timeout_s: float) -> None:
        """Begins no further message; waits so long for those under way."""


def handler_pool(handler: Handler, concurrency: int, done: Done) -> HandlerPool:
    """The pool that fits `handler`; at most `concurrency` messages are handled at a time."""
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__):
        return TaskPool(cast(Callable[[MessageExt], Awaitable[object]], handler), concurrency, done)
    return ThreadPool(handler, concurrency, done)


class TaskPool:
    """Tasks that take messages from one line.

    There is at most one task that has not begun to work, and it is made only when the others may all be waiting in
    their handlers. So a handler that never waits costs one task for a whole pull, and one that does gets up to
    `concurrency` of them.
    """

    def __init__(self, handler: Callable[[MessageExt], Awaitable[object]], concurrency: int, done: Done) -> None:
        self._handler = handler
        self._concurrency = concurrency
        self._done = done
        self._line: deque[tuple[ProcessQueue, MessageExt]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_spare = False
        self._closing = False

    def submit(self, process_queue: ProcessQueue, messages: Iterable[MessageExt]) -> None:
        if not self._closing:
            self._line.extend([(process_queue, message) for message in messages])
            self._add_spare()

    async def close(self, timeout_s: float) -> None:
        self._closing = True
        self._line.clear()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _add_spare(self) -> None:
        if not self._has_spare and len(self._tasks) < self._concurrency:
            self._has_spare = True
            task = asyncio.create_task(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work(self) -> None:
        line, handler, done = self._line, self._handler, self._done
        self._has_spare = False
        handled = 0
        while line:
            process_queue, message = line.popleft()
            if process_queue.dropped:
                continue
            if line:
                self._add_spare()
            try:
                await handler(message)
            except Exception as e:
                done(process_queue, message, e)
            else:
                done(process_queue, message, None)
            handled += 1
            if handled % _MESSAGES_PER_TURN == 0:
                await asyncio.sleep(0)


class ThreadPool:
    """Threads that take messages from one line."""

    def __init__(self, handler: Handler, concurrency: int, done: Done) -> None:
        self._handler = handler
        self._done = done
        self._line: SimpleQueue[tuple[ProcessQueue, MessageExt] | None] = SimpleQueue()
        self._results: deque[tuple[ProcessQueue, MessageExt, Exception | None]] = deque()
        self._wake_is_due = False
        self._closing = False
        self._loop = asyncio.get_running_loop()
        # Daemons: a handler that hangs doesn't keep the process alive.
        self._threads = [
            threading.Thread(target=self._work, name=f"gantrymq-handler-{n}", daemon=True) for n in range(concurrency)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, process_queue: ProcessQueue, messages: Iterable[MessageExt]) -> None:
        for message in messages:
            self._line.put((process_queue, message))

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
        while (item := self._line.get()) is not None:
            process_queue, message = item
            if process_queue.dropped or self._closing:
                continue
            error: Exception | None = None
            try:
                result = self._handler(message)
                if inspect.iscoroutine(result):
                    result.close()
                    raise TypeError("the handler is a plain function that returns a coroutine: make it `async def`")
            except Exception as e:
                error = e
            self._results.append((process_queue, message, error))
            # While the pool closes nobody needs waking: `close` looks at the results itself.
            if not self._wake_is_due and not self._closing:
                self._wake_is_due = True
                self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        # First the flag, then the results: a thread that finds it set has its result seen below.
        self._wake_is_due = False
        results = self._results
        while results:
            self._done(*results.popleft())
