"""The same work for many things, for some of them at a time: ten thousand requests at once would help nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")

_AT_ONCE = 64


async def for_each(things: Iterable[T], work: Callable[[T], Awaitable[None]]) -> None:
    """Returns when all is done; what one raises ends it all."""
    things = list(things)
    waiting = iter(things)

    async def work_off() -> None:
        for thing in waiting:
            await work(thing)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(_AT_ONCE, len(things))):
            group.create_task(work_off())
