"""ResponseTasks: the requests of a connection that are answered by tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Generic, TypeVar

from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.quota import Share

T = TypeVar("T")

#: Approximate memory of a task and its request in addition to the bytes of the request.
_OVERHEAD = 4096


class ResponseTasks(Generic[T]):
    """The tasks of one connection. `answer` gets the result of a task, or its exception."""

    def __init__(self, answer: Callable[[RemotingCommand, T | BaseException], None], share: Share) -> None:
        self._answer = answer
        self._share = share
        self._tasks: dict[asyncio.Task[T], None] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def begin(self, request: RemotingCommand, work: Coroutine[Any, Any, T]) -> bool:
        """Runs `work` in a task. Returns False if the task would exceed the quota."""
        size = len(request.body) + len(request.raw_ext) + _OVERHEAD
        if not self._share.take(size):
            return False
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(partial(self._done, request, size))
        return True

    def cancel(self) -> None:
        """Cancels all tasks, because the peer has disconnected."""
        for task in list(self._tasks):
            task.cancel()

    def _done(self, request: RemotingCommand, size: int, task: asyncio.Task[T]) -> None:
        self._tasks.pop(task, None)
        self._share.release(size)
        if task.cancelled():
            self._answer(request, asyncio.CancelledError())
        else:
            self._answer(request, task.exception() or task.result())
