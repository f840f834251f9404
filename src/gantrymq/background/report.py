"""JobReport: how a job in the background fares, and the log of its failures."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from gantrymq.errors import GantryError
from gantrymq.system.clock import now_ms

#: A job that goes on failing is logged once in so many seconds, in one line.
LOG_INTERVAL_S = 60.0


@dataclass(slots=True)
class JobReport:
    """A job's runs and failures since the start. Times in seconds are those of a monotonic clock."""

    name: str
    runs: int = 0
    failures: int = 0
    last_duration_s: float = 0.0
    #: When the first of the failures without a success between them came; None while all is well.
    failing_since: float | None = None
    #: The same by the wall clock, ms; 0 while all is well.
    failing_since_ms: int = 0
    #: The last failure and when it was, by the wall clock, ms; 0: never.
    last_error: str = ""
    last_failure_ms: int = 0
    _failures_in_row: int = 0
    _logged_at: float = 0.0

    def succeeded(self, duration_s: float, log: logging.Logger) -> None:
        """Counts a run."""
        self.runs += 1
        self.last_duration_s = duration_s
        if self.failing_since is not None:
            log.info("%s works again, after %d failures", self.name, self._failures_in_row)
            self.failing_since = None
            self.failing_since_ms = 0
            self._failures_in_row = 0

    def ended(self) -> None:
        """Nobody wants it to run any more: that it failed is no trouble now."""
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
        """Counts a run that raised. The first of a row is logged, with its traceback, the others now and then."""
        self.runs += 1
        self.failures += 1
        self._failures_in_row += 1
        self.last_duration_s = duration_s
        self.last_error = f"{type(error).__name__}: {error}"
        self.last_failure_ms = now_ms()
        if self.failing_since is None:
            self.failing_since = self._logged_at = now
            self.failing_since_ms = self.last_failure_ms
            # An error of our own says all that there is to know without one.
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
