"""The table of idempotent writers: the last row of each writer in each queue."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import msgspec


class Written(NamedTuple):
    """The last row that a writer stored in a queue.

    Attributes:
        batch: The writer's batch.
        row: Number of the row.
        chain: Checksum of the batch up to the row.
        queue_offset: Queue offset of the row.
        at_ms: Store time of the row, in ms.
        queues: Target queues of the batch (`row_ids.QUEUES_FIELD`), "" if unknown.
    """

    batch: int
    row: int
    chain: int
    queue_offset: int
    at_ms: int
    queues: str = ""


class WriteIds(msgspec.Struct):
    """The content of the file: the table for the log up to the physical offset `position`.

    A key is `topic@queue@writer`. The entries are in the order of the writes, the newest at the end.
    """

    position: int = 0
    ranges: dict[str, Written] = {}

    def __post_init__(self) -> None:
        # A full table drops its first entry with each new one. A dict would search for it among removed entries.
        self.ranges = OrderedDict(self.ranges)

    def read_to(self, position: int) -> None:
        """Sets the physical offset up to which the log has been read."""
        self.position = position

    def put(self, key: str, written: Written, most: int) -> Written | None:
        """Adds or replaces an entry. Removes the oldest entries above `most`, and returns the last removed one."""
        self.ranges.pop(key, None)
        self.ranges[key] = written
        dropped = None
        while len(self.ranges) > most:
            dropped = self.ranges.pop(next(iter(self.ranges)))
        return dropped

    def forget(self, before_ms: int) -> int:
        """Removes the entries that were written before `before_ms`. Returns their number."""
        old = []
        for key, written in self.ranges.items():
            if written.at_ms >= before_ms:
                break
            old.append(key)
        for key in old:
            del self.ranges[key]
        return len(old)


def key_of(topic: str, queue_id: int, writer: str) -> str:
    return f"{topic}@{queue_id}@{writer}"
