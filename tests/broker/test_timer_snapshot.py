"""The snapshot of the timer wheel is counted in time slices."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

from wait_until import until

from gantrymq.background.jobs import Jobs
from gantrymq.broker.metrics.timer_snapshot import SNAPSHOT_BOUNDS_S, TimerSnapshot
from gantrymq.system.clock import now_ms


async def test_a_count_does_not_hold_the_loop() -> None:
    """Each step takes 1 ms here: a time slice of 5 ms has at most 5 steps."""
    calls: list[tuple[int, int]] = []

    def number_due(start_ms: int, end_ms: int) -> int:
        time.sleep(0.001)
        calls.append((start_ms, end_ms))
        return end_ms - start_ms

    snapshot = TimerSnapshot(number_due, Jobs())
    began_ms = now_ms()
    snapshot.start()
    try:
        async with asyncio.timeout(60):
            while not any(snapshot.counts):
                before = len(calls)
                await asyncio.sleep(0)
                assert len(calls) - before <= 5
    finally:
        snapshot.stop()
    # The steps cover the whole time once.
    assert all(end_ms == start_ms for (_, end_ms), (start_ms, _) in pairwise(calls))
    assert calls[-1][1] - calls[0][0] == SNAPSHOT_BOUNDS_S[-1] * 1000
    assert calls[0][0] >= began_ms
    bounds_ms = [0, *(bound * 1000 for bound in SNAPSHOT_BOUNDS_S)]
    assert snapshot.counts == [end - start for start, end in pairwise(bounds_ms)]


async def test_nothing_is_counted_after_the_stop() -> None:
    calls = 0

    def number_due(start_ms: int, end_ms: int) -> int:
        nonlocal calls
        calls += 1
        time.sleep(0.001)
        return 0

    snapshot = TimerSnapshot(number_due, Jobs())
    snapshot.start()
    await until(lambda: calls)
    snapshot.stop()
    so_far = calls
    for _ in range(10):
        await asyncio.sleep(0)
    assert calls == so_far
