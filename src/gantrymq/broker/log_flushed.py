"""Waits until the commit log is on disk. Files with progress are written after the records that they count."""

from __future__ import annotations

import asyncio

from gantrymq.store.message_store import MessageStore


async def log_flushed(store: MessageStore) -> None:
    """Returns after all current records of the log are on disk. Raises StoreError if they can't be flushed."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def settle(error: Exception | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def flushed(error: Exception | None) -> None:
        # Called in the flusher's thread.
        loop.call_soon_threadsafe(settle, error)

    store.when_flushed(store.max_physical_offset, flushed)
    await done
