"""Limit for parallel downloads of the console."""

from __future__ import annotations

import asyncio

from gantrymq.console.downloads import MAX_AT_ONCE, MAX_OF_ONE, Downloads


async def test_downloads_wait_for_those_of_the_same_visitor() -> None:
    downloads = Downloads()
    end = asyncio.Event()
    begun: list[str] = []

    async def download(visitor: str) -> None:
        async with downloads.one_of(visitor):
            begun.append(visitor)
            await end.wait()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(MAX_OF_ONE + 1):
            tasks.create_task(download("ann"))
        tasks.create_task(download("bob"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert sorted(begun) == ["ann"] * MAX_OF_ONE + ["bob"]
        end.set()
    assert sorted(begun) == ["ann"] * (MAX_OF_ONE + 1) + ["bob"]
    end.clear()
    begun.clear()
    async with asyncio.TaskGroup() as tasks:
        for n in range(MAX_AT_ONCE + 1):
            tasks.create_task(download(f"visitor {n}"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(begun) == MAX_AT_ONCE
        end.set()
    assert len(begun) == MAX_AT_ONCE + 1
