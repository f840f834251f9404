"""The threads of a tier: a store that hangs delays nobody else."""

from __future__ import annotations

import asyncio
import threading
from time import monotonic, sleep

import pytest
from wait_until import until

from gantrymq.tier.pool import TierThreads


async def test_calls_that_hang() -> None:
    hanging = threading.Event()
    pool = TierThreads("test", 2, 4)
    try:
        assert await pool.run(lambda: 7) == 7
        with pytest.raises(ZeroDivisionError):
            await pool.run(lambda: 1 // 0)
        await until(lambda: pool.calls == 0)
        for _ in range(4):
            with pytest.raises(TimeoutError):
                await pool.run(hanging.wait, 0.01)
        # They count until they end, and a further call is refused at once.
        assert pool.is_full
        async with asyncio.timeout(5):
            with pytest.raises(TimeoutError, match="4 calls have not ended"):
                await pool.run(lambda: 7)
        hanging.set()
        await until(lambda: pool.calls == 0)
        assert await pool.run(lambda: 7) == 7
    finally:
        hanging.set()
        pool.close()


async def test_calls_of_one_thread_are_in_order() -> None:
    pool = TierThreads("test", 1, 100)
    done: list[int] = []
    await asyncio.gather(*(pool.run(lambda number=number: done.append(number)) for number in range(50)))  # type: ignore[misc]
    assert done == list(range(50))
    pool.close()


async def test_calls_that_were_abandoned_are_not_made() -> None:
    pool = TierThreads("test", 1, 10)
    may_end, made = threading.Event(), list[str]()
    try:
        first = asyncio.create_task(pool.run(may_end.wait))
        await until(lambda: pool.calls == 1)
        with pytest.raises(TimeoutError):
            await pool.run(lambda: made.append("after its timeout"), 0.01)
        cancelled = asyncio.create_task(pool.run(lambda: made.append("cancelled")))
        await until(lambda: pool.calls == 3)
        cancelled.cancel()
        # Too little of its time is left when the thread is free.
        late = asyncio.create_task(pool.run(lambda: made.append("late"), 1.0))
        await until(lambda: pool.calls == 4)
        begin = monotonic()
        await until(lambda: monotonic() > begin + 0.5)
        may_end.set()
        assert await first
        with pytest.raises(TimeoutError):
            await late
        await pool.run(lambda: made.append("new"), 5)
        assert made == ["new"]
        await until(lambda: pool.calls == 0)
    finally:
        may_end.set()
        pool.close()


async def test_an_overloaded_pool_does_useful_work_only() -> None:
    """Almost all calls that are made return their result in time."""
    pool = TierThreads("test", 4, 64)
    made = useful = 0
    end = monotonic() + 4

    def read() -> None:
        nonlocal made
        made += 1
        sleep(0.1)

    async def call() -> None:
        nonlocal useful
        while monotonic() < end:
            try:
                # The calls of all callers take 1.5 s.
                await pool.run(read, 1)
                useful += 1
            except TimeoutError:
                await asyncio.sleep(0.3)

    await asyncio.gather(*(call() for _ in range(60)))
    await until(lambda: pool.calls == 0)
    pool.close()
    assert useful > 0.8 * made > 0
