"""Has the store build its key index in the pauses between messages.

Java indexes each message as it comes; here a send doesn't pay for it. A broker under load builds nothing until the
index is far behind, and then in small slices; an idle one catches up. A look-up by key first has the newest messages
indexed.
"""

from __future__ import annotations

from gantrymq.background.jobs import Jobs
from gantrymq.broker.part import Part
from gantrymq.store.message_store import MessageStore

#: How often it is looked whether messages come, s.
_LOOK_S = 0.1
#: And so often when none come, and all that there are is in the index, s.
_IDLE_S = 1.0
#: One slice of work, s: so long nobody else is served.
_SLICE_S = 0.005
#: Behind by more than this many bytes, slices are worked off under load too.
_FAR_BEHIND = 256 * 1024 * 1024


class IndexBuilder(Part):
    """Works from `start` to `stop`."""

    def __init__(self, store: MessageStore, jobs: Jobs) -> None:
        self._store = store
        self._position = 0
        self._building = jobs.repeating("build the key index", self._build, _LOOK_S)

    async def start(self) -> None:
        self._building.start()

    async def stop(self) -> None:
        self._building.cancel()

    def _build(self) -> float:
        keys, position = self._store.keys, self._store.max_physical_offset
        is_idle = position == self._position
        self._position = position
        if keys.index_behind_bytes and (is_idle or keys.index_behind_bytes > _FAR_BEHIND):
            is_done = keys.build_index(_SLICE_S)
            if not is_done and is_idle:
                # As much again for whoever wants to be served between two slices.
                return _SLICE_S
        return _LOOK_S if keys.index_behind_bytes or not is_idle else _IDLE_S
