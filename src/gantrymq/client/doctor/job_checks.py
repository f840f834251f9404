"""Jobs in the background of brokers and NameServers: which failed, how often, since when."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from gantrymq.background.failures import JobFailures, failed_jobs
from gantrymq.client.doctor.finding import Finding, problem, warning
from gantrymq.client.doctor.observation import Observation


def check_jobs(seen: Observation) -> Iterator[Finding]:
    for name_server in seen.answering:
        for job in name_server.failed_jobs:
            yield _failed(f"NameServer {name_server.address}", job)
    for broker in seen.brokers:
        for job in failed_jobs(broker.runtime):
            yield _failed(f"{broker.label} at {broker.address}", job)


def _failed(server: str, job: JobFailures) -> Finding:
    times = "once" if job.failures == 1 else f"{job.failures} times"
    what = f'{server}: the job "{job.name}" failed {times}'
    if job.failing_since_ms is None:
        return warning(
            f"{what}, and works again: {job.last_error}",
            "what it does came late.",
            "Look into the server's log for when and why.",
        )
    return problem(
        f"{what}, with no success since {_time(job.failing_since_ms)}: {job.last_error}",
        "what it does isn't done; it is tried again and again.",
        "Remove the cause that the error names; the server's log has more. It needs no restart.",
    )


def _time(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).astimezone().isoformat(" ", "seconds")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms after 1970"
