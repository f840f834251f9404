"""Bodies that take long to decompress: off the event loop, and a bounded amount at a time.

A few kilobytes may become 32 MiB. What waits for its handler stays compressed; what is in handlers, or was handed out
by one `poll`, is ready, up to BUDGET_BYTES. How large a body gets is known afterwards: so one at a time, and one too
many. Afterwards only the compressed body is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from gantrymq.errors import ProtocolError
from gantrymq.protocol.message import KEPT_SIZE, MessageExt
from gantrymq.system import threads

#: While handlers hold so many bytes of large bodies, the next one waits.
BUDGET_BYTES = 64 * 1024 * 1024


class LargeBodies:
    """For the tasks of one pool."""

    def __init__(self) -> None:
        self._held = 0
        self._turn = asyncio.Lock()
        self._room = asyncio.Event()

    async def decompress(self, message: MessageExt) -> int:
        """Makes `message.body` ready, or to raise; returns how many bytes are to be given to `release`."""
        if message.decompress_if_small(KEPT_SIZE):
            return 0
        async with self._turn:
            while self._held >= BUDGET_BYTES:
                self._room.clear()
                await self._room.wait()
            with suppress(ProtocolError):  # The handler's to see.
                size = await asyncio.to_thread(message.unpack)
                self._held += size
                return size
        return 0

    def release(self, message: MessageExt, size: int) -> None:
        """The handler of such a message has ended."""
        message.pack()
        self._held -= size
        self._room.set()


class LargeBodiesInThreads:
    """For the threads of one pool."""

    def __init__(self) -> None:
        self._held = 0
        self._room = threads.Condition()
        self._closed = False

    def decompress(self, message: MessageExt) -> int:
        """As that of LargeBodies. After `close` it waits no longer."""
        if message.decompress_if_small(KEPT_SIZE):
            return 0
        with self._room:
            self._room.wait_for(lambda: self._held < BUDGET_BYTES or self._closed)
            if self._closed:
                return 0
            with suppress(ProtocolError):  # The handler's to see.
                size = message.unpack()
                self._held += size
                return size
        return 0

    def release(self, message: MessageExt, size: int) -> None:
        """The handler of such a message has ended."""
        message.pack()
        with self._room:
            self._held -= size
            self._room.notify_all()

    def close(self) -> None:
        """Whoever waits for room goes on without."""
        with self._room:
            self._closed = True
            self._room.notify_all()


async def make_ready(messages: Sequence[MessageExt]) -> int:
    """Makes the bodies of messages that are handed out together ready; of how many of the first there was room."""
    given_up = threads.Event()
    try:
        return await asyncio.to_thread(_make_ready, messages, given_up.is_set)
    finally:
        given_up.set()


def _make_ready(messages: Sequence[MessageExt], is_given_up: Callable[[], bool]) -> int:
    held = 0
    for number, message in enumerate(messages):
        if held >= BUDGET_BYTES or is_given_up():
            return number
        if message.is_packed:
            with suppress(ProtocolError):  # The reader's to see.
                held += message.unpack()
    return len(messages)
