"""Runs a job repeatedly on the event loop, even if it raises. Decision record: docs/decisions/background-jobs.md."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from math import inf

from gantrymq.background.report import JobReport
from gantrymq.logs import peer_log
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: Seconds until the next run. None uses the job's interval.
Pause = float | None
#: A plain function, or a function that returns an awaitable. Either result is the delay before the next run.
Work = Callable[[], Pause | Awaitable[Pause]]

#: Delay before the next run after a failure, in seconds. A shorter interval takes precedence.
AFTER_ERROR_S = 10.0
#: Shortest delay after a failure if `wake` was called during the run, in seconds. Without it, such a job could fail in
#: a tight loop.
LEAST_AFTER_ERROR_S = 0.1


class Repeating:
    """Runs `work` every `interval_s` seconds between `start` and `stop`. The first run comes after one interval.

    With the interval `math.inf`, only `wake` starts a run. An exception is counted and logged in `report`. `work` then
    runs again after the shorter of `interval_s` and `after_error_s`. Runs never overlap. `start` and `wake` must be
    called in the event loop.
    """

    def __init__(self, name: str, work: Work, interval_s: float = inf, *, after_error_s: float = AFTER_ERROR_S) -> None:
        self.report = JobReport(name)
        self._work = work
        self._interval_s = interval_s
        self._after_error_s = min(after_error_s, interval_s)
        self._timer: asyncio.Handle | None = None
        #: Time of the next run, in loop time; `inf` if none is scheduled. uvloop's handles do not have it.
        self.due = inf
        self._task: asyncio.Future[Pause] | None = None
        #: True after `cancel`, until the cancelled task ends.
        self._is_ending = False
        self._began = 0.0
        #: Time of the next run, if `wake` was called during the current one.
        self._wake_at = inf
        #: True between `start` and `cancel` or `stop`.
        self.is_started = False

    @property
    def is_running(self) -> bool:
        """Whether an asynchronous run is in progress."""
        return self._task is not None

    def start(self, after_s: float | None = None) -> None:
        """Starts the job. The first run comes after `after_s` instead of an interval. Further calls have no effect.

        If a cancelled run has not ended yet, the first run comes after it.
        """
        if self.is_started:
            return
        self.is_started = True
        seconds = self._interval_s if after_s is None else after_s
        if self._task is None:
            self._run_in(seconds)
        else:
            self._wake_at = asyncio.get_running_loop().time() + seconds

    def wake(self, after_s: float = 0.0) -> None:
        """Runs within `after_s` seconds. During a run, schedules one more after it. Has no effect on a stopped job."""
        if not self.is_started:
            return
        at = asyncio.get_running_loop().time() + after_s
        if self._task is not None:
            self._wake_at = min(self._wake_at, at)
        elif at < self.due:
            self._run_in(after_s)

    def cancel(self) -> None:
        """Stops the job. Cancels a current run that is a task."""
        self.is_started = False
        self.report.ended()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.due = inf
        if self._task is not None:
            self._is_ending = True
            self._task.cancel()

    async def stop(self) -> None:
        """Stops the job and waits until a current run has ended."""
        self.cancel()
        if self._task is not None:
            await asyncio.wait([self._task])

    def _run_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.due = inf
        if seconds != inf:
            loop = asyncio.get_running_loop()
            self.due = loop.time() + seconds
            self._timer = loop.call_later(seconds, self._run)

    def _run(self) -> None:
        self._timer = None
        self.due = self._wake_at = inf
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
                if not self.is_started:
                    self.report.ended()
            self._again(inf)
        elif task.cancelled():
            if self.is_started:
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
        """Schedules the next run after `seconds`. An earlier `wake` takes precedence, but no earlier than `least`."""
        if self.is_started:
            # A plain function may have called `wake` itself, which has set a timer.
            asked = min(self._wake_at, self.due)
            if asked != inf:
                seconds = min(seconds, max(asked - asyncio.get_running_loop().time(), least))
            self._run_in(seconds)
