"""Works: changes that take longer than a page may wait, under way beside it, and how far they are.

They belong to the eye of who began them, and end with it: questions are signed with that user's keys.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator

import msgspec

from gantrymq.background.tasks import Tasks
from gantrymq.errors import ClientError, GantryError
from gantrymq.system.clock import now_ms

#: Under way at once, of one eye; those that ended are kept so long as there are no more than these.
MAX_UNDER_WAY = 4
_KEPT = 50


class _Stopped(GantryError):
    """Somebody stopped it."""


class Work(msgspec.Struct):
    """A change that is under way, or was; times in ms.

    `done` of about `of` is how far it is, `of` None where that isn't known; `so_far` says it in words. `state` is
    running, stopping, stopped, done or failed.
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

    def tell(self, done: int, so_far: str) -> None:
        """How far it is. Raises a GantryError that ends it when somebody wants that."""
        self.done, self.so_far = done, so_far
        if self.state == "stopping":
            raise _Stopped(so_far)


class Works:
    """The works of one eye, in one event loop."""

    def __init__(self) -> None:
        self._tasks = Tasks("a change that takes long")
        self._kept: deque[Work] = deque(maxlen=_KEPT)
        self._last_id = 0

    def __iter__(self) -> Iterator[Work]:
        """The newest first."""
        return reversed(self._kept)

    def begin(
        self, name: str, about: str, perform: Callable[[Work], Awaitable[str]], ended: Callable[[str], None]
    ) -> Work:
        """Lets `perform` go on beside; its outcome goes to `ended`. Raises GantryError when too many are under way."""
        if len(self._tasks) >= MAX_UNDER_WAY:
            raise GantryError(f"{MAX_UNDER_WAY} changes are under way already: wait for one, or stop it")
        self._last_id += 1
        work = Work(self._last_id, name, about, now_ms())
        self._kept.append(work)
        self._tasks.start(self._run(work, perform, ended))
        return work

    def stop(self, id_: int) -> Work:
        """The work stops after its next step. Raises ClientError when there is none under way with this id."""
        for work in self._kept:
            if work.id == id_ and work.ended_ms is None:
                work.state = "stopping"
                return work
        raise ClientError(f"no work {id_} is under way")

    async def close(self) -> None:
        """Gives up what is under way."""
        # A task that is cancelled before its first step never tells its end.
        await asyncio.sleep(0)
        await self._tasks.stop()

    async def _run(self, work: Work, perform: Callable[[Work], Awaitable[str]], ended: Callable[[str], None]) -> None:
        outcome, state = "it was given up", "failed"
        try:
            outcome, state = await perform(work), "done"
        except _Stopped as e:
            outcome, state = f"stopped: {e}", "stopped"
        except GantryError as e:
            outcome = f"failed: {e}" + (f" ({work.so_far})" if work.so_far else "")
        finally:
            work.so_far, work.state, work.ended_ms = outcome, state, now_ms()
            ended(outcome)
