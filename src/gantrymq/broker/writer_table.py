"""The table of idempotent writers: what each of them wrote last into each queue."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Written(NamedTuple):
    """What a writer wrote last into a queue: `queue_offset` is its last row's, `at_ms` when it was stored.

    `queues` are the target queues of the batch (`row_ids.QUEUES_FIELD`), "" if unknown.
    """

    batch: int
    row: int
    chain: int
    queue_offset: int
    at_ms: int
    queues: str = ""


class WriterTable(msgspec.Struct):
    """The file's content: all up to the physical offset `position`. What was written last is at the end.

    A key is `topic@queue@writer`.
    """

    position: int = 0
    ranges: dict[str, Written] = {}

    def put(self, key: str, written: Written, most: int) -> Written | None:
        """Remembers it, in place of the oldest ones if there would be more than `most`; returns the last of these."""
        self.ranges.pop(key, None)
        self.ranges[key] = written
        dropped = None
        while len(self.ranges) > most:
            dropped = self.ranges.pop(next(iter(self.ranges)))
        return dropped

    def forget(self, before_ms: int) -> int:
        """Forgets what was written before; how many that were."""
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
