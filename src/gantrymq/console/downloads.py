"""Limits of concurrent downloads and exports, whose responses can have any size and are sent in pieces."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gantrymq.errors import GantryError

#: Limits of concurrent downloads: of all visitors, and of one. Each download has a message of 4 MiB or an export page
#: in memory.
MAX_AT_ONCE = 8
MAX_OF_ONE = 2
#: Longest wait for other downloads, s, and limit of the waiting downloads of one visitor.
WAIT_S = 5.0
MAX_WAITING = 8


class TooManyDownloads(GantryError):
    """Raised if the limit of downloads is reached."""


class Downloads:
    """Counts the downloads of one console, in one event loop."""

    def __init__(self) -> None:
        self._at_once: dict[str, int] = {}
        self._waiting: Counter[str] = Counter()
        #: Set, and replaced by a new event, when a download ends.
        self._ended = asyncio.Event()

    @asynccontextmanager
    async def one_of(self, visitor: str) -> AsyncIterator[None]:
        """Counts one download of `visitor` while the block runs. Raises TooManyDownloads at once or after WAIT_S."""
        await self._wait(visitor)
        self._at_once[visitor] = self._at_once.get(visitor, 0) + 1
        try:
            yield
        finally:
            self._at_once[visitor] -= 1
            if not self._at_once[visitor]:
                del self._at_once[visitor]
            self._ended.set()
            self._ended = asyncio.Event()

    async def _wait(self, visitor: str) -> None:
        """Waits until another download may start. Raises TooManyDownloads."""
        too_many = TooManyDownloads(
            f"{MAX_OF_ONE} downloads of one visitor, and {MAX_AT_ONCE} in all, run at once: try again later"
        )
        if self._waiting[visitor] >= MAX_WAITING:
            raise too_many
        self._waiting[visitor] += 1
        try:
            async with asyncio.timeout(WAIT_S):
                while not self._may_begin(visitor):
                    await self._ended.wait()
        except TimeoutError:
            raise too_many from None
        finally:
            self._waiting[visitor] -= 1
            if not self._waiting[visitor]:
                del self._waiting[visitor]

    def _may_begin(self, visitor: str) -> bool:
        return self._at_once.get(visitor, 0) < MAX_OF_ONE and sum(self._at_once.values()) < MAX_AT_ONCE
