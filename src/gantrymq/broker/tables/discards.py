"""Discarded records in the commit log: their topic was deleted or their group was reset later.

A record contains only the name of its topic. After a topic is deleted and created again, the log still contains delayed
messages and pop checkpoints of the old topic. The end of the log at the deletion separates these records from the
records of the new topic. This rule needs no clock. It gives the same result on all replicas, because their logs are
identical.

In the same way, the end of the log at an offset reset separates old pops from new ones. Java has no such records.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice, takewhile

import msgspec

#: Maximum number of recorded deletions, which use 30 MB of memory. A further deletion replaces the oldest. If the topic
#: of a replaced deletion is created again, its old delayed messages can be delivered.
MAX_DELETED_TOPICS = 100_000


class Discards(msgspec.Struct, omit_defaults=True, rename="camel"):
    """The ends of the log at deletions and at resets. A part of consumerOffset.json that Java's brokers ignore."""

    #: Topic -> end of the log at its last deletion.
    deleted_topics: dict[str, int] = {}
    #: "topic@group" -> queue id -> end of the log at the last reset of the group's offset.
    resets: dict[str, dict[int, int]] = {}

    def delete(self, topics: Iterable[str], log_begin: int, log_end: int) -> None:
        """Records the deletion of topics. The log reaches from `log_begin` to `log_end`."""
        deleted = self.deleted_topics
        for topic in topics:
            # The last deletion is at the end, so the oldest is the first.
            deleted.pop(topic, None)
            deleted[topic] = log_end
        before_log = sum(1 for _ in takewhile(lambda end: end <= log_begin, deleted.values()))
        for topic in list(islice(deleted, max(before_log, len(deleted) - MAX_DELETED_TOPICS))):
            del deleted[topic]

    def is_of_deleted(self, topic: str, log_offset: int) -> bool:
        """Returns True if the topic of a record was deleted later. `log_offset` is the record's physical offset."""
        return log_offset < self.deleted_topics.get(topic, 0)

    def is_old_pop(self, key: str, topic: str, queue_id: int, log_offset: int) -> bool:
        """Returns True if a pop's topic was deleted or its group was reset after the pop.

        `key` is "topic@group". `log_offset` is the end of the log at the pop, or -1 if that is unknown.
        """
        if log_offset < 0:
            return False
        return log_offset < self.resets.get(key, {}).get(queue_id, 0) or self.is_of_deleted(topic, log_offset)

    def log_is_from(self, begin: int, end: int) -> bool:
        """Adapts the deletions and resets to the log, from `begin` to `end`. Returns True if any changed.

        Drops deletions before the start of the log, because they affect no record. If the log has lost its end, moves
        deletions and resets that were after the new end to this end, because all records after it will be new.
        """
        deleted = {topic: min(at, end) for topic, at in self.deleted_topics.items() if at > begin}
        resets = {
            key: {queue_id: min(at, end) for queue_id, at in queues.items()} for key, queues in self.resets.items()
        }
        is_changed = (deleted, resets) != (self.deleted_topics, self.resets)
        self.deleted_topics, self.resets = deleted, resets
        return is_changed
