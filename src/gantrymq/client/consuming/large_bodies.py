"""Decompresses large bodies outside of the event loop, with a limit for their memory.

A few kilobytes can decompress to 32 MiB. A message stays compressed until its handler starts or `poll` returns it.
Decompressed bodies may use BUDGET_BYTES in total. The size of a body is unknown in advance. Therefore bodies are
decompressed one at a time, and the last body can exceed the limit. After the handler, only the compressed body is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from gantrymq.errors import ProtocolError
from gantrymq.protocol.message import KEPT_SIZE, MessageExt
from gantrymq.system import threads

#: Limit for the large bodies in handlers, in bytes. Above it, the next body waits.
BUDGET_BYTES = 64 * 1024 * 1024


class LargeBodies:
    """Decompression for the tasks of one pool."""

    def __init__(self) -> None:
        self._held = 0
        self._turn = asyncio.Lock()
        self._room = asyncio.Event()

    async def decompress(self, message: MessageExt) -> int:
        """Decompresses the body; an invalid body raises on access. Returns the number of bytes to pass to `release`."""
        if message.decompress_if_small(KEPT_SIZE):
            return 0
        async with self._turn:
            while self._held >= BUDGET_BYTES:
                self._room.clear()
                await self._room.wait()
            with suppress(ProtocolError):  # The handler gets the error.
                size = await asyncio.to_thread(message.unpack)
                self._held += size
                return size
        return 0

    def release(self, message: MessageExt, size: int) -> None:
        """Compresses the body again after the handler, and releases its bytes."""
        message.pack()
        self._held -= size
        self._room.set()


class LargeBodiesInThreads:
    """Decompression for the threads of one pool."""

    def __init__(self) -> None:
        self._held = 0
        self._room = threads.Condition()
        self._closed = False

    def decompress(self, message: MessageExt) -> int:
        """Works like `LargeBodies.decompress`. After `close` it does not wait."""
        if message.decompress_if_small(KEPT_SIZE):
            return 0
        with self._room:
            self._room.wait_for(lambda: self._held < BUDGET_BYTES or self._closed)
            if self._closed:
                return 0
            with suppress(ProtocolError):  # The handler gets the error.
                size = message.unpack()
                self._held += size
                return size
        return 0

    def release(self, message: MessageExt, size: int) -> None:
        """Compresses the body again after the handler, and releases its bytes."""
        message.pack()
        with self._room:
            self._held -= size
            self._room.notify_all()

    def close(self) -> None:
        """Wakes the threads that wait in `decompress`. They return without decompressing."""
        with self._room:
            self._closed = True
            self._room.notify_all()


async def make_ready(messages: Sequence[MessageExt]) -> int:
    """Decompresses the bodies of messages, in order. Returns the number of messages that fit the limit."""
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
            with suppress(ProtocolError):  # The caller gets the error when it reads the body.
                held += message.unpack()
    return len(messages)
