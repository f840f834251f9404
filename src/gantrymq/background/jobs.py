"""Jobs: all that runs in the background of one server, for those who ask how it fares."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from gantrymq.background.repeating import AFTER_ERROR_S, Repeating, Work
from gantrymq.background.report import JobReport


class Jobs:
    """The reports of a server's jobs. Adding may be done from any thread."""

    def __init__(self) -> None:
        self._reports: list[JobReport] = []

    def repeating(
        self, name: str, work: Work, interval_s: float = inf, *, after_error_s: float = AFTER_ERROR_S
    ) -> Repeating:
        """A `Repeating` that is known here."""
        job = Repeating(name, work, interval_s, after_error_s=after_error_s)
        self._reports.append(job.report)
        return job

    def forget(self, job: Repeating) -> None:
        """What it was for is no more; it is stopped. Once more does no harm."""
        if job.report in self._reports:
            self._reports.remove(job.report)

    def report(self, name: str) -> JobReport:
        """A report that a thread's rounds are counted in."""
        report = JobReport(name)
        self._reports.append(report)
        return report

    def __iter__(self) -> Iterator[JobReport]:
        return iter(list(self._reports))

    def failing(self) -> list[JobReport]:
        """Those whose last run failed."""
        return [report for report in self._reports if report.failing_since is not None]
