"""How fast this machine is at the moment: limits of processor time are times of a reference machine."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from time import thread_time

#: Processor time of `_work` on the machine on which the limits were set, s.
_REFERENCE_S = 0.0125


class StepTimer:
    """Processor time of this thread, as a machine of the reference speed would need it.

    Other programs that share a core or its caches make the same work take up to four times as long. The speed is
    measured when the timer is made and when a time is read, and the slower one counts.
    """

    def __init__(self) -> None:
        self._slowness = slowness()
        self._longest = 0.0

    @contextmanager
    def step(self) -> Iterator[None]:
        """Measures the block; `longest` tells the longest of all."""
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
    """Measures each turn of the event loop in the block, without the garbage of other tests."""
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
    """How many times as long as on the reference machine something takes; 1 on a faster one."""
    return max(1.0, min(_took() for _ in range(3)) / _REFERENCE_S)


def _took() -> float:
    began = thread_time()
    _work()
    return thread_time() - began


def _work() -> object:
    """A bit of what servers do: strings, dictionaries, sorting; more than fits into the caches of a core."""
    table = {f"topic-{number}": (number, str(number)) for number in range(20_000)}
    return sorted(table, key=lambda name: table[name][1]), [value for value in table.values() if value[0] % 3]
