"""Checks of background jobs in brokers and NameServers: failures, their number and time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from gantrymq.background.failures import JobFailures, failed_jobs
from gantrymq.client.doctor.finding import Finding, problem, warning
from gantrymq.client.doctor.observation import Observation
from gantrymq.system.clock import now_ms

#: For this time after its last failure, a job is reported even if it works again, ms.
RECENT_MS = 10 * 60 * 1000


def check_jobs(seen: Observation) -> Iterator[Finding]:
    for name_server in seen.answering:
        for job in name_server.failed_jobs:
            yield from _failed(f"NameServer {name_server.address}", job)
    for broker in seen.brokers:
        for job in failed_jobs(broker.runtime):
            yield from _failed(f"{broker.label} at {broker.address}", job)


def _failed(server: str, job: JobFailures) -> Iterator[Finding]:
    times = "once" if job.failures == 1 else f"{job.failures} times"
    what = f'{server}: the job "{job.name}" failed {times} since the server\'s start'
    last = "" if job.last_failure_ms is None else f"; the last failure was at {_time(job.last_failure_ms)}"
    if job.failing_since_ms is not None:
        yield problem(
            f"{what}, with no success since {_time(job.failing_since_ms)}{last}: {job.last_error}",
            "what it does isn't done; it is tried again and again.",
            "Remove the cause that the error names; the server's log has more. It needs no restart.",
        )
    elif job.last_failure_ms is None or now_ms() - job.last_failure_ms <= RECENT_MS:
        yield warning(
            f"{what}, and works again{last}: {job.last_error}",
            "what it does came late.",
            "Look into the server's log for why, should it come back.",
        )


def _time(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).astimezone().isoformat(" ", "seconds")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms after 1970"
