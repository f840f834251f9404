"""Handler pools: run the handler of a push consumer on several messages at a time.

`TaskPool` is for coroutine functions, `ThreadPool` for plain functions. After each message, both call `done` in the
event loop with the exception of the handler or None, even if the task or thread of the message ends in any other way.
After a queue is dropped, its messages that are not yet `running` never reach a handler.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextvars import copy_context
from itertools import repeat
from types import FrameType
from typing import Any, NamedTuple, Protocol, cast

from gantrymq.background.thread import SupervisedThread
from gantrymq.client.consuming.consume_statistics import TopicCounters
from gantrymq.client.consuming.large_bodies import LargeBodies, LargeBodiesInThreads
from gantrymq.errors import BrokerError, RefusalReason
from gantrymq.logs import peer_log
from gantrymq.protocol.message import MessageExt, MessageQueue
from gantrymq.system import clock, threads

log = peer_log(__name__)

#: Largest number of messages that a task handles before it yields to the event loop. Needed for handlers that never
#: wait.
_MESSAGES_PER_TURN = 64
#: Time that a cancelled handler gets to end, s.
CANCEL_TIMEOUT_S = 0.5
#: Creates a Running without the call of its own constructor, which is slower.
_new = tuple.__new__
_NOT_TOLD = "%s of %s was handled, what follows failed"


class Source(Protocol):
    """Source of messages: a ProcessQueue or a PopProcessQueue."""

    queue: MessageQueue
    dropped: bool
    counters: TopicCounters
    last_consume: float


#: A plain function or a coroutine function. Its result is ignored; if it raises, the message has failed.
MessageHandler = Callable[[MessageExt], object]
#: Called with the Source that was submitted.
Done = Callable[[Any, MessageExt, BaseException | None], None]


class Running(NamedTuple):
    """A message in its handler, started at `started` (seconds since the epoch)."""

    source: Source
    message: MessageExt
    started: float


class HandlerPool(Protocol):
    """Interface of both pools."""

    concurrency: int

    def submit(self, source: Source, messages: Iterable[MessageExt]) -> None:
        """Queues the messages for the handler. Their handlers start in this order and run concurrently."""

    def running(self) -> list[Running]:
        """Returns the messages that are in handlers."""

    def stacks(self) -> str:
        """Returns the stacks of the handlers as text, for an operator."""

    async def close(self, timeout_s: float) -> None:
        """Starts no further message and waits for running handlers, for at most `timeout_s` seconds."""


def is_coroutine_handler(handler: MessageHandler) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


def call_plainly(handler: MessageHandler, message: MessageExt) -> None:
    """Calls a plain function. Raises TypeError if it returns a coroutine."""
    result = handler(message)
    if result is not None and inspect.iscoroutine(result):
        result.close()
        raise TypeError("the handler is a plain function that returns a coroutine: make it `async def`")


def handler_pool(handler: MessageHandler, concurrency: int, done: Done) -> HandlerPool:
    """Returns the pool for this kind of handler. At most `concurrency` messages are handled at a time."""
    if is_coroutine_handler(handler):
        return TaskPool(cast(Callable[[MessageExt], Awaitable[object]], handler), concurrency, done)
    return ThreadPool(handler, concurrency, done)


def _notify(done: Done, running: Running, ended: float, error: BaseException | None) -> None:
    """Updates the counters and calls `done`. An error of `done` does not affect other messages."""
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


class _Handling:
    """The message in the handler of one task: source, message and start; None between messages.

    A plain tuple, because creating a Running takes longer.
    """

    __slots__ = ("running",)

    def __init__(self) -> None:
        self.running: tuple[Source, MessageExt, float] | None = None


class TaskPool:
    """Tasks that take messages from one queue.

    A new task is created only when the last one has started, because all earlier tasks may then wait in their handlers.
    A handler that never waits therefore uses one task for a whole pull; others use up to `concurrency` tasks.
    """

    def __init__(self, handler: Callable[[MessageExt], Awaitable[object]], concurrency: int, done: Done) -> None:
        self.concurrency = concurrency
        self._handler = handler
        self._done = done
        self._line: deque[tuple[Source, MessageExt]] = deque()
        self._tasks: dict[asyncio.Task[None], _Handling] = {}
        #: The task that has not started.
        self._spare: asyncio.Task[None] | None = None
        self._closing = False
        self._loop = asyncio.get_running_loop()
        self._large_bodies = LargeBodies()

    def submit(self, source: Source, messages: Iterable[MessageExt]) -> None:
        if not self._closing:
            self._line.extend(zip(repeat(source), messages))
            self._add_spare()

    def running(self) -> list[Running]:
        return [Running(*handling.running) for handling in self._tasks.values() if handling.running is not None]

    def stacks(self) -> str:
        return "\n".join(
            f"{task.get_name()} handles {handling.running[1]!r}\n" + "".join(traceback.format_list(_waiting_at(task)))
            for task, handling in self._tasks.items()
            if handling.running is not None
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
            handling = _Handling()
            self._spare = task = self._loop.create_task(self._work(handling))
            self._tasks[task] = handling
            task.add_done_callback(self._ended)

    async def _work(self, handling: _Handling) -> None:
        line, handler, done, now = self._line, self._handler, self._done, clock.time
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._spare = None
        handled = 0
        started = now()
        while line:
            source, message = line.popleft()
            if source.dropped:
                continue
            if line and self._spare is None:
                self._add_spare()
            handling.running = (source, message, started)
            error: BaseException | None = None
            held = 0
            try:
                if message.is_packed:
                    held = await self._large_bodies.decompress(message)
                await handler(message)
            except (KeyboardInterrupt, SystemExit):
                raise  # These two end the whole program.
            except asyncio.CancelledError as e:
                if task.cancelling():
                    raise
                error = e  # The handler raised this error, because an object that it awaited was cancelled.
            except GeneratorExit as e:
                if not self._loop.is_running():
                    raise  # The event loop was abandoned while the handler ran.
                error = e
            except BaseException as e:
                error = without_lost_reply(e, message)
            finally:
                if held:
                    self._large_bodies.release(message, held)
            handling.running = None
            # The code of `_notify`, without the cost of a call.
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
            started = ended  # The next message starts at once. This saves a call of `now`.
            if handled % _MESSAGES_PER_TURN == 0:
                await asyncio.sleep(0)
                started = now()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Handles the end of a task. Reports the message of a task that was cancelled or failed."""
        in_hand = self._tasks.pop(task).running
        if self._spare is task:
            self._spare = None
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if self._closing or isinstance(error, KeyboardInterrupt | SystemExit):
            return
        if error is not None:
            log.error("%s, which handles messages, ended: %r", task.get_name(), error)
            if in_hand is not None:
                _notify(self._done, Running(*in_hand), clock.time(), error)
        if self._line:
            # These messages are from a failed task, or were submitted between this task's last look at the queue and
            # its end.
            self._add_spare()


def _waiting_at(task: asyncio.Task[None]) -> list[traceback.FrameSummary]:
    """Returns the stack of a waiting task, innermost call last. `Task.get_stack` returns only the outermost call."""
    frames: list[tuple[FrameType, int]] = []
    waiting: Any = task.get_coro()
    while (frame := getattr(waiting, "cr_frame", None)) is not None:
        frames.append((frame, frame.f_lineno))
        waiting = waiting.cr_await
    return traceback.StackSummary.extract(frames)


class ThreadPool:
    """Threads that take messages from one queue."""

    def __init__(self, handler: MessageHandler, concurrency: int, done: Done) -> None:
        self.concurrency = concurrency
        self._handler = handler
        self._done = done
        self._line: threads.SimpleQueue[tuple[Source, MessageExt] | None] = threads.SimpleQueue()
        #: Keyed by thread number. Changed under the lock, so that a thread either takes a message or sees its queue
        #: dropped.
        self._running: dict[int, Running] = {}
        self._lock = threads.Lock()
        self._large_bodies = LargeBodiesInThreads()
        self._results: deque[tuple[Running, float, BaseException | None]] = deque()
        self._wake_is_due = False
        self._closing = False
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._threads: list[SupervisedThread] = []
        #: Number of threads whose end is not reported yet.
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
        # SupervisedThreads are daemons: a handler that hangs does not keep the process alive.
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
                    running = self._running[me] = _new(Running, (source, message, clock.time()))
            if is_left_out:
                if held:
                    self._large_bodies.release(message, held)
                continue
            error: BaseException | None = None
            try:
                # A copy of the context of the consumer's start, so that a handler's changes do not affect the next one.
                self._context.copy().run(call_plainly, self._handler, message)
            except BaseException as e:
                error = without_lost_reply(e, message)  # Includes SystemExit, because this is not the main thread.
            finally:
                if held:
                    self._large_bodies.release(message, held)
            self._handled(running, error)

    def _handled(self, running: Running, error: BaseException | None) -> None:
        self._results.append((running, clock.time(), error))
        del self._running[threads.get_ident()]
        # During a close, `close` itself drains the results.
        if not self._wake_is_due and not self._closing:
            self._wake_is_due = True
            self._in_loop(self._drain)

    def _died(self, error: BaseException) -> None:
        """Fails the message of this thread and has the thread replaced. Runs in the thread itself."""
        running = self._running.get(threads.get_ident())
        if running is not None:
            self._handled(running, error)
        self._in_loop(self._replace)

    def _in_loop(self, callback: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            # The event loop was closed before this pool.
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
        # Clear the flag before reading: the result of a thread that saw the flag set is then drained below.
        self._wake_is_due = False
        results = self._results
        while results:
            _notify(self._done, *results.popleft())


def without_lost_reply(error: BaseException, message: MessageExt) -> BaseException | None:
    """Logs the error of a reply to a disconnected requester and returns None; returns any other error.

    The request counts as consumed and is not redelivered.
    """
    if not isinstance(error, BrokerError) or error.reason is not RefusalReason.REQUESTER_GONE:
        return error
    log.warning("the requester of %s is disconnected, its reply is dropped: %s", message.msg_id, error)
    return None
