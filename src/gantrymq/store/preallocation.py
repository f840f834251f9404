"""File preallocation in a background thread (`AllocateMappedFileService`).

Creating a file or reserving its blocks can block for tens of milliseconds, for example while the file system journal
waits for an fsync. That would stall the event loop. The commit log, the consume queues and the index therefore request
more space (`ask`) when half of the current space is used.

If no space is left (`need`):
- If `waits` is set, the caller waits for the operation.
- Otherwise `need` raises StoreBusy at once, and the caller registers a callback with `when_made`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from math import inf

from gantrymq.background.report import JobReport
from gantrymq.errors import StoreBusy, StoreError, StoreFull
from gantrymq.store.refusal import Refusal
from gantrymq.system import clock, threads

log = logging.getLogger(__name__)

#: Pause before a failed operation is repeated, in seconds.
_RETRY_S = 0.5
#: Wake-up interval of the idle thread, in seconds.
_NOTHING_S = 3600.0

Work = Callable[[], None]


class Preallocation:
    """Runs preallocation requests in one thread, from `start` to `stop`.

    Before `start` and after `stop`, the calling thread does the work itself.
    """

    def __init__(self, report: JobReport, *, waits: bool) -> None:
        #: If true, `need` waits for the operation; otherwise it raises StoreBusy.
        self.waits = waits
        #: If true, the caller skips the wait queue for preallocated space.
        self.skips_wait_queue = False
        #: Whether callers are in the wait queue. Later callers with the same need come after them.
        self.has_wait_queue = False
        #: `wanted` are the operations that the waiting callers need, `for_all` those that all callers need: the log's.
        self.wanted: set[Work] = set()
        self.for_all: set[Work] = set()
        #: While callers wait, the operations for which a waiting caller got StoreBusy. Later callers get StoreBusy,
        #: too.
        self.refused: set[Work] | None = None
        self._report = report
        #: Requested operations in the order of execution, each only once.
        self._asked: dict[Work, None] = {}
        #: Failed operations, which are repeated, and their errors.
        self._problems: dict[Work, Refusal] = {}
        self._callbacks: deque[Work] = deque()
        #: Serializes the preallocation of queue files, because a new queue can have the path of a deleted one. The log
        #: has its own lock, because its preallocation takes longer.
        self.making_for_queues = threads.Lock()
        self._stopping = False
        self._death: Refusal | None = None
        #: Time at which failed operations are repeated.
        self._retry_at = inf
        self._thread = self._worker()

    def _worker(self) -> threads.Worker:
        return threads.Worker("gantry-preallocation", self._step, _NOTHING_S, self._died)

    def start(self) -> None:
        """Starts the thread; also after `stop`."""
        if self._stopping:
            self._stopping = False
            self._thread = self._worker()
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread. Pending operations are not executed. Further calls have no effect."""
        self._stopping = True
        self._thread.wake()
        self._thread.join()
        self._call_back()

    def ask(self, work: Work) -> None:
        """Requests an operation in advance. No effect if callers wait for operations themselves (`waits`)."""
        if not self.waits:
            self._asked[work] = None
            self._thread.wake()

    def need(self, work: Work) -> None:
        """Executes an operation if `waits` is set or the thread is not running.

        Otherwise, it requests the operation and raises StoreBusy.

        Raises the exceptions of the operation.
        """
        if self._death is not None:
            raise self._death.exception()
        if self.waits or not self._thread.is_alive:
            work()
            return
        problem = self._problems.get(work)
        if problem is not None:
            raise problem.exception()
        self.ask(work)
        if self.skips_wait_queue:
            raise _busy()
        if self.refused is None:
            # Without a wait queue, callers retry on their own.
            self.wanted.clear()
        else:
            self.refused.add(work)
        self.wanted.add(work)
        raise _busy()

    def check_wait_queue(self, work: Work) -> None:
        """Raises StoreBusy if the caller would overtake others in the wait queue that need the same operation."""
        if self.waits or self.skips_wait_queue:
            return
        if self.is_closed_for(work) or (self.refused and work in self.refused):
            raise _busy()

    def is_closed_for(self, work: Work) -> bool:
        """Returns whether callers wait for this operation, or for one that all callers need."""
        return self.has_wait_queue and (work in self.wanted or not self.wanted.isdisjoint(self.for_all))

    def is_waited_for(self, work: Work) -> bool:
        """Returns whether a caller in the wait queue needs this operation."""
        return self.refused is not None and work in self.wanted

    def when_made(self, callback: Work) -> None:
        """Calls `callback` in the thread when all current requests are done or failed, or when the thread ends."""
        self._callbacks.append(callback)
        self._thread.wake()
        if not self._thread.is_alive:
            self._call_back()

    def forget(self, work: Work) -> None:
        """Discards an operation that is no longer needed."""
        self._asked.pop(work, None)
        self._problems.pop(work, None)
        self.wanted.discard(work)

    def _step(self) -> float | None:
        if self._stopping:
            return None
        began = clock.monotonic()
        if began >= self._retry_at:
            self._retry_at = inf
            self._asked.update(dict.fromkeys(list(self._problems)))
        # Later callbacks may belong to requests that this round does not see.
        count = len(self._callbacks)
        error: Exception | None = None
        while self._asked and not self._stopping:
            error = self._do_first() or error
        now = clock.monotonic()
        if error is not None:
            self._retry_at = now + _RETRY_S
            # A full disk is not a program error, and only affects the callers that get the exception.
            level = logging.WARNING if isinstance(error, StoreFull) else logging.ERROR
            self._report.failed(error, now, log, now - began, level=level)
        elif not self._problems:
            self._report.succeeded(now - began, log)
        self._call_back(count)
        return max(self._retry_at - now, 0.0) if self._problems else _NOTHING_S

    def _do_first(self) -> Exception | None:
        """Executes the oldest request. Returns its exception or None."""
        try:
            work = next(iter(self._asked))
            del self._asked[work]
        except (StopIteration, KeyError, RuntimeError):
            # `ask` and `forget` run in another thread at the same time. The next iteration sees the result.
            return None
        try:
            work()
        except Exception as e:
            kind = type(e) if isinstance(e, StoreError) else StoreError
            self._problems[work] = Refusal(str(e), kind)
            return e
        # The space is available now, so an earlier failure no longer counts.
        self._problems.pop(work, None)
        return None

    def _call_back(self, count: int | None = None) -> None:
        for _ in range(len(self._callbacks) if count is None else count):
            with suppress(IndexError):
                callback = self._callbacks.popleft()
                try:
                    callback()
                except Exception:
                    log.exception("a callback for a preallocated file failed")

    def _died(self, error: BaseException) -> None:
        self._report.failed(error, clock.monotonic(), log)
        text = f"the preallocation thread died of {error!r}: messages are rejected that need a new file"
        self._death = Refusal(text)
        self._call_back()


def _busy() -> StoreBusy:
    return StoreBusy("a file of the store is being made: try again at once")
