"""Has the store build its key index in the pauses between messages.

Java indexes each message as it comes; here a send doesn't pay for it. A broker under load builds nothing until the
index is far behind, and then in small slices; an idle one catches up. A look-up by key first has the newest messages
indexed.
"""

from __future__ import annotations

import asyncio
import logging

from gantrymq.errors import StoreError
from gantrymq.store.message_store import MessageStore

log = logging.getLogger(__name__)

#: How often it is looked whether messages come, s.
_LOOK_S = 0.1
#: One slice of work, s: so long nobody else is served.
_SLICE_S = 0.005
#: Behind by more than this many bytes, slices are worked off under load too.
_FAR_BEHIND = 256 * 1024 * 1024


class IndexBuilder:
    """Works from `start` to `stop`."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._position = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = self._loop.call_later(_LOOK_S, self._work)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _work(self) -> None:
        position = self._store.max_physical_offset
        is_idle = position == self._position
        self._position = position
        pause_s = _LOOK_S
        if self._store.keys.index_behind_bytes and (is_idle or self._store.keys.index_behind_bytes > _FAR_BEHIND):
            try:
                if not self._store.keys.build_index(_SLICE_S) and is_idle:
                    # As much again for whoever wants to be served between two slices.
                    pause_s = _SLICE_S
            except StoreError as e:
                log.error("the key index can't be built: %s", e)
        self._timer = self._loop.call_later(pause_s, self._work)
