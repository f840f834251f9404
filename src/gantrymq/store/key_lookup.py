"""Finding messages by key, tags or unique key, through the index (`IndexService.queryOffset`)."""

from __future__ import annotations

from collections.abc import Callable, Generator

from gantrymq.errors import RecordError
from gantrymq.protocol.record import topic_and_properties, unpacker
from gantrymq.store.commit_log import CommitLog
from gantrymq.store.config import StoreConfig
from gantrymq.store.index_keys import TAGS_PREFIX, keys_of
from gantrymq.store.message_index import MessageIndex
from gantrymq.system.clock import monotonic

#: A search under way. Each `next` does some milliseconds of it; at the end StopIteration has the physical offsets.
Search = Generator[None, None, list[int]]

#: One step of a search, s.
_STEP_S = 0.005
#: A search first brings in the newest messages, in so many steps at most, and waits so long for a file of the index, s.
_BUILD_STEPS = 10
_ROOM_S = 1.0

_size_and_place = unpacker("size", "physical_offset")


class KeyLookup:
    """The keys of a store's messages. Nothing is indexed nor found without `message_index_enable`."""

    def __init__(self, config: StoreConfig, log: CommitLog, index: MessageIndex) -> None:
        self._config = config
        self._log = log
        self._index = index

    def build_index(self, budget_s: float) -> bool:
        """Goes on to build the index, for about so long; whether all messages are in now.

        To be called often, by the thread that calls everything else: `append` leaves this work undone. Whatever it
        raises, StoreError or another, the next call goes on where this one ended.
        """
        return not self._config.message_index_enable or self._index.build(budget_s)

    @property
    def index_behind_bytes(self) -> int:
        """So much of the log isn't in the index yet."""
        return self._index.behind_bytes if self._config.message_index_enable else 0

    @property
    def index_last_update(self) -> tuple[int, int]:
        """(store timestamp, physical offset) of the newest message in the index; zeros when it is empty."""
        return self._index.last_update

    def find_by_key(self, topic: str, key: str, begin_ms: int, end_ms: int, max_num: int) -> Search:
        """Physical offsets of the topic's messages with this unique key or among whose KEYS it is, the oldest first.

        Of those stored between the times, both included, the newest `max_num`, at most `max_msgs_num_batch`; the
        messages of a topic deleted since are among them. The newest messages are missing while the index is far
        behind. None are found without `message_index_enable`.

        A search may look at 200,000 entries, half a second's work: the caller takes each step by `next`, in the thread
        that calls everything else, and may do anything between two. A step raises StoreError when it can't read.
        """
        return self._find(topic, key.encode(errors="replace"), begin_ms, end_ms, max_num, lambda keys, key: key in keys)

    def find_by_tags(self, topic: str, tags: str, begin_ms: int, end_ms: int, max_num: int) -> Search:
        """As `find_by_key`, of messages with these tags."""
        key = TAGS_PREFIX + tags.encode(errors="replace")
        return self._find(topic, key, begin_ms, end_ms, max_num, lambda keys, key: keys[-1:] == [key])

    def find_by_unique_key(self, topic: str, unique_key: str) -> Search:
        """As `find_by_key`, of messages that the client gave this id (UNIQ_KEY), whenever they were stored."""
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
        steps, room_by = 0, monotonic() + _ROOM_S
        while not self._index.build(_STEP_S) and steps < _BUILD_STEPS:
            if not self._index.waits_for_room or monotonic() >= room_by:
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
        """Topic and properties of the record there, nothing where none is; its body may be large, and isn't read."""
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
