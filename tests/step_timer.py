"""Measures the current speed of this machine, because limits of processor time refer to a reference machine."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from time import thread_time

#: Processor time of `_work` on the reference machine, in seconds.
_REFERENCE_S = 0.0125


class StepTimer:
    """Measures processor time of this thread, scaled to the speed of the reference machine.

    Other programs that share a core or its caches can make the same work take up to four times as long. The speed is
    measured when the timer is created and when a time is read. The slower of the two counts.
    """

    def __init__(self) -> None:
        self._slowness = slowness()
        self._longest = 0.0

    @contextmanager
    def step(self) -> Iterator[None]:
        """Measures the block. `longest` returns the longest step."""
        began = thread_time()
        try:
            yield
        finally:
            self._longest = max(self._longest, thread_time() - began)

    @property
    def longest(self) -> float:
        """The longest step so far, in seconds."""
        return self._longest / max(self._slowness, slowness())


@asynccontextmanager
async def loop_steps() -> AsyncIterator[StepTimer]:
    """Measures each event-loop iteration within the block, without garbage of other tests."""
    timer = StepTimer()

    async def measure() -> None:
        while True:
            with timer.step():
                await asyncio.sleep(0)

    gc.collect()
    gc.freeze()
    measuring = asyncio.create_task(measure())
    try:
        yield timer
    finally:
        measuring.cancel()
        gc.unfreeze()


def slowness() -> float:
    """Returns the duration of a task relative to the reference machine, and 1 if this machine is faster."""
    return max(1.0, min(_took() for _ in range(3)) / _REFERENCE_S)


def _took() -> float:
    began = thread_time()
    _work()
    return thread_time() - began


def _work() -> object:
    """Does work like that of a server: strings, dictionaries, sorting. The data exceeds the caches of a core."""
    table = {f"topic-{number}": (number, str(number)) for number in range(20_000)}
    return sorted(table, key=lambda name: table[name][1]), [value for value in table.values() if value[0] % 3]
