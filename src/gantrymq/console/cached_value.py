"""A cache for a value whose query takes long. A call only repeats the query if the cached value is old.

If the query takes longer than a page can wait, the caller gets the older value, or None. Pages therefore load in time
even for a large cluster. Data that no page shows is not queried.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

from gantrymq.errors import GantryError
from gantrymq.system.clock import monotonic

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Longest wait of a page for a first value, s. Pages must load within a second.
WAIT_S = 0.4
#: Longest wait of a page if an older value is cached, s.
STALE_WAIT_S = 0.1
#: Pause between two queries, as a multiple of the last query's duration. It limits the load on brokers.
_REST = 8
#: Query time of a value that was invalidated or never queried.
_FORGOTTEN = float("-inf")


class CachedValue(Generic[T]):
    """The cached result of `gather`.

    The value is queried again if it is older than `fresh_s`, and older than _REST times the duration of its query.
    """

    def __init__(self, gather: Callable[[], Awaitable[T]], fresh_s: float) -> None:
        self._gather = gather
        self._fresh_s = fresh_s
        self._value: T | None = None
        self._at = _FORGOTTEN
        self._took_s = 0.0
        #: Start of the running query, s.
        self._began = 0.0
        self._forgotten = 0
        self._task: asyncio.Task[T] | None = None

    async def get(self, wait_s: float = WAIT_S, stale_wait_s: float = STALE_WAIT_S) -> T | None:
        """Returns the newest value within `wait_s`; None if there is no value yet.

        The wait is only `stale_wait_s` if an older value is cached, or if `gather` has already run for `wait_s`. Raises
        the GantryError of the first query.
        """
        now = monotonic()
        until = now + min(wait_s, stale_wait_s)
        if self._at == _FORGOTTEN:
            until = max(until, (now if self._task is None else self._began) + wait_s)
        while self._value is None or monotonic() - self._at >= max(self._fresh_s, _REST * self._took_s):
            if self._task is None:
                self._began = monotonic()
                self._task = asyncio.get_running_loop().create_task(self._run())
                self._task.add_done_callback(_log_defect)
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
        """Invalidates the value. The next caller gets a new value if the query ends in time."""
        self._at = _FORGOTTEN
        self._forgotten += 1

    async def close(self) -> None:
        """Cancels the running query."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError, GantryError):
                await self._task

    async def _run(self) -> T:
        began, forgotten = monotonic(), self._forgotten
        try:
            self._value = value = await self._gather()
            self._took_s = monotonic() - began
            # If the value was invalidated during the query, the query may have read old data.
            self._at = began if forgotten == self._forgotten else _FORGOTTEN
            return value
        finally:
            self._task = None


def _log_defect(task: asyncio.Task[Any]) -> None:
    """Logs an error that is not a GantryError. There may be no caller that waits for the query any more."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, GantryError):
        log.error("the query of a cached value failed", exc_info=error)


class CachedValues(Generic[T]):
    """The cached results of `gather` by key, such as a topic's figures. Keeps the `max_keys` last used results."""

    def __init__(self, gather: Callable[[str], Awaitable[T]], fresh_s: float, max_keys: int) -> None:
        self._gather = gather
        self._fresh_s = fresh_s
        self._max_keys = max_keys
        self._values: dict[str, CachedValue[T]] = {}

    async def get(self, keys: Iterable[str], wait_s: float = WAIT_S) -> tuple[dict[str, T], dict[str, GantryError]]:
        """Returns the values that are available within `wait_s`, and the errors of the failed queries."""
        values: dict[str, T] = {}
        errors: dict[str, GantryError] = {}

        async def get(key: str, cached: CachedValue[T]) -> None:
            try:
                value = await cached.get(wait_s)
            except GantryError as e:
                errors[key] = e
            else:
                if value is not None:
                    values[key] = value

        wanted = {key: self._of(key) for key in keys}
        await asyncio.gather(*(get(key, cached) for key, cached in wanted.items()))
        while len(self._values) > max(self._max_keys, len(wanted)):
            await self._values.pop(next(iter(self._values))).close()
        return values, errors

    def forget(self) -> None:
        """Invalidates all values."""
        for cached in self._values.values():
            cached.forget()

    async def close(self) -> None:
        """Cancels the running queries."""
        await asyncio.gather(*(cached.close() for cached in self._values.values()))

    def _of(self, key: str) -> CachedValue[T]:
        cached = self._values.pop(key, None) or CachedValue(partial(self._gather, key), self._fresh_s)
        # The value moves to the end of the dictionary, because it was used last.
        self._values[key] = cached
        return cached
