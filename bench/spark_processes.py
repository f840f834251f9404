"""The processes of a benchmark of Spark, brokers, driver, executors, Python workers: processor time and memory."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def most_memory() -> str:
    """A list of the most resident memory so far of each process below this one, and of this one."""
    lines = []
    for pid, kind in below():
        with suppress(OSError):
            found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
            if found is not None:
                lines.append(f"- {pid} {kind}: {int(found.group(1)) / 1024:,.0f} MiB\n")
    return "".join(lines)


def processor_s() -> dict[str, float]:
    """Processor time of the processes below this one so far, and of their ended children, by what they are, s."""
    used: Counter[str] = Counter()
    for pid, kind in below():
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            used[kind] += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # type: ignore[assignment]
    return dict(used)


def below() -> Iterator[tuple[int, str]]:
    """(process id, what it is) of this process and those below it."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
    found = {os.getpid()}
    while further := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= further
    for pid in sorted(found):
        with suppress(OSError):
            yield pid, kind_of(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "))


def kind_of(command: str) -> str:
    kinds = {
        "CoarseGrainedExecutorBackend": "Spark executor (JVM)",
        "deploy.worker.Worker": "Spark worker (JVM)",
        "deploy.master.Master": "Spark master (JVM)",
        "SparkSubmit": "Spark driver (JVM)",
        "pyspark.daemon": "Python worker",
        "gantrymq.cli broker": "broker",
        "gantrymq.cli namesrv": "NameServer",
        "bench/spark": "driver (Python)",
        "kafka.Kafka": "Kafka (JVM)",
    }
    return next((kind for mark, kind in kinds.items() if mark in command), command[:60])
