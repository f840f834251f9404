"""Many seeds: each in a process of its own, forked when everything is imported; what comes of them is kept in a file.

A process for each seed and not one for many: nothing that one run leaves in the package's modules reaches the next, so
a seed among others is the same run as alone. A fork costs some milliseconds, a run some hundred.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import NoReturn

import msgspec

from sim.run import Outcome

#: A run takes about a second of a processor.
_MOST_CPU_S = 120


@dataclass(frozen=True)
class Result:
    """What is kept of a run: a line of JSON in the file of results."""

    seed: str
    problems: list[str]
    simulated_s: float = 0.0
    messages: int = 0
    #: Of the trace, the beginning of its SHA-256: another one on another machine means that something real got in.
    digest: str = ""
    #: What it took, s of a processor.
    cpu_s: float = 0.0


class Results:
    """A file with a line for each seed that was run: who goes on with it leaves those out."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.all: dict[str, Result] = {}
        if path is not None and path.exists():
            whole = path.read_bytes()
            # A run that was killed may have left half a line.
            os.truncate(path, whole.rfind(b"\n") + 1)
            for line in whole.splitlines(keepends=True):
                if line.endswith(b"\n"):
                    result = Result(**json.loads(line))
                    self.all[result.seed] = result

    def add(self, result: Result) -> None:
        self.all[result.seed] = result
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")


def run_all(
    seeds: Iterable[str], jobs: int, execute: Callable[[str], Outcome], *, stop_at_first: bool = False
) -> Iterator[Result]:
    """The results as they come; after the first that failed no more are begun, if so wanted."""
    learn_types()
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
    """One line."""
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


def learn_types() -> None:
    """Once, what msgspec finds out of each type when it is decoded first: some milliseconds of each run otherwise."""
    types = [msgspec.Struct]
    for known in types:
        types += known.__subclasses__()
        msgspec.json.Decoder(known)


def _fork(seed: str, execute: Callable[[str], Outcome]) -> tuple[int, int]:
    """The process of a seed, and where its result comes from."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reader)
        _child(seed, writer, execute)
    os.close(writer)
    return pid, reader


def _child(seed: str, writer: int, execute: Callable[[str], Outcome]) -> NoReturn:
    # What never ends ends so, and is told by its status.
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
    # Nothing of the run is to go on while Python takes it apart.
    os._exit(0)
