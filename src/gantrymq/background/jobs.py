"""Collects the reports of all background jobs of a server."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from weakref import WeakValueDictionary

from gantrymq.background.repeating import AFTER_ERROR_S, Repeating, Work
from gantrymq.background.report import JobReport


class Jobs:
    """The reports of a server's jobs. Jobs may be added from any thread."""

    def __init__(self) -> None:
        self._reports: list[JobReport] = []
        #: Name -> the newest job with this name.
        self._repeating: WeakValueDictionary[str, Repeating] = WeakValueDictionary()

    def repeating(
        self, name: str, work: Work, interval_s: float = inf, *, after_error_s: float = AFTER_ERROR_S
    ) -> Repeating:
        """Returns a new `Repeating`, whose report is added here."""
        job = Repeating(name, work, interval_s, after_error_s=after_error_s)
        self._reports.append(job.report)
        self._repeating[name] = job
        return job

    def find(self, name: str) -> Repeating:
        """Returns the repeating job with this name, for example to run it at once. Raises KeyError."""
        return self._repeating[name]

    def forget(self, job: Repeating) -> None:
        """Removes the report of a job that is stopped for good. Further calls have no effect."""
        if job.report in self._reports:
            self._reports.remove(job.report)

    def report(self, name: str) -> JobReport:
        """Returns a new report, which is added here, for the rounds of a thread."""
        report = JobReport(name)
        self._reports.append(report)
        return report

    def __iter__(self) -> Iterator[JobReport]:
        return iter(list(self._reports))

    def failing(self) -> list[JobReport]:
        """Returns the reports of jobs whose last run failed."""
        return [report for report in self._reports if report.failing_since is not None]
