"""Handler pools: run a push consumer's handler on messages, several at a time.

`TaskPool` is for coroutine functions, `ThreadPool` for plain ones. Both call `done` in the event loop with each
message and the exception that the handler raised, or None; so they do when the task or thread that has the message
ends in any other way. Messages of dropped queues are skipped: whoever drops a queue and finds its message not
`running` then may be sure that no handler gets it.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextvars import copy_context
from types import FrameType
from typing import Any, NamedTuple, Protocol, cast

from gantrymq.background.thread import SupervisedThread
from gantrymq.client.consuming.consume_statistics import TopicCounters
from gantrymq.client.consuming.large_bodies import LargeBodies, LargeBodiesInThreads
from gantrymq.client.consuming.lost_replies import without_lost_reply
from gantrymq.logs import peer_log
from gantrymq.protocol.message import MessageExt, MessageQueue
from gantrymq.system import clock, threads

log = peer_log(__name__)

#: Messages that one task handles before it lets the event loop go round, for handlers that never wait.
_MESSAGES_PER_TURN = 64
#: How long a handler that is cancelled may take to end.
CANCEL_TIMEOUT_S = 0.5
_NOT_TOLD = "%s of %s was handled, what follows failed"


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


def _tell(done: Done, running: Running, ended: float, error: BaseException | None) -> None:
    """Counts a message that was handled and calls `done`, whose failure is none of the next messages'."""
    source, message, started = running
    source.last_consume = ended
    counters = source.counters
    counters.handled += 1
    counters.handle_s += ended - started
    if error is not None:
        counters.failed += 1
    try:
        done(source, message, error)
    except Exception:
        log.exception(_NOT_TOLD, message.msg_id, source.queue)


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
        #: What each task has in hand: a tuple, not a Running, which takes longer to make.
        self._tasks: dict[asyncio.Task[None], tuple[Source, MessageExt, float] | None] = {}
        #: The task that has not begun.
        self._spare: asyncio.Task[None] | None = None
        self._closing = False
        self._loop = asyncio.get_running_loop()
        self._large_bodies = LargeBodies()

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
        if self._spare is None and len(self._tasks) < self.concurrency:
            self._spare = task = self._loop.create_task(self._work())
            self._tasks[task] = None
            task.add_done_callback(self._ended)

    async def _work(self) -> None:
        line, handler, done, tasks, now = self._line, self._handler, self._done, self._tasks, clock.time
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._spare = None
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
            held = 0
            try:
                if message.is_packed:
                    held = await self._large_bodies.decompress(message)
                await handler(message)
            except (KeyboardInterrupt, SystemExit):
                raise  # Of the whole program.
            except asyncio.CancelledError as e:
                if task.cancelling():
                    raise
                error = e  # The handler's own: something that it waited for was cancelled.
            except GeneratorExit as e:
                if not self._loop.is_running():
                    raise  # The loop was given up with the handler in it.
                error = e
            except BaseException as e:
                error = without_lost_reply(e, message)
            finally:
                if held:
                    self._large_bodies.release(message, held)
            tasks[task] = None
            # As `_tell`, without the call.
            source.last_consume = ended = now()
            counters = source.counters
            counters.handled += 1
            counters.handle_s += ended - started
            if error is not None:
                counters.failed += 1
            try:
                done(source, message, error)
            except Exception:
                log.exception(_NOT_TOLD, message.msg_id, source.queue)
            handled += 1
            if handled % _MESSAGES_PER_TURN == 0:
                await asyncio.sleep(0)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Most tasks end because the line is empty; one that was cancelled, or failed, leaves its message behind."""
        in_hand = self._tasks.pop(task)
        if self._spare is task:
            self._spare = None
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if self._closing or isinstance(error, KeyboardInterrupt | SystemExit):
            return
        if error is not None:
            log.error("%s, which handles messages, ended: %r", task.get_name(), error)
            if in_hand is not None:
                _tell(self._done, Running(*in_hand), clock.time(), error)
        if self._line:
            # Left by a task that failed; or submitted since this one had seen that there are none, and still counted.
            self._add_spare()


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
        self._line: threads.SimpleQueue[tuple[Source, MessageExt] | None] = threads.SimpleQueue()
        #: By the thread's number. With the lock a thread takes a message or sees that its queue was dropped.
        self._running: dict[int, Running] = {}
        self._lock = threads.Lock()
        self._large_bodies = LargeBodiesInThreads()
        self._results: deque[tuple[Running, float, BaseException | None]] = deque()
        self._wake_is_due = False
        self._closing = False
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._threads: list[SupervisedThread] = []
        #: Threads that have not told their end.
        self._alive = 0
        self._all_ended = asyncio.Event()
        for _ in range(concurrency):
            self._add_thread()

    def submit(self, source: Source, messages: Iterable[MessageExt]) -> None:
        for message in messages:
            self._line.put((source, message))

    def running(self) -> list[Running]:
        with self._lock:
            return list(self._running.values())

    def stacks(self) -> str:
        frames = sys._current_frames()
        names = {thread.ident: thread.name for thread in threads.enumerate()}
        return "\n".join(
            f"{names.get(number)} handles {running.message!r}\n" + "".join(traceback.format_stack(frames[number]))
            for number, running in dict(self._running).items()
            if number in frames
        )

    async def close(self, timeout_s: float) -> None:
        self._closing = True
        self._large_bodies.close()
        for _ in self._threads:
            self._line.put(None)
        try:
            async with asyncio.timeout(timeout_s):
                await self._all_ended.wait()
        except TimeoutError:
            for running in self.running():
                log.warning("a handler still runs: %s will be delivered again", running.message.msg_id)
        else:
            for thread in self._threads:
                thread.join()
        self._drain()

    def _add_thread(self) -> None:
        # SupervisedThreads are daemons: a handler that hangs doesn't keep the process alive.
        thread = SupervisedThread(f"gantrymq-handler-{len(self._threads)}", self._run, self._died)
        self._threads.append(thread)
        self._alive += 1
        thread.start()

    def _run(self) -> None:
        self._work()
        self._in_loop(self._ended)

    def _work(self) -> None:
        me = threads.get_ident()
        while (item := self._line.get()) is not None:
            source, message = item
            held = self._large_bodies.decompress(message) if message.is_packed else 0
            with self._lock:
                is_left_out = source.dropped or self._closing
                if not is_left_out:
                    running = self._running[me] = Running(source, message, clock.time())
            if is_left_out:
                if held:
                    self._large_bodies.release(message, held)
                continue
            error: BaseException | None = None
            try:
                # The context that the consumer was started in; what a handler sets in it isn't the next one's.
                result = self._context.copy().run(self._handler, message)
                if inspect.iscoroutine(result):
                    result.close()
                    raise TypeError("the handler is a plain function that returns a coroutine: make it `async def`")
            except BaseException as e:
                error = without_lost_reply(e, message)  # SystemExit is one, too: this is no main thread.
            finally:
                if held:
                    self._large_bodies.release(message, held)
            self._handled(running, error)

    def _handled(self, running: Running, error: BaseException | None) -> None:
        self._results.append((running, clock.time(), error))
        del self._running[threads.get_ident()]
        # While the pool closes nobody needs waking: `close` looks at the results itself.
        if not self._wake_is_due and not self._closing:
            self._wake_is_due = True
            self._in_loop(self._drain)

    def _died(self, error: BaseException) -> None:
        """Called in the thread. What it had in hand has failed, and another takes its place."""
        running = self._running.get(threads.get_ident())
        if running is not None:
            self._handled(running, error)
        self._in_loop(self._replace)

    def _in_loop(self, callback: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            # The loop was closed and this pool wasn't: there is nobody to tell.
            self._closing = True

    def _replace(self) -> None:
        if not self._closing:
            self._add_thread()
        self._ended()
        self._drain()

    def _ended(self) -> None:
        self._alive -= 1
        if not self._alive:
            self._all_ended.set()

    def _drain(self) -> None:
        # First the flag, then the results: a thread that finds it set has its result seen below.
        self._wake_is_due = False
        results = self._results
        while results:
            _tell(self._done, *results.popleft())
