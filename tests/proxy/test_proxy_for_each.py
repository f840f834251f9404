"""Rounds over many things: messages that are renewed, clients whose heartbeats go to brokers."""

from __future__ import annotations

import asyncio

import pytest
from waiting import until

from gantrymq.proxy.for_each import for_each


async def test_one_that_fails_keeps_it_from_no_other() -> None:
    """Else a single message that can't be renewed would have those of all clients come again."""
    done = []

    async def work(number: int) -> None:
        await asyncio.sleep(0)
        if number % 100 == 7:
            raise ValueError(number)
        done.append(number)

    # Who runs it counts the round as failed.
    with pytest.raises(ValueError, match="7"):
        await for_each(range(300), work)
    assert sorted(done) == [number for number in range(300) if number % 100 != 7]


async def test_all_end_with_who_asked() -> None:
    begun, cancelled = [], []

    async def work(number: int) -> None:
        begun.append(number)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(number)
            raise

    task = asyncio.create_task(for_each(range(3), work))
    await until(lambda: len(begun) == 3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(cancelled) == [0, 1, 2]
