"""Finds messages by key, tags or unique key in the index (`IndexService.queryOffset`)."""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

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

_FOREVER_MS = 1 << 62
_MAX_INT = (1 << 31) - 1
#: `KeyQuery.place` of a search by unique key.
_UNIQUE_PLACE = slice(1)

_size_and_place = unpacker("size", "physical_offset")


class KeyQuery(NamedTuple):
    """A search for messages of a topic by key, tags or unique key. `by_key` and the functions after it make it.

    Attributes:
        topic: The topic.
        key: The key in the format of `keys_of`.
        begin_ms: Store timestamp of the oldest messages wanted, in ms.
        end_ms: Store timestamp of the newest messages wanted, in ms.
        max_num: Maximum number of messages.
        place: The keys of a message among which `key` must be, as a slice of those from `keys_of`.
    """

    topic: bytes
    key: bytes
    begin_ms: int
    end_ms: int
    max_num: int
    place: slice

    @property
    def is_unique(self) -> bool:
        """Whether it is a search by unique key."""
        return self.place == _UNIQUE_PLACE

    def matches(self, topic: bytes, properties: bytes) -> bool:
        """Returns whether a record with this topic and these properties has the key."""
        return topic == self.topic and self.key in keys_of(properties)[self.place]


def by_key(topic: str, key: str, begin_ms: int, end_ms: int, max_num: int) -> KeyQuery:
    """Returns a search by unique key or KEYS, for messages stored between two times, both inclusive."""
    return KeyQuery(_encoded(topic), _encoded(key), begin_ms, end_ms, max_num, slice(None))


def by_tags(topic: str, tags: str, begin_ms: int, end_ms: int, max_num: int) -> KeyQuery:
    """Returns a search by tags, for messages stored between two times, both inclusive."""
    return KeyQuery(_encoded(topic), TAGS_PREFIX + _encoded(tags), begin_ms, end_ms, max_num, slice(-1, None))


def by_unique_key(topic: str, unique_key: str) -> KeyQuery:
    """Returns a search by the id that a client generates (UNIQ_KEY), for any store time."""
    return KeyQuery(_encoded(topic), _encoded(unique_key), 0, _FOREVER_MS, _MAX_INT, _UNIQUE_PLACE)


def _encoded(text: str) -> bytes:
    return text.encode(errors="replace")


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

    def find(self, query: KeyQuery) -> Search:
        """Searches for messages. Returns physical offsets, oldest first.

        The result has the newest `query.max_num` messages, but at most `max_msgs_num_batch`. Messages of a deleted
        topic are included. The newest messages are missing while the index lags far behind. Without
        `message_index_enable`, the result is empty.

        A search may read 200,000 entries, which takes half a second. The caller runs each step with `next`, in the
        thread that calls the store, and may do other work between two steps. A step raises StoreError if it can't read
        a file.
        """
        limit = min(query.max_num, self._config.max_msgs_num_batch)
        if limit < 1 or not self._config.message_index_enable:
            return []
        steps, files_by = 0, monotonic() + _PREALLOCATION_WAIT_S
        while not self._index.build(_STEP_S) and steps < _BUILD_STEPS:
            if not self._index.waits_for_file or monotonic() >= files_by:
                steps += 1
            yield
        found: list[int] = []
        step_end = monotonic() + _STEP_S
        for physical_offset in self._index.find(query.topic, query.key, query.begin_ms, query.end_ms):
            if physical_offset is not None and query.matches(*self._read(physical_offset)):
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
