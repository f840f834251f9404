"""Checks of the directories of brokers' commit logs: whether each of them gets new files."""

from __future__ import annotations

from collections.abc import Iterator

from gantrymq.client.doctor.finding import Finding, problem, warning
from gantrymq.client.doctor.observation import Observation
from gantrymq.protocol.broker_keys import LOG_DIR_STATE


def check_log_directories(seen: Observation) -> Iterator[Finding]:
    for broker in seen.brokers:
        for key, value in sorted(broker.runtime.items()):
            if not key.startswith(LOG_DIR_STATE):
                continue
            what = f"{broker.label} at {broker.address}: the log directory {key.removeprefix(LOG_DIR_STATE)}"
            state, _, error = value.partition(": ")
            if state == "failed":
                yield problem(
                    f"{what} failed: {error}",
                    "new log files go to the other directories. Messages in its files may be lost.",
                    "Repair or replace the disk, copy its files to the new one, and restart the broker.",
                )
            elif state == "full":
                yield warning(
                    f"{what} is full",
                    "new log files go to the other directories.",
                    "Free space on the disk, or add a directory to storePathCommitLog.",
                )
