"""What a client must not leave behind: tasks, threads, sockets."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from waiting import until


def _tasks() -> set[asyncio.Task[object]]:
    return {task for task in asyncio.all_tasks() if not task.done()}


def _threads() -> set[str]:
    # The loop's own executor keeps its threads as long as the loop lives.
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("gantrymq-")}


def _sockets() -> set[str]:
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found


@asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """At the end of the block there is no more than at its begin, or a moment later."""
    before = _tasks() | {asyncio.current_task()}, _threads(), _sockets()
    yield

    def left() -> list[object]:
        return [*(_tasks() - before[0]), *(_threads() - before[1]), *(_sockets() - before[2])]

    try:
        await until(lambda: not left())
    except AssertionError:
        raise AssertionError(f"left behind: {left()}") from None
