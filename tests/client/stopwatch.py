"""Measures how long something took without the time for which the machine was busy with other programs."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path


def _starved_s() -> float:
    """How long the threads of this process wanted a processor and had none, s; 0 where the kernel doesn't count it."""
    starved_ns = 0
    with suppress(OSError):
        for path in Path("/proc/self/task").glob("*/schedstat"):
            with suppress(OSError):  # A thread that has ended meanwhile.
                starved_ns += int(path.read_text().split()[1])
    return starved_ns / 1e9


class Stopwatch:
    """Runs from when it is made."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._computed_s = time.process_time()
        self._starved_s = _starved_s()

    def seconds(self) -> float:
        """The time since the start, without the time for which other programs occupied the processor."""
        return time.monotonic() - self._began - max(0.0, _starved_s() - self._starved_s)

    def waited_s(self) -> float:
        """The part of `seconds` in which this process did not compute."""
        return max(0.0, self.seconds() - (time.process_time() - self._computed_s))
