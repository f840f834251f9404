"""The same work for many things, for some of them at a time: ten thousand requests at once would help nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")

_AT_ONCE = 64


async def for_each(things: Iterable[T], work: Callable[[T], Awaitable[None]]) -> None:
    """Returns when all is done. One with which it fails keeps it from no other; the first such error is raised then."""
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
