"""FileChanges: what is asked for over the network is on the disk before it holds, and no write stops the loop."""

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
    """A file's content, and what makes it hold once it is written."""

    path: Path
    data: bytes
    apply: Callable[[], None]


class FileChanges:
    """Makes changes one after the other. A client that goes away doesn't stop one that is under way."""

    def __init__(self, jobs: Jobs) -> None:
        self._job = jobs.repeating("write changed configuration", self._make_next)
        self._stopped = False
        self._waiting: deque[tuple[Callable[[], NewContent], asyncio.Future[None]]] = deque()

    def start(self) -> None:
        self._job.start()

    async def make(self, change: Callable[[], NewContent]) -> None:
        """Calls `change` when its turn comes, writes what it returns, applies it.

        Raises what these raise, and RequestRefused after `stop`.
        """
        if self._stopped:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "the server stops: its configuration is changed no more")
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((change, done))
        self._job.wake()
        await done

    async def stop(self) -> None:
        """Makes what was asked for, then no more."""
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
            # It is the caller's, who may do it again: no failure of this job.
            if not done.done():
                done.set_exception(e)
        finally:
            self._waiting.popleft()
        if not done.done():
            done.set_result(None)
        return 0.0 if self._waiting else None
