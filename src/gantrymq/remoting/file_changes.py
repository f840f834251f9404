"""Saves configuration changes to disk before they take effect, without blocking the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from gantrymq.background.jobs import Jobs
from gantrymq.config import replace_file
from gantrymq.errors import RequestRefused
from gantrymq.protocol.codes import ResponseCode


class NewContent(NamedTuple):
    """New content of a file, and the function that applies it after the write."""

    path: Path
    data: bytes
    apply: Callable[[], None]


class FileChanges:
    """Applies changes one after the other. If a client disconnects, its change is still completed."""

    def __init__(self, jobs: Jobs) -> None:
        self._job = jobs.repeating("write changed configuration", self._make_next)
        self._stopped = False
        self._waiting: deque[tuple[Callable[[], NewContent], asyncio.Future[None]]] = deque()

    def start(self) -> None:
        self._job.start()

    async def make(self, change: Callable[[], NewContent]) -> None:
        """Waits for earlier changes, then calls `change`, writes the result and applies it.

        Raises the errors of these steps. Raises RequestRefused after `stop`.
        """
        if self._stopped:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "the server stops: its configuration is changed no more")
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((change, done))
        self._job.wake()
        await done

    async def stop(self) -> None:
        """Completes all queued changes, then rejects new changes."""
        self._stopped = True
        while self._waiting:
            await asyncio.wait([self._waiting[-1][1]])
        await self._job.stop()

    async def _make_next(self) -> float | None:
        if not self._waiting:
            return None
        change, done = self._waiting[0]
        try:
            content = change()
            await asyncio.get_running_loop().run_in_executor(None, replace_file, content.path, content.data)
            content.apply()
        except Exception as e:
            # The caller gets the error and may retry. The error does not count as a failure of the background job.
            if not done.done():
                done.set_exception(e)
        finally:
            self._waiting.popleft()
        if not done.done():
            done.set_result(None)
        return 0.0 if self._waiting else None
