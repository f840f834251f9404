"""Runs many seeds, each in a forked process of its own, and keeps their results in a file.

With a process for each seed, module state of one run cannot change the next: a seed gives the same run as alone. A fork
takes some milliseconds, a run some hundred.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import msgspec

from sim.run import Outcome

#: CPU limit of a run, in seconds. A run takes about one second.
_MOST_CPU_S = 120


@dataclass(frozen=True)
class Result:
    """Result of a run: one line of JSON in the results file."""

    seed: str
    problems: list[str]
    simulated_s: float = 0.0
    messages: int = 0
    #: Start of the SHA-256 of the trace. If it differs between machines, the run depended on the real system.
    digest: str = ""
    #: CPU time in seconds.
    cpu_s: float = 0.0


class _Header(msgspec.Struct):
    """The first line of the results file."""

    commit: str


class Results:
    """A file with the commit, and one line for each finished seed. A later run with the same file skips these seeds.

    Raises:
        ValueError: The file has the results of another commit, or it is no results file.
    """

    def __init__(self, path: Path | None, commit: str) -> None:
        self.path = path
        self.all: dict[str, Result] = {}
        if path is None:
            return
        whole = path.read_bytes() if path.exists() else b""
        if not whole:
            path.write_text(json.dumps({"commit": commit}) + "\n")
            return
        # A killed run may have left an incomplete line.
        end = whole.rfind(b"\n") + 1
        first, *lines = whole[:end].splitlines() or [whole]
        try:
            other = msgspec.json.decode(first, type=_Header).commit
            results = [msgspec.json.decode(line, type=Result) for line in lines]
        except msgspec.DecodeError as e:
            raise ValueError(f"{path} is no results file ({e}): use a new file") from e
        if other != commit:
            raise ValueError(f"{path} has results of commit {other}; this is {commit}: use a new file")
        os.truncate(path, end)
        self.all = {result.seed: result for result in results}

    def add(self, result: Result) -> None:
        self.all[result.seed] = result
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")


def run_all(
    seeds: Iterable[str], jobs: int, execute: Callable[[str], Outcome], *, stop_at_first: bool = False
) -> Iterator[Result]:
    """Yields the results as they arrive. With `stop_at_first`, starts no more seeds after a failed one."""
    warm_up()
    left = iter(seeds)
    has_failed = False
    running: dict[int, tuple[str, int, bytearray]] = {}
    with selectors.DefaultSelector() as selector:
        while True:
            while len(running) < jobs and not (has_failed and stop_at_first) and (seed := next(left, None)) is not None:
                pid, reader = _fork(seed, execute)
                running[reader] = seed, pid, bytearray()
                selector.register(reader, selectors.EVENT_READ)
            if not running:
                return
            for key, _ in selector.select():
                seed, pid, text = running[key.fd]
                if data := os.read(key.fd, 1 << 16):
                    text += data
                    continue
                selector.unregister(key.fd)
                os.close(key.fd)
                del running[key.fd]
                _, status, used = os.wait4(pid, 0)
                result = Result(seed, [f"the run ended with status {status}"])
                if text:
                    result = Result(seed, **json.loads(text), cpu_s=round(used.ru_utime + used.ru_stime, 3))
                has_failed = has_failed or bool(result.problems)
                yield result


def summary(results: Iterable[Result], took_s: float) -> str:
    """Returns one line with the totals."""
    results = list(results)
    simulated_s = sum(result.simulated_s for result in results)
    messages = sum(result.messages for result in results)
    cpu_s = sum(result.cpu_s for result in results)
    failed = sum(bool(result.problems) for result in results)
    return (
        f"{len(results)} seeds in {took_s:.1f} s ({cpu_s / max(len(results), 1):.2f} s of a processor each): "
        f"{simulated_s / max(cpu_s, 0.001):,.0f} simulated seconds and {messages / max(cpu_s, 0.001):,.0f} messages "
        f"a second of a processor; {failed} failed"
    )


def warm_up() -> None:
    """Imports the features of brokers, and makes msgspec inspect all types.

    Otherwise each run needs some milliseconds for it.
    """
    for feature in ("controller", "lite", "metrics", "tiered_storage"):
        import_module(f"gantrymq.broker.{feature}")
    types = [msgspec.Struct]
    for known in types:
        types += known.__subclasses__()
        msgspec.json.Decoder(known)


def _fork(seed: str, execute: Callable[[str], Outcome]) -> tuple[int, int]:
    """Starts the process of a seed. Returns its process id and the descriptor with its result."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reader)
        _child(seed, writer, execute)
    os.close(writer)
    return pid, reader


def _child(seed: str, writer: int, execute: Callable[[str], Outcome]) -> NoReturn:
    # The limit ends a run that never finishes. Its exit status shows this.
    resource.setrlimit(resource.RLIMIT_CPU, (_MOST_CPU_S, _MOST_CPU_S))
    try:
        outcome = execute(seed)
        result = {
            "problems": outcome.problems,
            "simulated_s": round(outcome.simulated_s, 1),
            "messages": outcome.messages,
            "digest": sha256(outcome.trace_text.encode()).hexdigest()[:16],
        }
    except BaseException as e:
        result = {"problems": [f"{type(e).__name__}: {e}"]}
    data = json.dumps(result).encode()
    while data:
        data = data[os.write(writer, data) :]
    # Exit at once: a normal exit of Python would run more code of the simulated programs.
    os._exit(0)
