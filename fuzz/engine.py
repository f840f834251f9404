"""Runs a target over its corpus and over mutations of it, and stops at the first finding.

Each case has a number. The same target, corpus, seed and number make the same input.
"""

from __future__ import annotations

import random
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

# These modules add their targets.
import fuzz.remoting_targets
import fuzz.service_targets
import fuzz.store_targets  # noqa: F401
from fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
#: Limits for one input, in seconds of CPU time, and for the growth of the process over all inputs.
MAX_CASE_S = 1.0
MAX_GROWTH_KIB = 64 * 1024
_MAX_INPUT = 4096
_INTERESTING = (
    b"\x00", b"\xff", b"\x7f", b"\x80", b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00", b"\x7f" + b"\xff" * 7, b"{", b"[", b'"', b"\\u", b"null", b"9" * 20, b"1e999", b"(", b"'",
    b" AND ", b" NOT ", b"\x01", b"\x02", b"%", b"\n", b"\xed\xa0\x80",
)  # fmt: skip


class Finding(NamedTuple):
    """An input that is not handled, and the error."""

    data: bytes
    error: BaseException


class Hang(BaseException):
    """An input takes more than MAX_CASE_S. It is no Exception, so that a decoder cannot catch it."""


class MemoryGrowth(Exception):
    """The process has grown by more than MAX_GROWTH_KIB."""


class Run(NamedTuple):
    """The result for one target: number of inputs, CPU time, and the finding that ended the run."""

    cases: int
    cpu_s: float
    finding: Finding | None


def corpus_of(name: str) -> list[bytes]:
    """Returns the inputs of a target in the order of their file names."""
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


def run(name: str, *, seed: int, cpu_s: float = float("inf"), cases: int | None = None) -> Run:
    """Runs the corpus, then mutations, until the CPU time or the number of cases is used up."""
    corpus = corpus_of(name)
    begin = time.process_time()
    # The first inputs load modules and fill caches, which is no growth.
    before = 0
    done = 0
    for data in _inputs(corpus, f"{name} {seed}", cases):
        if error := check(name, data):
            return Run(done + 1, time.process_time() - begin, Finding(data, error))
        done += 1
        used_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if done == len(corpus) + 100:
            before = used_kib
        elif before and used_kib - before > MAX_GROWTH_KIB:
            error = MemoryGrowth(f"{(used_kib - before) >> 10} MiB after {done} inputs, this is the last one")
            return Run(done, time.process_time() - begin, Finding(data, error))
        if time.process_time() - begin >= cpu_s:
            break
    return Run(done, time.process_time() - begin, None)


def check(name: str, data: bytes) -> BaseException | None:
    """Runs one input. Returns the error that the decoder does not document, if any."""
    try:
        with _limited():
            TARGETS[name](data)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as e:
        # A panic of native code is no Exception.
        return e
    return None


@contextmanager
def _limited() -> Iterator[None]:
    def expired(number: int, frame: object) -> None:
        raise Hang(f"more than {MAX_CASE_S} s of CPU time")

    previous = signal.signal(signal.SIGPROF, expired)
    signal.setitimer(signal.ITIMER_PROF, MAX_CASE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)


def _inputs(corpus: list[bytes], seed: str, cases: int | None) -> Iterator[bytes]:
    yield from corpus
    number = 0
    while cases is None or number < cases:
        yield mutated(random.Random(f"{seed} {number}"), corpus)
        number += 1


def mutated(chance: random.Random, corpus: list[bytes]) -> bytes:
    """Returns an input of the corpus with one to eight changes."""
    data = bytearray(chance.choice(corpus))
    for _ in range(chance.choice((1, 1, 2, 3, 8))):
        at = chance.randrange(len(data) + 1)
        end = min(len(data), at + chance.choice((1, 2, 4, 8, 64)))
        kind = chance.randrange(7)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            data[at:end] = chance.randbytes(end - at)
        elif kind == 2:
            del data[at:end]
        elif kind == 3:
            data[at:at] = data[at:end] * chance.choice((1, 2, 50))
        elif kind == 4:
            piece = chance.choice(_INTERESTING)
            data[at : at + len(piece)] = piece
        elif kind == 5:
            data[at:at] = chance.choice(_INTERESTING) * chance.choice((1, 1, 1, 500))
        else:
            other = chance.choice(corpus)
            data[at:] = other[chance.randrange(len(other) + 1) :]
    return bytes(data[:_MAX_INPUT])
