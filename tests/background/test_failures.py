"""Tests that the doctor reads the failed jobs that servers report."""

from __future__ import annotations

import logging

import pytest

from gantrymq.background.failures import JobFailures, failed_jobs, failure_fields
from gantrymq.background.report import JobReport

log = logging.getLogger(__name__)


def test_what_is_told_is_read() -> None:
    well, again, failing = JobReport("all is well"), JobReport("works again"), JobReport("register with 127.0.0.1:9876")
    well.succeeded(0.0, log)
    again.failed(OSError("once"), 1.0, log)
    again.succeeded(0.0, log)
    for _ in range(3):
        failing.failed(OSError("no space left"), 1.0, log)
    assert failed_jobs(failure_fields([well, again, failing])) == [
        JobFailures(
            "register with 127.0.0.1:9876",
            3,
            failing.failing_since_ms,
            "OSError: no space left",
            failing.last_failure_ms,
        ),
        JobFailures("works again", 1, None, "OSError: once", again.last_failure_ms),
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"job_a_failures": "many"},
        {"job_a_failures": "1", "job_a_failingSinceMs": "yesterday"},
        {"job__failures": "1"},
        {"jobs": "1", "failures": "2"},
    ],
)
def test_nonsense_is_left_out(fields: dict[str, str]) -> None:
    assert failed_jobs(fields) == []
