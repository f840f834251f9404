"""LargeBodies: bodies that take long to decompress are decompressed in a thread, a bounded amount at a time."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from gantrymq.errors import ProtocolError
from gantrymq.protocol.message import MessageExt

#: A body of at most so many bytes is decompressed on the event loop: half a millisecond at most.
QUICK_BYTES = 256 * 1024
#: While handlers hold so many bytes of larger ones, the next one waits.
BUDGET_BYTES = 64 * 1024 * 1024


class LargeBodies:
    """For the handlers of one pool. How large a body gets is known afterwards: so one at a time, and one too many."""

    def __init__(self, budget_bytes: int = BUDGET_BYTES) -> None:
        self._budget_bytes = budget_bytes
        self._held = 0
        self._turn = asyncio.Lock()
        self._room = asyncio.Event()

    async def decompress(self, message: MessageExt) -> int:
        """Makes `message.body` ready, or to raise; returns how many bytes are to be given to `release`."""
        if message.decompress_if_small(QUICK_BYTES):
            return 0
        async with self._turn:
            while self._held >= self._budget_bytes:
                self._room.clear()
                await self._room.wait()
            with suppress(ProtocolError):  # The handler's to see.
                size = await asyncio.to_thread(_size, message)
                self._held += size
                return size
        return 0

    def release(self, size: int) -> None:
        """The handler of such a message has ended."""
        self._held -= size
        self._room.set()


def _size(message: MessageExt) -> int:
    return len(message.body)
