"""Tests of repeating jobs. They continue after an error, run again, and report their state."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from math import inf

import pytest
import uvloop
from wait_until import until

from gantrymq.background.jobs import Jobs
from gantrymq.background.repeating import LEAST_AFTER_ERROR_S, Repeating
from gantrymq.background.report import LOG_INTERVAL_S, JobReport


class Counted:
    """Counts its runs. `fail_on` selects the runs that raise an error."""

    def __init__(self, fail_on: Callable[[int], bool] = lambda _: False, pause_s: float | None = None) -> None:
        self.runs = 0
        self._fail_on = fail_on
        self._pause_s = pause_s
        self._reached: dict[int, asyncio.Future[None]] = {}

    def __call__(self) -> float | None:
        self.runs += 1
        if self.runs in self._reached:
            self._reached.pop(self.runs).set_result(None)
        if self._fail_on(self.runs):
            raise OSError(5, f"error {self.runs}")
        return self._pause_s

    async def slowly(self) -> float | None:
        await asyncio.sleep(0)
        return self()

    async def reached(self, runs: int) -> None:
        if self.runs < runs:
            self._reached[runs] = asyncio.get_running_loop().create_future()
            async with asyncio.timeout(5):
                await self._reached[runs]


@pytest.mark.parametrize("is_async", [False, True])
async def test_runs_until_it_is_stopped(is_async: bool) -> None:
    counted = Counted()
    job = Repeating("count", counted.slowly if is_async else counted, 0.001)
    job.start()
    await counted.reached(5)
    await job.stop()
    runs = counted.runs
    await asyncio.sleep(0.01)
    assert counted.runs == runs
    assert job.report.failures == 0


async def test_goes_on_after_a_cancelled_error_of_plain_work() -> None:
    """Work raises this error if it reads the result of a cancelled future."""
    counted = Counted()

    def work() -> None:
        counted()
        if counted.runs == 1:
            raise asyncio.CancelledError

    job = Repeating("count", work, 0.001)
    job.start()
    await counted.reached(3)
    await job.stop()
    assert job.report.failures == 1


@pytest.mark.parametrize("is_async", [False, True])
async def test_goes_on_after_each_error(is_async: bool, caplog: pytest.LogCaptureFixture) -> None:
    counted = Counted(fail_on=lambda run: run <= 3)
    job = Repeating("count", counted.slowly if is_async else counted, inf, after_error_s=0.001)
    job.start(0.0)
    await counted.reached(4)
    while job.report.runs < 4:
        await asyncio.sleep(0)
    await job.stop()
    assert (job.report.runs, job.report.failures, job.report.failing_since) == (4, 3, None)
    assert job.report.last_error == "OSError: [Errno 5] error 3"
    # The first failure and the recovery are logged, the second and third failure are not.
    assert [record.levelname for record in caplog.records if record.levelno >= logging.ERROR] == ["ERROR"]


async def test_work_says_when_it_runs_next() -> None:
    counted = Counted(pause_s=0.001)
    job = Repeating("count", counted, 60.0)
    job.start(0.0)
    await counted.reached(3)
    await job.stop()


@pytest.mark.parametrize("is_async", [False, True])
async def test_wakes_at_once(is_async: bool) -> None:
    counted = Counted()
    job = Repeating("count", counted.slowly if is_async else counted)
    job.start()
    await asyncio.sleep(0.01)
    assert counted.runs == 0
    job.wake()
    await counted.reached(1)
    job.wake(0.001)
    job.wake(30.0)
    await counted.reached(2)
    await job.stop()
    job.wake()
    await asyncio.sleep(0.01)
    assert counted.runs == 2


async def test_is_woken_while_it_runs() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    runs = 0

    async def work() -> None:
        nonlocal runs
        runs += 1
        begun.set()
        await go_on.wait()

    job = Repeating("work", work)
    job.start(0.0)
    await begun.wait()
    begun.clear()
    job.wake()
    job.wake()
    await asyncio.sleep(0.01)
    assert runs == 1
    go_on.set()
    await asyncio.wait_for(begun.wait(), 5)
    await job.stop()
    assert runs == 2


async def test_work_may_wake_itself() -> None:
    runs = 0

    def work() -> None:
        nonlocal runs
        runs += 1
        if runs < 3:
            job.wake()

    job = Repeating("work", work)
    job.start(0.0)
    async with asyncio.timeout(5):
        while runs < 3:
            await asyncio.sleep(0)
    await job.stop()


async def test_stopping_cancels_and_waits() -> None:
    ended = asyncio.Event()
    begun = asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.set()

    job = Repeating("work", work)
    job.start(0.0)
    await begun.wait()
    await job.stop()
    assert ended.is_set()
    assert job.report.failures == 0
    await job.stop()


async def test_work_that_is_cancelled_from_outside_runs_again() -> None:
    tasks: list[asyncio.Task[None] | None] = []
    begun = asyncio.Event()

    async def work() -> None:
        tasks.append(asyncio.current_task())
        begun.set()
        await asyncio.Event().wait()

    job = Repeating("work", work, after_error_s=0.001)
    job.start(0.0)
    await begun.wait()
    begun.clear()
    assert tasks[0] is not None
    tasks[0].cancel()
    await asyncio.wait_for(begun.wait(), 5)
    assert job.report.failures == 1
    await job.stop()


@pytest.mark.parametrize("swallows", [False, True])
async def test_starts_again_while_a_run_is_still_ending(swallows: bool) -> None:
    runs = under_way = most = 0
    begun = asyncio.Event()

    async def work() -> float | None:
        nonlocal runs, under_way, most
        runs += 1
        under_way += 1
        most = max(most, under_way)
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
            if not swallows:
                raise
        finally:
            under_way -= 1
        return 30.0

    job = Repeating("work", work)
    job.start(0.0)
    for _ in range(3):
        await asyncio.wait_for(begun.wait(), 5)
        begun.clear()
        job.cancel()
        job.start(0.0)
    await asyncio.wait_for(begun.wait(), 5)
    await job.stop()
    assert (runs, most, job.report.failures) == (4, 1, 0)
    # A second `cancel` changes nothing: the job stays stopped.
    job.cancel()
    await asyncio.sleep(0.01)
    assert runs == 4


async def test_starts_again_and_stops_while_a_run_is_still_ending() -> None:
    begun = asyncio.Event()
    runs = 0

    async def work() -> None:
        nonlocal runs
        runs += 1
        begun.set()
        await asyncio.Event().wait()

    job = Repeating("work", work)
    job.start(0.0)
    await begun.wait()
    job.cancel()
    job.start(0.0)
    await job.stop()
    await asyncio.sleep(0.01)
    assert (runs, job.report.failures) == (1, 0)


@pytest.mark.parametrize("is_async", [False, True])
async def test_work_that_wakes_itself_and_fails_has_its_pause(is_async: bool) -> None:
    runs = 0

    def work() -> None:
        nonlocal runs
        runs += 1
        job.wake()
        raise OSError(5, "again")

    async def slowly() -> None:
        work()

    job = Repeating("work", slowly if is_async else work, after_error_s=30.0)
    began = time.monotonic()
    job.start(0.0)
    await until(lambda: runs == 3)
    assert time.monotonic() - began >= 2 * LEAST_AFTER_ERROR_S
    # Between two runs, `wake` starts the next run at once.
    job.wake()
    await until(lambda: runs == 4)
    assert time.monotonic() - began < 20.0
    await job.stop()


async def test_stops_from_within() -> None:
    def work() -> None:
        job.cancel()

    job = Repeating("work", work, 0.001)
    job.start()
    async with asyncio.timeout(5):
        while job.report.runs == 0:
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)
    assert job.report.runs == 1


async def test_a_job_that_is_wanted_no_more_fails_no_more() -> None:
    """A slave's job that cannot reach its master is cancelled when the slave becomes master. It then has no failure."""

    def fail() -> None:
        raise OSError(5, "as scripted")

    job = Repeating("job", fail, after_error_s=60.0)
    job.start(0.0)
    await until(lambda: job.report.failing_since is not None)
    job.cancel()
    assert (job.report.failing_since, job.report.failing_since_ms) == (None, 0)
    assert job.report.failures == 1


def test_a_row_of_failures_is_logged_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    report, log = JobReport("flush"), logging.getLogger("test")
    for second in range(int(LOG_INTERVAL_S) + 1):
        report.failed(OSError(5, "bad"), 1000.0 + second, log)
    assert report.failing_since == 1000.0
    report.succeeded(0.5, log)
    assert [record.getMessage() for record in caplog.records] == [
        "flush failed and will be tried again: OSError: [Errno 5] bad",
        "flush has failed 61 times in 60 s: OSError: [Errno 5] bad",
        "flush works again, after 61 failures",
    ]
    assert (report.runs, report.failures, report.failing_since, report.last_duration_s) == (62, 61, None, 0.5)


async def test_jobs_know_who_fails() -> None:
    jobs = Jobs()
    good, bad = Counted(), Counted(fail_on=lambda _: True)
    first, second = jobs.repeating("good", good, 0.001), jobs.repeating("bad", bad, 0.001)
    for job in (first, second):
        job.start()
    await good.reached(2)
    await bad.reached(2)
    assert [report.name for report in jobs] == ["good", "bad"]
    assert [report.name for report in jobs.failing()] == ["bad"]
    for job in (first, second):
        await job.stop()


@pytest.mark.parametrize("is_async", [False, True])
def test_wakes_on_uvloop(is_async: bool) -> None:
    """The handles and the clock of uvloop differ from those of asyncio."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test_wakes_at_once(is_async))
        runner.run(test_work_may_wake_itself())
