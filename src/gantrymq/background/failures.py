"""Encodes job failures in the fields of a server's response, and decodes them for `gantry doctor`.

The fields of a job, with hyphens in place of the spaces in NAME:
- `job_NAME_failures`: number of failures after the server's start.
- `job_NAME_failingSinceMs`: time of the first failure without a success after it, in ms. 0 if the job works again.
- `job_NAME_lastError`: the last error.
- `job_NAME_lastFailureMs`: time of the last failure, in ms.

Jobs that never failed are omitted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gantrymq.background.report import JobReport

_FAILURES = re.compile(r"job_(.+)_failures")


@dataclass(frozen=True, slots=True)
class JobFailures:
    """The failures of one job. `failing_since_ms` is None if it works again, `last_failure_ms` if it is unknown."""

    name: str
    failures: int
    failing_since_ms: int | None
    last_error: str
    last_failure_ms: int | None = None


def failure_fields(jobs: Iterable[JobReport]) -> dict[str, str]:
    """Returns the fields for a server's response."""
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
    """Returns the failures in these fields, sorted by job name. Invalid fields are ignored."""
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
