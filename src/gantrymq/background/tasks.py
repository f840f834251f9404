"""Runs work once, in the background. For repeated work see `Repeating`."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from gantrymq.logs import peer_log

log = peer_log(__name__)


class Tasks:
    """The tasks of one owner. Keeps references while they run, logs their exceptions, and cancels them at `stop`.

    The event loop has only weak references, so a task without another reference can be garbage-collected while it runs.
    A TaskGroup is no alternative: a failed task would cancel all others.
    """

    def __init__(self, name: str) -> None:
        """Names the purpose of the tasks in the log."""
        self._name = name
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._stopped = False

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Starts `work` in the running loop. After `stop`, `work` is discarded."""
        if self._stopped:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._done)

    async def wait(self) -> None:
        """Waits until no task is running, including tasks that start during the wait."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def wait_for_running(self) -> None:
        """Waits until the tasks that run at the time of the call have ended."""
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    async def stop(self) -> None:
        """Cancels all tasks and waits until they have ended. No task can start afterwards."""
        self._stopped = True
        for task in self._tasks:
            task.cancel()
        await self.wait()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed: %s: %s", self._name, type(error).__name__, error, exc_info=error)
