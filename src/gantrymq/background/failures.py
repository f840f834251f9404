"""Which jobs of a server failed, as it tells in fields of an answer, and as `gantry doctor` reads them.

`job_NAME_failures` says how often since the start, `job_NAME_failingSinceMs` since when it does nothing else (0: it
works again), `job_NAME_lastError` the last reason and `job_NAME_lastFailureMs` its time. A NAME's spaces are hyphens.
Jobs that never failed aren't told.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gantrymq.background.report import JobReport

_FAILURES = re.compile(r"job_(.+)_failures")


@dataclass(frozen=True, slots=True)
class JobFailures:
    """One job's. `failing_since_ms` is None when it works again, `last_failure_ms` when nobody told."""

    name: str
    failures: int
    failing_since_ms: int | None
    last_error: str
    last_failure_ms: int | None = None


def failure_fields(jobs: Iterable[JobReport]) -> dict[str, str]:
    """The fields of a server's answer."""
    fields = {}
    for job in jobs:
        if job.failures:
            name = f"job_{job.name.replace(' ', '-')}"
            fields[f"{name}_failures"] = str(job.failures)
            fields[f"{name}_failingSinceMs"] = str(job.failing_since_ms)
            fields[f"{name}_lastError"] = job.last_error
            fields[f"{name}_lastFailureMs"] = str(job.last_failure_ms)
    return fields


def failed_jobs(fields: Mapping[str, str]) -> list[JobFailures]:
    """What the fields say, by name; nonsense is left out."""
    found = []
    for key in sorted(fields):
        match = _FAILURES.fullmatch(key)
        if match is None:
            continue
        try:
            failures, since_ms = int(fields[key]), int(fields.get(f"job_{match[1]}_failingSinceMs", "0"))
            last_ms = int(fields.get(f"job_{match[1]}_lastFailureMs", "0"))
        except ValueError:
            continue
        error = fields.get(f"job_{match[1]}_lastError", "")
        found.append(JobFailures(match[1].replace("-", " "), failures, since_ms or None, error, last_ms or None))
    return found
