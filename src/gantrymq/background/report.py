"""Counts and logs the runs and failures of a background job."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from gantrymq.errors import GantryError
from gantrymq.system.clock import now_ms

#: Interval between log lines about a job that fails repeatedly, in seconds.
LOG_INTERVAL_S = 60.0


@dataclass(slots=True)
class JobReport:
    """The runs and failures of a job after the start. Times in seconds are from a monotonic clock."""

    name: str
    runs: int = 0
    failures: int = 0
    last_duration_s: float = 0.0
    #: Time of the first failure without a success after it. None if the last run succeeded.
    failing_since: float | None = None
    #: The time of this first failure on the wall clock, in milliseconds. 0 if the last run succeeded.
    failing_since_ms: int = 0
    #: The last error, and its wall-clock time in milliseconds. 0 if no run has failed.
    last_error: str = ""
    last_failure_ms: int = 0
    _failures_in_row: int = 0
    _logged_at: float = 0.0

    def succeeded(self, duration_s: float, log: logging.Logger) -> None:
        """Counts a successful run."""
        self.runs += 1
        self.last_duration_s = duration_s
        if self.failing_since is not None:
            log.info("%s works again, after %d failures", self.name, self._failures_in_row)
            self.failing_since = None
            self.failing_since_ms = 0
            self._failures_in_row = 0

    def ended(self) -> None:
        """Clears the failing state of a stopped job, so that it does not count as a problem."""
        self.failing_since = None
        self.failing_since_ms = self._failures_in_row = 0

    def failed(
        self,
        error: BaseException,
        now: float,
        log: logging.Logger,
        duration_s: float = 0.0,
        *,
        level: int = logging.ERROR,
    ) -> None:
        """Counts a failed run. Logs the first failure with its traceback, then one failure every LOG_INTERVAL_S."""
        self.runs += 1
        self.failures += 1
        self._failures_in_row += 1
        self.last_duration_s = duration_s
        self.last_error = f"{type(error).__name__}: {error}"
        self.last_failure_ms = now_ms()
        if self.failing_since is None:
            self.failing_since = self._logged_at = now
            self.failing_since_ms = self.last_failure_ms
            # The message of a GantryError is sufficient without a traceback.
            trace = None if isinstance(error, GantryError) else error
            log.log(level, "%s failed and will be tried again: %s", self.name, self.last_error, exc_info=trace)
        elif now - self._logged_at >= LOG_INTERVAL_S:
            self._logged_at = now
            log.log(
                level,
                "%s has failed %d times in %d s: %s",
                self.name,
                self._failures_in_row,
                now - self.failing_since,
                self.last_error,
            )
