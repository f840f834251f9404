"""Pops in order: of each queue one batch at a time is out (`ConsumerOrderInfoManager`, consumerOrderInfo.json).

A group's queue is blocked while a message of its last batch is neither acknowledged nor visible again. The group's
offset moves to the first message that isn't acknowledged, and the next pop begins there. Plain tables, told the time in
ms.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from enum import Enum
from pathlib import Path

import msgspec

from gantrymq.broker.saving import Saving, in_pieces
from gantrymq.protocol.java import Int64
from gantrymq.system import clock

#: What was popped last so long ago is forgotten, ms.
_FORGET_MS = 24 * 3600 * 1000


class OrderInfo(msgspec.Struct):
    """The last batch of a queue, with the names of the file; times in ms.

    `offsets` are the first queue offset and the others' distances from it, `acked` has a bit for each of them;
    `visible_at` are times other than the batch's own, `consumed_counts` how often a message was handed out before.
    `log_end` is the end of the commit log at the pop, -1 if unknown; Java's brokers ignore it.
    """

    pop_time: Int64 = msgspec.field(name="popTime")
    invisible_time: Int64 | None = msgspec.field(name="i", default=None)
    offsets: list[Int64] = msgspec.field(name="o", default=[])
    visible_at: dict[int, int] = msgspec.field(name="ot", default={})
    consumed_counts: dict[int, int] = msgspec.field(name="oc", default={})
    last_consume_timestamp: Int64 = msgspec.field(name="l", default=0)
    acked: Int64 = msgspec.field(name="cm", default=0)
    attempt_id: str | None = msgspec.field(name="a", default=None)
    log_end: Int64 = msgspec.field(name="gantryLogEnd", default=-1)

    def queue_offsets(self) -> list[int]:
        return [offset if place == 0 else self.offsets[0] + offset for place, offset in enumerate(self.offsets)]

    def unacked(self) -> list[int]:
        """The queue offsets that aren't acknowledged."""
        return [offset for place, offset in enumerate(self.queue_offsets()) if not self.acked >> place & 1]

    def blocked_until(self, invisible_time: int) -> int:
        """When all that isn't acknowledged is visible again; 0 when all is acknowledged.

        `invisible_time` is for entries of old brokers, which have none.
        """
        visible = self.pop_time + (self.invisible_time or invisible_time)
        return max((self.visible_at.get(offset, visible) for offset in self.unacked()), default=0)


class _OrderFile(msgspec.Struct):
    #: "topic@group" -> queue id -> the last batch.
    table: dict[str, dict[int, OrderInfo]] = {}


class Outcome(Enum):
    """What an acknowledgement in order came to, where it moves no offset."""

    ILLEGAL = "the message isn't one of the last batch"
    TOO_LATE = "it is of an earlier pop"


class OrderlyPops:
    """The last batches of all groups and queues."""

    def __init__(self, path: Path, exists: Callable[[str, str, int], bool], *, saving: Saving) -> None:
        """Of queues that no longer `exists(topic, group, queue id)` nothing is kept."""
        self._file = saving.file(path, self._encode, follows_log=True)
        self._exists = exists
        self._table: dict[str, dict[int, OrderInfo]] = {}
        #: The group's offsets as pops and acknowledgements have left them.
        self._left_at: dict[tuple[str, str, int], int] = {}

    def load(self) -> None:
        """Without the file a batch may be handed out while another consumer has it, as after its invisible time."""
        self._table = (self._file.load(_OrderFile, can_be_rebuilt=True) or _OrderFile()).table

    def _encode(self) -> Iterator[bytes]:
        now_ms = clock.now_ms()
        for key, queues in list(self._table.items()):
            topic, _, group = key.partition("@")
            for queue_id, info in list(queues.items()):
                if now_ms - info.last_consume_timestamp > _FORGET_MS or not self._exists(topic, group, queue_id):
                    del queues[queue_id]
                    self._left_at.pop((topic, group, queue_id), None)
            if not queues:
                del self._table[key]
        return in_pieces(_OrderFile(self._table))

    def find(self, topic: str, group: str, queue_id: int) -> OrderInfo | None:
        return self._table.get(f"{topic}@{group}", {}).get(queue_id)

    def is_blocked(
        self, topic: str, group: str, queue_id: int, attempt_id: str | None, invisible_time: int, now_ms: int
    ) -> bool:
        """Whether nothing may be popped now. A client that asks again with its attempt id isn't held up by itself."""
        info = self.find(topic, group, queue_id)
        if info is None or (attempt_id is not None and attempt_id == info.attempt_id):
            return False
        return now_ms < info.blocked_until(invisible_time)

    def free_at(self, topic: str, group: str, queue_ids: Iterable[int], now_ms: int) -> int | None:
        """When the first of those queues is free that are blocked now, ms; None when none is."""
        times = []
        for queue_id in queue_ids:
            info = self.find(topic, group, queue_id)
            if info is not None and (at_ms := info.blocked_until(0)) > now_ms:
                times.append(at_ms)
        return min(times, default=None)

    def popped(
        self,
        topic: str,
        group: str,
        queue_id: int,
        start: int,
        offsets: list[int],
        attempt_id: str | None,
        invisible_time: int,
        now_ms: int,
        log_end: int,
    ) -> OrderInfo:
        """A batch from `start` on is handed out; returns its entry."""
        queues = self._table.setdefault(f"{topic}@{group}", {})
        before = queues.get(queue_id)
        counts: dict[int, int] = {}
        if before is not None:
            if attempt_id is not None and attempt_id == before.attempt_id:
                counts = before.consumed_counts
            else:
                known = set(before.queue_offsets())
                counts = {offset: before.consumed_counts.get(offset, 0) + 1 for offset in offsets if offset in known}
        first = offsets[0]
        info = OrderInfo(
            pop_time=now_ms,
            invisible_time=invisible_time,
            offsets=[first, *(offset - first for offset in offsets[1:])],
            consumed_counts=counts,
            last_consume_timestamp=now_ms,
            attempt_id=attempt_id,
            log_end=log_end,
        )
        queues[queue_id] = info
        self._left_at[topic, group, queue_id] = start
        self._file.changed()
        return info

    def ack(self, topic: str, group: str, queue_id: int, offset: int, pop_time: int) -> int | Outcome:
        """A message is acknowledged: the group's next offset, or why it doesn't move."""
        info = self.find(topic, group, queue_id)
        if info is None:
            return offset + 1
        if pop_time != info.pop_time:
            return Outcome.TOO_LATE
        offsets = info.queue_offsets()
        if offset not in offsets:
            return Outcome.ILLEGAL
        info.acked |= 1 << offsets.index(offset)
        self._file.changed()
        unacked = info.unacked()
        next_offset = unacked[0] if unacked else offsets[-1] + 1
        self._left_at[topic, group, queue_id] = next_offset
        return next_offset

    def change_visible_at(
        self, topic: str, group: str, queue_id: int, offset: int, pop_time: int, visible_at: int
    ) -> None:
        """Another time for one message of the last batch to be visible again; for any other message nothing."""
        info = self.find(topic, group, queue_id)
        if info is not None and info.pop_time == pop_time and offset in info.queue_offsets():
            info.visible_at = {**info.visible_at, offset: visible_at}
            self._file.changed()

    def was_moved(self, topic: str, group: str, queue_id: int, offset: int) -> bool:
        """Whether somebody else has set the group's offset to this one; after a restart nobody knows."""
        return self._left_at.get((topic, group, queue_id), offset) != offset

    def discard(self, topic: str, group: str, queue_ids: Iterable[int]) -> None:
        """Discards in-flight batches: they don't block the queues, and their acknowledgements move no offset."""
        # A batch without messages, which the queues share. Its pop time matches no acknowledgement.
        nothing = OrderInfo(pop_time=0, last_consume_timestamp=clock.now_ms())
        queues = self._table.get(f"{topic}@{group}", {})
        for queue_id in queue_ids:
            self._left_at.pop((topic, group, queue_id), None)
            if queue_id in queues:
                queues[queue_id] = nothing
                self._file.changed()

    def discard_topics(self, topics: Collection[str]) -> None:
        """Removes all batches of deleted topics."""
        for key in [key for key in self._table if key.partition("@")[0] in topics]:
            del self._table[key]
            self._file.changed()
        for queue in [queue for queue in self._left_at if queue[0] in topics]:
            del self._left_at[queue]
