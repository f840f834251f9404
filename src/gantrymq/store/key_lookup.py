"""Finding messages by key, tags or unique key, through the index (`IndexService.queryOffset`)."""

from __future__ import annotations

from collections.abc import Callable

from gantrymq.errors import RecordError, StoreError
from gantrymq.store.commit_log import CommitLog
from gantrymq.store.config import StoreConfig
from gantrymq.store.message_index import TAGS_PREFIX, MessageIndex, keys_of

#: A query first brings in the newest messages, for so long at most.
_QUERY_BUILD_S = 0.05


class KeyLookup:
    """The keys of a store's messages. Nothing is indexed nor found without `message_index_enable`."""

    def __init__(self, config: StoreConfig, log: CommitLog, index: MessageIndex) -> None:
        self._config = config
        self._log = log
        self._index = index

    def build_index(self, budget_s: float) -> bool:
        """Goes on to build the index, for about so long; whether all messages are in now.

        To be called often, by the thread that calls everything else: `append` leaves this work undone. Raises
        StoreError.
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

    def find_by_key(self, topic: str, key: str, begin_ms: int, end_ms: int, max_num: int) -> list[int]:
        """Physical offsets of the topic's messages with this unique key or among whose KEYS it is, the oldest first.

        Of those stored between the times, both included, the newest `max_num`, at most `max_msgs_num_batch`; the
        messages of a topic deleted since are among them. The newest messages are missing while the index is far
        behind. None are found without `message_index_enable`.
        """
        return self._find(topic, key.encode(errors="replace"), begin_ms, end_ms, max_num, lambda keys, key: key in keys)

    def find_by_tags(self, topic: str, tags: str, begin_ms: int, end_ms: int, max_num: int) -> list[int]:
        """As `find_by_key`, of messages with these tags."""
        key = TAGS_PREFIX + tags.encode(errors="replace")
        return self._find(topic, key, begin_ms, end_ms, max_num, lambda keys, key: keys[-1:] == [key])

    def find_by_unique_key(self, topic: str, unique_key: str) -> list[int]:
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
    ) -> list[int]:
        limit = min(max_num, self._config.max_msgs_num_batch)
        if limit < 1 or not self._config.message_index_enable:
            return []
        self._index.build(_QUERY_BUILD_S)
        topic_bytes = topic.encode(errors="replace")
        found: list[int] = []

        def accepts(physical_offset: int) -> bool:
            try:
                record = self._log.read(physical_offset, check_crc=False)
            except (RecordError, StoreError):
                return True
            if record.topic == topic_bytes and matches(keys_of(record.properties), key):
                found.append(physical_offset)
            return len(found) < limit

        self._index.find(topic_bytes, key, begin_ms, end_ms, accepts)
        return found[::-1]
