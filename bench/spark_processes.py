"""CPU time and memory of all processes of a Spark benchmark: brokers, driver, executors, Python workers."""

from __future__ import annotations

import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from gantrymq.background.thread import SupervisedThread
from gantrymq.system.threads import Event

#: Interval of the samples, and of the progress lines, in seconds.
LOOK_S = 1.0
TELL_S = 10.0


def most_memory() -> str:
    """Returns a list of the peak resident memory of this process and of each process below it."""
    lines = []
    for pid, kind in below():
        with suppress(OSError):
            found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
            if found is not None:
                lines.append(f"- {pid} {kind}: {int(found.group(1)) / 1024:,.0f} MiB\n")
    return "".join(lines)


class Memory(NamedTuple):
    """Memory of a process in MiB: its own, and with pages of mapped files such as a broker's log."""

    own: float = 0.0
    resident: float = 0.0


class Watch:
    """Prints the progress on stderr, and samples the peak memory of each kind of process; a context manager.

    Includes ended processes, for example Python workers that were idle for a minute.
    """

    def __init__(self, progress: Callable[[], str]) -> None:
        self._progress = progress
        self._most: dict[str, Memory] = {}
        self._is_over = Event()
        self._began = time.monotonic()
        self._thread = SupervisedThread("watch", self._run, lambda _: None)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._is_over.set()
        self._thread.join()

    def table(self) -> str:
        lines = ["| process | most memory of one, MiB | its own of that, at most |", "|---|---|---|"]
        lines += [f"| {kind} | {most.resident:,.0f} | {most.own:,.0f} |" for kind, most in sorted(self._most.items())]
        return "\n".join(lines)

    def _run(self) -> None:
        told = 0.0
        while not self._is_over.wait(LOOK_S):
            for pid, kind in below():
                with suppress(OSError):
                    now, most = memory_of(pid), self._most.get(kind, Memory())
                    self._most[kind] = Memory(max(now.own, most.own), max(now.resident, most.resident))
            if time.monotonic() - told >= TELL_S:
                told = time.monotonic()
                print(f"{told - self._began:6.0f} s: {self._progress()}", file=sys.stderr, flush=True)


def memory_of(pid: int) -> Memory:
    """Returns the memory of a process. Raises OSError if it has ended."""
    fields = dict(re.findall(r"^(Rss\w+|VmRSS):\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE))
    return Memory(int(fields.get("RssAnon", 0)) / 1024, int(fields.get("VmRSS", 0)) / 1024)


def processor_s() -> dict[str, float]:
    """Returns the CPU seconds so far by kind, for the processes below this one and their ended children."""
    used: Counter[str] = Counter()
    for pid, kind in below():
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            used[kind] += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # type: ignore[assignment]
    return dict(used)


def below() -> Iterator[tuple[int, str]]:
    """Yields (process id, kind) of this process and of those below it."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
    found = {os.getpid()}
    while further := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= further
    for pid in sorted(found):
        with suppress(OSError):
            # The command line of a zombie process is empty.
            if command := Path(f"/proc/{pid}/cmdline").read_text():
                yield pid, kind_of(command.replace("\0", " "))


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
