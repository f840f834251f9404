"""Finds messages by key, tags or unique key in the index (`IndexService.queryOffset`)."""

from __future__ import annotations

from collections.abc import Callable, Generator

from gantrymq.errors import RecordError
from gantrymq.protocol.record import topic_and_properties, unpacker
from gantrymq.store.commit_log import CommitLog
from gantrymq.store.config import StoreConfig
from gantrymq.store.index_keys import TAGS_PREFIX, keys_of
from gantrymq.store.message_index import MessageIndex
from gantrymq.system.clock import monotonic

#: A search in progress. Each `next` continues the search for some milliseconds. At the end, StopIteration contains the
#: physical offsets.
Search = Generator[None, None, list[int]]

#: Duration of one step of a search, in seconds.
_STEP_S = 0.005
#: Before it searches, a search adds the newest messages to the index, in at most this many steps. It waits for a
#: preallocated index file for at most `_PREALLOCATION_WAIT_S` seconds.
_BUILD_STEPS = 10
_PREALLOCATION_WAIT_S = 1.0

_size_and_place = unpacker("size", "physical_offset")


class KeyLookup:
    """Finds a store's messages by key. Without `message_index_enable`, no message is indexed or found."""

    def __init__(self, config: StoreConfig, log: CommitLog, index: MessageIndex) -> None:
        self._config = config
        self._log = log
        self._index = index

    def build_index(self, budget_s: float) -> bool:
        """Continues to build the index for about `budget_s` seconds. Returns whether it contains all messages.

        Call it often, in the thread that calls the store, because `append` does not update the index. If it raises an
        exception, the next call continues at the same position.
        """
        return not self._config.message_index_enable or self._index.build(budget_s)

    @property
    def index_behind_bytes(self) -> int:
        """Number of bytes of the log that are not in the index yet."""
        return self._index.behind_bytes if self._config.message_index_enable else 0

    @property
    def index_last_update(self) -> tuple[int, int]:
        """(store timestamp, physical offset) of the newest message in the index; zeros if the index is empty."""
        return self._index.last_update

    def find_by_key(self, topic: str, key: str, begin_ms: int, end_ms: int, max_num: int) -> Search:
        """Searches for messages of a topic by unique key or KEYS. Returns physical offsets, oldest first.

        The result has the newest `max_num` messages stored between the two times, both inclusive, but at most
        `max_msgs_num_batch`. Messages of a deleted topic are included. The newest messages are missing while the index
        lags far behind. Without `message_index_enable`, the result is empty.

        A search may read 200,000 entries, which takes half a second. The caller runs each step with `next`, in the
        thread that calls the store, and may do other work between two steps. A step raises StoreError if it can't read
        a file.
        """
        return self._find(topic, key.encode(errors="replace"), begin_ms, end_ms, max_num, lambda keys, key: key in keys)

    def find_by_tags(self, topic: str, tags: str, begin_ms: int, end_ms: int, max_num: int) -> Search:
        """Searches for messages with these tags, as `find_by_key` does."""
        key = TAGS_PREFIX + tags.encode(errors="replace")
        return self._find(topic, key, begin_ms, end_ms, max_num, lambda keys, key: keys[-1:] == [key])

    def find_by_unique_key(self, topic: str, unique_key: str) -> Search:
        """Searches for messages with this client-generated id (UNIQ_KEY), as `find_by_key` does, for any store time."""
        key, limit = unique_key.encode(errors="replace"), self._config.max_msgs_num_batch
        return self._find(topic, key, 0, 1 << 62, limit, lambda keys, key: keys[:1] == [key])

    def _find(
        self,
        topic: str,
        key: bytes,
        begin_ms: int,
        end_ms: int,
        max_num: int,
        matches: Callable[[list[bytes], bytes], bool],
    ) -> Search:
        limit = min(max_num, self._config.max_msgs_num_batch)
        if limit < 1 or not self._config.message_index_enable:
            return []
        steps, files_by = 0, monotonic() + _PREALLOCATION_WAIT_S
        while not self._index.build(_STEP_S) and steps < _BUILD_STEPS:
            if not self._index.waits_for_file or monotonic() >= files_by:
                steps += 1
            yield
        topic_bytes = topic.encode(errors="replace")
        found: list[int] = []
        step_end = monotonic() + _STEP_S
        for physical_offset in self._index.find(topic_bytes, key, begin_ms, end_ms):
            if physical_offset is not None:
                record_topic, properties = self._read(physical_offset)
                if record_topic == topic_bytes and matches(keys_of(properties), key):
                    found.append(physical_offset)
                    if len(found) >= limit:
                        break
            if monotonic() >= step_end:
                yield
                step_end = monotonic() + _STEP_S
        return found[::-1]

    def _read(self, physical_offset: int) -> tuple[bytes, bytes]:
        """Returns a record's topic and properties, empty if it can't be read. Skips the body, which can be large."""
        found = self._log.view_at(physical_offset)
        if found is None:
            return b"", b""
        view, base = found
        at = physical_offset - base
        size, place = _size_and_place(view, at)
        if place != physical_offset or at + size > len(view):
            return b"", b""
        try:
            return topic_and_properties(view[at : at + size])
        except RecordError:
            return b"", b""
