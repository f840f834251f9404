"""ReviveCounts: how many records are written to the revive log, read from it, and redelivered (`PopMetricsManager`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from gantrymq.metrics import count_within
from gantrymq.protocol.bodies.pop import Ack, Checkpoint

#: Java's names of the kinds of records (`PopReviveMessageType`).
_CHECKPOINT, _ACK = "CK", "ACK"
#: Maximum number of keys of a counter. Nothing else limits them: a client can acknowledge for any group name.
MAX_KEYS = 10_000


class ReviveCounts:
    """Counters since the start of the broker, without deleted topics. Each counter has at most MAX_KEYS keys.

    Attributes:
        written: Records written to the revive log, by (group, topic, kind).
        read: Records read from the revive log, by (group, topic, kind, queue id).
        redelivered: Messages stored in a retry topic or dead-letter topic, by (group, topic).
    """

    def __init__(self) -> None:
        self.written: Counter[tuple[str, str, str]] = Counter()
        self.read: Counter[tuple[str, str, str, int]] = Counter()
        self.redelivered: Counter[tuple[str, str]] = Counter()

    def add_written(self, record: Checkpoint | Ack) -> None:
        """Counts a record that was written to the revive log."""
        count_within(MAX_KEYS, self.written, (record.group, record.topic, _kind(record)))

    def add_read(self, record: Checkpoint | Ack, queue_id: int) -> None:
        """Counts a record that was read from a queue of the revive log."""
        count_within(MAX_KEYS, self.read, (record.group, record.topic, _kind(record), queue_id))

    def add_redelivered(self, checkpoint: Checkpoint) -> None:
        """Counts a message of a checkpoint that was stored again."""
        count_within(MAX_KEYS, self.redelivered, (checkpoint.group, checkpoint.topic))

    def topics_deleted(self, topics: Collection[str]) -> None:
        """Removes the counters of deleted topics."""
        self.written = Counter({key: count for key, count in self.written.items() if key[1] not in topics})
        self.read = Counter({key: count for key, count in self.read.items() if key[1] not in topics})
        self.redelivered = Counter({key: count for key, count in self.redelivered.items() if key[1] not in topics})


def _kind(record: Checkpoint | Ack) -> str:
    return _CHECKPOINT if isinstance(record, Checkpoint) else _ACK
