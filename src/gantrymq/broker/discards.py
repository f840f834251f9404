"""Which records in the commit log are discarded, because their topic was deleted or their group was reset.

A record's topic is only a name: after a topic is deleted and created again, delayed messages and checkpoints of pops
that belong to the old topic are still in the log. The end of the log at the deletion separates them from those of the
new topic. This needs no clock, and is the same on all replicas, whose logs are identical. In the same way the end of
the log at an offset reset separates old pops from new ones. Java has neither.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

#: Deletions that are kept; they take 30 MB of memory at most. The oldest make room, and what was delayed for their
#: topics can come back if these are created again.
MAX_DELETED_TOPICS = 100_000


class Discards(msgspec.Struct, omit_defaults=True, rename="camel"):
    """Log ends at deletions and at resets; a part of consumerOffset.json that Java's brokers ignore."""

    #: Topic -> end of the log when it was deleted last.
    deleted_topics: dict[str, int] = {}
    #: "topic@group" -> queue id -> end of the log when the group's offset was reset last.
    resets: dict[str, dict[int, int]] = {}

    def delete(self, topics: Iterable[str], log_begin: int, log_end: int) -> None:
        """Topics are deleted; the log is from `log_begin` to `log_end`."""
        deleted = self.deleted_topics
        for topic in topics:
            # The last deletion is at the end, so the oldest is the first.
            deleted.pop(topic, None)
            deleted[topic] = log_end
        while deleted and (deleted[first := next(iter(deleted))] <= log_begin or len(deleted) > MAX_DELETED_TOPICS):
            del deleted[first]

    def is_of_deleted(self, topic: str, log_offset: int) -> bool:
        """Whether a record at this physical offset is of a topic that was deleted since."""
        return log_offset < self.deleted_topics.get(topic, 0)

    def is_old_pop(self, key: str, topic: str, queue_id: int, log_offset: int) -> bool:
        """Whether a pop was made before its topic was deleted or its group was reset; `key` is "topic@group".

        `log_offset` is the end of the log at the pop, or -1 if that is unknown.
        """
        if log_offset < 0:
            return False
        return log_offset < self.resets.get(key, {}).get(queue_id, 0) or self.is_of_deleted(topic, log_offset)

    def log_is_from(self, begin: int, end: int) -> bool:
        """Adapts to the log that there is; whether that changed anything.

        Deletions before its begin concern no record. A log that has lost its end can get new records there.
        """
        deleted = {topic: min(at, end) for topic, at in self.deleted_topics.items() if at > begin}
        resets = {
            key: {queue_id: min(at, end) for queue_id, at in queues.items()} for key, queues in self.resets.items()
        }
        is_changed = (deleted, resets) != (self.deleted_topics, self.resets)
        self.deleted_topics, self.resets = deleted, resets
        return is_changed
