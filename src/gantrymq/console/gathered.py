"""Gathered: what takes long to ask for, kept for a while and asked for anew when somebody wants it.

Who asks gets what is fresh; where that takes longer than a page may, what was there before, or nothing yet. So a page
is painted in time however large the cluster is, and nothing is asked for that nobody looks at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar

from gantrymq.errors import GantryError
from gantrymq.system.clock import monotonic

T = TypeVar("T")

#: So long a page waits for what is being asked for, s: its first paint is to come within a second.
WAIT_S = 0.4
#: If there is an older value, a page waits only so long, s.
STALE_WAIT_S = 0.1
#: What took long is asked for again after so many times as long: brokers have other things to do.
_REST = 8
#: When what is kept was gathered: too long ago.
_FORGOTTEN = float("-inf")


class Gathered(Generic[T]):
    """What `gather` returns, asked for again when it is older than `fresh_s`, or than _REST times what it took."""

    def __init__(self, gather: Callable[[], Awaitable[T]], fresh_s: float) -> None:
        self._gather = gather
        self._fresh_s = fresh_s
        self._value: T | None = None
        self._at = _FORGOTTEN
        self._took_s = 0.0
        #: When the gathering that is under way began.
        self._began = 0.0
        self._forgotten = 0
        self._task: asyncio.Task[T] | None = None

    async def get(self, wait_s: float = WAIT_S, stale_wait_s: float = STALE_WAIT_S) -> T | None:
        """The newest value there is within `wait_s`, or within `stale_wait_s` if there is an older value.

        A caller without any value waits only `stale_wait_s` if `gather` has already run for `wait_s`.

        None when it was never there. Raises the GantryError of a first try.
        """
        now = monotonic()
        until = now + min(wait_s, stale_wait_s)
        if self._at == _FORGOTTEN:
            until = max(until, (now if self._task is None else self._began) + wait_s)
        while self._value is None or monotonic() - self._at >= max(self._fresh_s, _REST * self._took_s):
            if self._task is None:
                self._began = monotonic()
                self._task = asyncio.get_running_loop().create_task(self._run())
            task = self._task
            await asyncio.wait([task], timeout=max(until - monotonic(), 0))
            if not task.done():
                break
            error = None if task.cancelled() else task.exception()
            if error is not None and (self._value is None or not isinstance(error, GantryError)):
                raise error
            if error is not None or self._at != _FORGOTTEN:
                break
        return self._value

    def forget(self) -> None:
        """Something was changed: who asks next gets what is there now, if that comes in time."""
        self._at = _FORGOTTEN
        self._forgotten += 1

    async def close(self) -> None:
        """Ends what is under way."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError, GantryError):
                await self._task

    async def _run(self) -> T:
        began, forgotten = monotonic(), self._forgotten
        try:
            self._value = value = await self._gather()
            self._took_s = monotonic() - began
            # What was changed in the meantime may have been asked for before.
            self._at = began if forgotten == self._forgotten else _FORGOTTEN
            return value
        finally:
            self._task = None
