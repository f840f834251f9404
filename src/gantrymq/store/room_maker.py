"""The thread that makes files and reserves their blocks before they are written to (`AllocateMappedFileService`).

To make a file, or to give it blocks, can take as long as the file system's journal waits for somebody's fsync: tens of
milliseconds, for which an event loop would stand still. So log, queues and index ask for room when they have used half
of what they have (`ask`), and go on meanwhile. Who has none left (`need`) waits for it where that is allowed; else he
gets StoreBusy at once, and is told when to try again (`when_made`).
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

#: What has failed is tried again in this time, s.
_RETRY_S = 0.5
#: Nobody asks for anything: it looks again after, s.
_NOTHING_S = 3600.0

Work = Callable[[], None]


class RoomMaker:
    """Does the work that is asked for, in a thread from `start` to `stop`; before and after it who needs it does it."""

    def __init__(self, report: JobReport, *, waits: bool) -> None:
        #: Who needs room waits for it; else `need` raises StoreBusy.
        self.waits = waits
        #: Who needs room now stands in no line.
        self.is_ahead_of_line = False
        #: Others wait already: who comes now is not to be served before them.
        self.has_line = False
        #: What those that wait need, and what all need that are ever to wait: the log's.
        self.wanted: set[Work] = set()
        self.for_all: set[Work] = set()
        #: While there is a line: what somebody in it got StoreBusy for, which none after him gets.
        self.refused: set[Work] | None = None
        self._report = report
        #: What is to be done, in this order, each once.
        self._asked: dict[Work, None] = {}
        #: What has failed and is tried again, and why.
        self._problems: dict[Work, Refusal] = {}
        self._callbacks: deque[Work] = deque()
        #: Held while a queue's file is made, by the thread or by who does it himself: where a deleted queue was another
        #: may stand. The log has a lock of its own, as its blocks take longer.
        self.making_for_queues = threads.Lock()
        self._stopping = False
        self._death: Refusal | None = None
        #: When what has failed is tried again.
        self._retry_at = inf
        self._thread = self._worker()

    def _worker(self) -> threads.Worker:
        return threads.Worker("gantry-room-maker", self._step, _NOTHING_S, self._died)

    def start(self) -> None:
        """Starts the thread; again, when it was stopped."""
        if self._stopping:
            self._stopping = False
            self._thread = self._worker()
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; what it had not begun is not done. Once more does no harm."""
        self._stopping = True
        self._thread.wake()
        self._thread.join()
        self._call_back()

    def ask(self, work: Work) -> None:
        """Has it done soon, unless who needs it may wait for it then."""
        if not self.waits:
            self._asked[work] = None
            self._thread.wake()

    def need(self, work: Work) -> None:
        """Has it done. Raises what it raises, or StoreBusy where nobody waits: then it is going to be done."""
        if self._death is not None:
            raise self._death.exception()
        if self.waits or not self._thread.is_alive:
            work()
            return
        problem = self._problems.get(work)
        if problem is not None:
            raise problem.exception()
        self.ask(work)
        if self.is_ahead_of_line:
            raise _busy()
        if self.refused is None:
            # There is no line: whoever needed the others comes again by himself.
            self.wanted.clear()
        else:
            self.refused.add(work)
        self.wanted.add(work)
        raise _busy()

    def check_line(self, work: Work) -> None:
        """Raises StoreBusy for who would be served before others that wait for the same."""
        if self.waits or self.is_ahead_of_line:
            return
        if self.is_closed_for(work) or (self.refused and work in self.refused):
            raise _busy()

    def is_closed_for(self, work: Work) -> bool:
        """Others wait for this, or for what everybody needs."""
        return self.has_line and (work in self.wanted or not self.wanted.isdisjoint(self.for_all))

    def is_waited_for(self, work: Work) -> bool:
        """There is a line, and somebody in it needs this."""
        return self.refused is not None and work in self.wanted

    def when_made(self, callback: Work) -> None:
        """Calls back, in the thread, when all that is asked for now is done or has failed; or the thread has ended."""
        self._callbacks.append(callback)
        self._thread.wake()
        if not self._thread.is_alive:
            self._call_back()

    def forget(self, work: Work) -> None:
        """Nobody needs it any more."""
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
        # Who comes from now on may have asked for what this round doesn't see.
        count = len(self._callbacks)
        error: Exception | None = None
        while self._asked and not self._stopping:
            error = self._do_first() or error
        now = clock.monotonic()
        if error is not None:
            self._retry_at = now + _RETRY_S
            # A full disk is no error of the program, and stops only those who are told so.
            level = logging.WARNING if isinstance(error, StoreFull) else logging.ERROR
            self._report.failed(error, now, log, now - began, level=level)
        elif not self._problems:
            self._report.succeeded(now - began, log)
        self._call_back(count)
        return max(self._retry_at - now, 0.0) if self._problems else _NOTHING_S

    def _do_first(self) -> Exception | None:
        """Does what was asked for first; what it raised."""
        try:
            work = next(iter(self._asked))
            del self._asked[work]
        except (StopIteration, KeyError, RuntimeError):
            return None  # `ask` and `forget` are called meanwhile: the next look finds what is there.
        try:
            work()
        except Exception as e:
            kind = type(e) if isinstance(e, StoreError) else StoreError
            self._problems[work] = Refusal(str(e), kind)
            return e
        # Room that somebody needed is there, whatever has failed before.
        self._problems.pop(work, None)
        return None

    def _call_back(self, count: int | None = None) -> None:
        for _ in range(len(self._callbacks) if count is None else count):
            with suppress(IndexError):
                callback = self._callbacks.popleft()
                try:
                    callback()
                except Exception:
                    log.exception("who waits for room can't be told")

    def _died(self, error: BaseException) -> None:
        self._report.failed(error, clock.monotonic(), log)
        text = f"the thread that makes the store's files died of {error!r}: no message is taken that needs another one"
        self._death = Refusal(text)
        self._call_back()


def _busy() -> StoreBusy:
    return StoreBusy("a file of the store is being made: try again at once")
