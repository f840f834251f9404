"""Rounds over many items: renewals of messages, and heartbeats of clients to brokers."""

from __future__ import annotations

import asyncio

import pytest
from wait_until import until

from gantrymq.proxy.concurrency import for_each


async def test_one_that_fails_keeps_it_from_no_other() -> None:
    """Otherwise one failing renewal would cause a redelivery of all clients' messages."""
    done = []

    async def work(number: int) -> None:
        await asyncio.sleep(0)
        if number % 100 == 7:
            raise ValueError(number)
        done.append(number)

    # The caller counts the round as failed.
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
