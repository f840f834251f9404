"""The threads of a tier: a store that hangs delays nobody else."""

from __future__ import annotations

import asyncio
import threading

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
