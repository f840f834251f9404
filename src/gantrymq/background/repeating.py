"""Repeating: work that is done again and again on the event loop, whatever it raises.

Alternatives that lost: a `call_later` at the end of each callback, which one exception ends for ever; a task with a
loop and a sleep for each job, which costs a task where a timer does, and wakes up only when its sleep is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from math import inf

from gantrymq.background.report import JobReport
from gantrymq.logs import peer_log
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: Seconds until the next run; None for the job's interval.
Pause = float | None
#: A plain function, or one that returns an awaitable; what either returns says when it runs next.
Work = Callable[[], Pause | Awaitable[Pause]]

#: After a failure a job whose interval is longer, or that only runs when it is woken, is tried again in this time, s.
AFTER_ERROR_S = 10.0
#: Also when the run that failed was asked for again while it was under way: else such work fails without a pause.
LEAST_AFTER_ERROR_S = 0.1


class Repeating:
    """Runs `work` every `interval_s` from `start` to `stop`; the first time after one interval.

    An interval of `math.inf` is for work that only `wake` brings about. An exception is counted and logged in `report`,
    and `work` runs again after the shorter of `interval_s` and `after_error_s`. Runs never overlap. The loop is the one
    that `start` or `wake` finds running.
    """

    def __init__(self, name: str, work: Work, interval_s: float = inf, *, after_error_s: float = AFTER_ERROR_S) -> None:
        self.report = JobReport(name)
        self._work = work
        self._interval_s = interval_s
        self._after_error_s = min(after_error_s, interval_s)
        self._timer: asyncio.Handle | None = None
        #: When it is to run, loop time; uvloop's handles don't tell.
        self._due = inf
        self._task: asyncio.Future[Pause] | None = None
        #: `cancel` has ended the task, which takes its time.
        self._is_ending = False
        self._began = 0.0
        #: When a run that is under way is to be followed by another, if somebody asked for it meanwhile.
        self._wake_at = inf
        self._started = False

    def start(self, after_s: float | None = None) -> None:
        """Begins; the first run comes after `after_s` instead of an interval. Once more does no harm.

        A run that was cancelled and has not ended yet is waited for.
        """
        if self._started:
            return
        self._started = True
        seconds = self._interval_s if after_s is None else after_s
        if self._task is None:
            self._run_in(seconds)
        else:
            self._wake_at = asyncio.get_running_loop().time() + seconds

    def wake(self, after_s: float = 0.0) -> None:
        """Runs after `after_s` at the latest; if a run is under way, once more then. Nothing when stopped."""
        if not self._started:
            return
        at = asyncio.get_running_loop().time() + after_s
        if self._task is not None:
            self._wake_at = min(self._wake_at, at)
        elif at < self._due:
            self._run_in(after_s)

    def cancel(self) -> None:
        """No more runs; one that is under way in a task is cancelled."""
        self._started = False
        self.report.ended()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._due = inf
        if self._task is not None:
            self._is_ending = True
            self._task.cancel()

    async def stop(self) -> None:
        """`cancel`, and waits until a run that is under way has ended."""
        self.cancel()
        if self._task is not None:
            await asyncio.wait([self._task])

    def _run_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due = inf
        if seconds != inf:
            loop = asyncio.get_running_loop()
            self._due = loop.time() + seconds
            self._timer = loop.call_later(seconds, self._run)

    def _run(self) -> None:
        self._timer = None
        self._due = self._wake_at = inf
        self._began = monotonic()
        try:
            result = self._work()
        except (Exception, asyncio.CancelledError) as e:
            self._failed(e)
            return
        if result is None or isinstance(result, float | int):
            self._done(result)
        else:
            self._task = asyncio.ensure_future(result)
            self._task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Future[Pause]) -> None:
        self._task = None
        if self._is_ending:
            self._is_ending = False
            if not task.cancelled() and (error := task.exception()) is not None:
                self.report.failed(error, monotonic(), log, monotonic() - self._began)
                if not self._started:
                    self.report.ended()
            self._again(inf)
        elif task.cancelled():
            if self._started:
                self._failed(asyncio.CancelledError("cancelled from outside"))
        elif (error := task.exception()) is not None:
            self._failed(error)
        else:
            self._done(task.result())

    def _done(self, pause: Pause) -> None:
        self.report.succeeded(monotonic() - self._began, log)
        self._again(self._interval_s if pause is None else pause)

    def _failed(self, error: BaseException) -> None:
        now = monotonic()
        self.report.failed(error, now, log, now - self._began)
        self._again(self._after_error_s, min(self._after_error_s, LEAST_AFTER_ERROR_S))

    def _again(self, seconds: float, least: float = 0.0) -> None:
        """Runs in so many seconds, or earlier if that was asked for meanwhile, but not in less than `least`."""
        if self._started:
            # Plain work may have called `wake` itself, which set a timer.
            asked = min(self._wake_at, self._due)
            if asked != inf:
                seconds = min(seconds, max(asked - asyncio.get_running_loop().time(), least))
            self._run_in(seconds)
