"""Runs an operation for many items with limited concurrency."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")

_AT_ONCE = 64


async def for_each(things: Iterable[T], work: Callable[[T], Awaitable[None]]) -> None:
    """Runs `work` for each item, up to 64 at once. Runs all of them before it raises the first error."""
    things = list(things)
    waiting = iter(things)
    errors: list[Exception] = []

    async def work_off() -> None:
        for thing in waiting:
            try:
                await work(thing)
            except Exception as e:
                errors.append(e)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(_AT_ONCE, len(things))):
            group.create_task(work_off())
    if errors:
        raise errors[0]
