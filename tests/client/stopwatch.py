"""Measures durations without the time in which other programs occupied the machine."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path


def _starved_s() -> float:
    """Returns the seconds in which this process's threads waited for a processor.

    0 if the kernel does not count them.
    """
    starved_ns = 0
    with suppress(OSError):
        for path in Path("/proc/self/task").glob("*/schedstat"):
            with suppress(OSError):  # The thread has ended meanwhile.
                starved_ns += int(path.read_text().split()[1])
    return starved_ns / 1e9


class Stopwatch:
    """Starts when it is created."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._computed_s = time.process_time()
        self._starved_s = _starved_s()

    def seconds(self) -> float:
        """Returns the seconds since the start, without the time in which other programs occupied the processor."""
        return time.monotonic() - self._began - max(0.0, _starved_s() - self._starved_s)

    def waited_s(self) -> float:
        """Returns the part of `seconds` in which this process did not compute."""
        return max(0.0, self.seconds() - (time.process_time() - self._computed_s))
