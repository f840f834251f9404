"""Tasks: work that is done once, beside requests; what is repeated is a `Repeating`."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from gantrymq.logs import peer_log

log = peer_log(__name__)


class Tasks:
    """Tasks of one owner: kept while they run, their exceptions logged, ended when the owner ends.

    The event loop itself has weak references only: a task that nobody holds may be collected in the middle of its work.
    A TaskGroup won't do: a task that fails would end all others.
    """

    def __init__(self, name: str) -> None:
        """`name` says in the log what the tasks are for."""
        self._name = name
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._stopped = False

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Begins `work` in the running loop; after `stop` it is thrown away."""
        if self._stopped:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._done)

    async def wait(self) -> None:
        """Returns when nothing runs any more, what is begun meanwhile among it."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def stop(self) -> None:
        """Cancels what runs and waits until it has ended; nothing begins any more."""
        self._stopped = True
        for task in self._tasks:
            task.cancel()
        await self.wait()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed: %s: %s", self._name, type(error).__name__, error, exc_info=error)
