"""Operations: changes that run in the background because they take longer than a page can wait.

An operation belongs to the view of the user who started it. The operation ends with the view, because the user's keys
sign its requests.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator

import msgspec

from gantrymq.background.tasks import Tasks
from gantrymq.errors import ClientError, GantryError
from gantrymq.system.clock import now_ms

#: Limits for one view: running operations, and listed operations, running or ended.
MAX_RUNNING = 4
_KEPT = 50


class _Stopped(GantryError):
    """Raised in an operation that a user has stopped."""


class Operation(msgspec.Struct):
    """A running or ended operation. Times are in ms.

    `done` of about `of` steps are complete; `of` is None if the number of steps is unknown. `so_far` describes the
    progress. `state` is running, stopping, stopped, done or failed.
    """

    id: int
    name: str
    about: str
    began_ms: int
    ended_ms: int | None = None
    done: int = 0
    of: int | None = None
    so_far: str = ""
    state: str = "running"

    def expect(self, steps: int | None) -> None:
        """Sets the approximate number of steps."""
        self.of = steps

    def report(self, done: int, so_far: str) -> None:
        """Reports progress. If a user has stopped the operation, raises a GantryError that ends it."""
        self.done, self.so_far = done, so_far
        if self.state == "stopping":
            raise _Stopped(so_far)


class Operations:
    """The operations of one view, in one event loop."""

    def __init__(self) -> None:
        self._tasks = Tasks("operation")
        self._kept: deque[Operation] = deque(maxlen=_KEPT)
        self._last_id = 0

    def __iter__(self) -> Iterator[Operation]:
        """Iterates over the operations, newest first."""
        return reversed(self._kept)

    def begin(
        self, name: str, about: str, perform: Callable[[Operation], Awaitable[str]], ended: Callable[[str], None]
    ) -> Operation:
        """Starts `perform`. Calls `ended` with its outcome.

        Raises GantryError if MAX_RUNNING operations are running already.
        """
        if len(self._tasks) >= MAX_RUNNING:
            raise GantryError(f"{MAX_RUNNING} operations are running: wait until one ends, or stop one")
        self._last_id += 1
        operation = Operation(self._last_id, name, about, now_ms())
        self._kept.append(operation)
        self._tasks.start(self._run(operation, perform, ended))
        return operation

    def stop(self, id_: int) -> Operation:
        """Stops the operation after its current step. Raises ClientError if no running operation has this id."""
        for operation in self._kept:
            if operation.id == id_ and operation.ended_ms is None:
                operation.state = "stopping"
                return operation
        raise ClientError(f"no operation {id_} is running")

    async def close(self) -> None:
        """Cancels running operations."""
        # The tasks must start first. A task that is cancelled before its first step never calls `ended`.
        await asyncio.sleep(0)
        await self._tasks.stop()

    async def _run(
        self, operation: Operation, perform: Callable[[Operation], Awaitable[str]], ended: Callable[[str], None]
    ) -> None:
        """Runs an operation and records its outcome."""
        outcome, state = "cancelled", "failed"
        try:
            outcome, state = await perform(operation), "done"
        except _Stopped as e:
            outcome, state = f"stopped: {e}", "stopped"
        except GantryError as e:
            outcome = f"failed: {e}" + (f" ({operation.so_far})" if operation.so_far else "")
        finally:
            operation.so_far, operation.state, operation.ended_ms = outcome, state, now_ms()
            ended(outcome)
