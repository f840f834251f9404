"""IndexBuilder: builds the store's key index in the background (`IndexService`).

Java indexes each message when it arrives. Here, sends do not wait for the index:
- An idle broker indexes all messages.
- Under load, it indexes nothing until the index lags behind by more than _FAR_BEHIND, and then works in short slices.
- A query by key indexes the newest messages first.
"""

from __future__ import annotations

from gantrymq.background.jobs import Jobs
from gantrymq.broker.feature import Feature
from gantrymq.store.message_store import MessageStore

#: Interval of the check for new messages, in seconds.
_LOOK_S = 0.1
#: Interval of the check while no messages arrive and all messages are indexed, in seconds.
_IDLE_S = 1.0
#: Length of one slice of work, in seconds. It blocks the event loop.
_SLICE_S = 0.005
#: Lag of the index from which it is also built under load, in bytes.
_FAR_BEHIND = 256 * 1024 * 1024


class IndexBuilder(Feature):
    """Builds the key index of one store, from `start` to `stop`."""

    def __init__(self, store: MessageStore, jobs: Jobs) -> None:
        self._store = store
        self._position = 0
        self._building = jobs.repeating("build the key index", self._build, _LOOK_S)

    async def start(self) -> None:
        self._building.start()

    async def stop(self) -> None:
        self._building.cancel()

    def _build(self) -> float:
        """Builds a part of the index if there is time for it. Returns the seconds to the next run."""
        keys, position = self._store.keys, self._store.max_physical_offset
        is_idle = position == self._position
        self._position = position
        if keys.index_behind_bytes and (is_idle or keys.index_behind_bytes > _FAR_BEHIND):
            is_done = keys.build_index(_SLICE_S)
            if not is_done and is_idle:
                # Pauses for as long as the slice took, so that requests run in between.
                return _SLICE_S
        return _LOOK_S if keys.index_behind_bytes or not is_idle else _IDLE_S
