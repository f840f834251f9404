"""OpenAnswers: requests that tasks are going to answer; not more of them than memory has room for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Generic, TypeVar

from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.room import Room, Rooms

T = TypeVar("T")

#: Of one connection, and of all of a server (`replyThreadPoolQueueCapacity`); what they hold in memory, bytes.
MAX_REQUESTS_OF_ONE = 1_000
MAX_BYTES_OF_ONE = 16 * 1024 * 1024
MAX_REQUESTS = 10_000
MAX_BYTES = 64 * 1024 * 1024
#: What a task and its request take besides the request's bytes, about.
_OVERHEAD = 4096


def new_rooms_for_answers() -> Rooms:
    """Of one server."""
    return Rooms(MAX_REQUESTS, MAX_BYTES, MAX_REQUESTS_OF_ONE, MAX_BYTES_OF_ONE)


class OpenAnswers(Generic[T]):
    """Those of one connection. `answer` is told a task's result, or what it raised."""

    def __init__(self, answer: Callable[[RemotingCommand, T | BaseException], None], room: Room) -> None:
        self._answer = answer
        self._room = room
        self._tasks: dict[asyncio.Task[T], None] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def begin(self, request: RemotingCommand, work: Coroutine[Any, Any, T]) -> bool:
        """Runs `work` in a task; False when there is no room for it."""
        size = len(request.body) + len(request.raw_ext) + _OVERHEAD
        if not self._room.take(size):
            return False
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(partial(self._done, request, size))
        return True

    def cancel(self) -> None:
        """Nobody waits for the answers any more."""
        for task in list(self._tasks):
            task.cancel()

    def _done(self, request: RemotingCommand, size: int, task: asyncio.Task[T]) -> None:
        self._tasks.pop(task, None)
        self._room.give_back(size)
        if task.cancelled():
            self._answer(request, asyncio.CancelledError())
        else:
            self._answer(request, task.exception() or task.result())
