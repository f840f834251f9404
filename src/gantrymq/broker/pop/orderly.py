"""Pops in order: each queue has one batch in flight (`ConsumerOrderInfoManager`, consumerOrderInfo.json).

A queue is blocked for a group while a message of the last batch is neither acknowledged nor visible again. The group's
offset moves to the first unacknowledged message, where the next pop begins.

The caller passes the current time, in ms.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from enum import Enum
from pathlib import Path

import msgspec

from gantrymq.broker.tables import TablePersistence, in_pieces
from gantrymq.protocol.java import Int64
from gantrymq.protocol.multi_dispatch import topic_and_group
from gantrymq.system import clock

#: Time after which an unused entry is removed, in ms.
_FORGET_MS = 24 * 3600 * 1000
#: Number of topics and groups that one step of a removal looks at.
_AT_ONCE = 500


class OrderInfo(msgspec.Struct):
    """The last batch of a queue, as stored in the file. Times are in ms.

    - `offsets`: the queue offset of the first message, then the distances of the others from it.
    - `acked`: a bit for each message.
    - `visible_at`: queue offset -> time, for messages whose time differs from the batch's.
    - `consumed_counts`: queue offset -> number of earlier deliveries.
    - `log_end`: the end of the commit log at the pop, -1 if unknown. Java's brokers ignore it.
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
        """Returns the queue offsets of all messages of the batch."""
        return [offset if place == 0 else self.offsets[0] + offset for place, offset in enumerate(self.offsets)]

    def unacked(self) -> list[int]:
        """Returns the queue offsets of the unacknowledged messages."""
        return [offset for place, offset in enumerate(self.queue_offsets()) if not self.acked >> place & 1]

    def blocked_until(self, invisible_time: int) -> int:
        """Returns the time at which all unacknowledged messages are visible again, in ms; 0 if all are acknowledged.

        `invisible_time` applies to entries of old brokers, which contain no invisible time.
        """
        visible = self.pop_time + (self.invisible_time or invisible_time)
        return max((self.visible_at.get(offset, visible) for offset in self.unacked()), default=0)


class _OrderFile(msgspec.Struct):
    #: "topic@group" -> queue id -> the last batch.
    table: dict[str, dict[int, OrderInfo]] = {}


class Outcome(Enum):
    """The reason why an acknowledgement in order does not move the group's offset."""

    ILLEGAL = "the message isn't one of the last batch"
    TOO_LATE = "it is of an earlier pop"


class OrderlyPops:
    """Stores the last batch of each group and queue."""

    def __init__(
        self, path: Path | None, exists: Callable[[str, str, int], bool], *, persistence: TablePersistence
    ) -> None:
        """Creates the table. Without `path`, it is only in memory.

        Entries for which `exists(topic, group, queue id)` is False are removed when the file is written, and by
        `remove_unused`.
        """
        self._file = None if path is None else persistence.file(path, self._encode, follows_log=True)
        self._exists = exists
        self._table: dict[str, dict[int, OrderInfo]] = {}
        #: Topic -> the groups with batches in it. A search in `_table` takes 80 ms if 100,000 lite topics have batches.
        self._groups: dict[str, set[str]] = {}
        #: The group's offset after the last pop or acknowledgement.
        self._left_at: dict[tuple[str, str, int], int] = {}

    def load(self) -> None:
        """Loads the file. Without the file, a batch that is in flight can be popped a second time."""
        if self._file is not None:
            self._table = (self._file.load(_OrderFile, can_be_rebuilt=True) or _OrderFile()).table
            for key in self._table:
                topic, group = topic_and_group(key)
                self._groups.setdefault(topic, set()).add(group)

    def __len__(self) -> int:
        """The number of batches."""
        return sum(map(len, self._table.values()))

    def _encode(self) -> Iterator[bytes]:
        self.remove_unused()
        return in_pieces(_OrderFile(self._table))

    def remove_unused(self) -> None:
        """Removes all entries that `removal` removes."""
        for _ in self.removal():
            pass

    def removal(self) -> Iterator[None]:
        """Removes entries that were not used for a day, and those whose queue or group does not exist.

        Each step takes about 2 ms. Other work can change the table between two steps.
        """
        now_ms = clock.now_ms()
        for number, key in enumerate(list(self._table), 1):
            queues = self._table.get(key, {})
            topic, group = topic_and_group(key)
            for queue_id, info in list(queues.items()):
                if now_ms - info.last_consume_timestamp > _FORGET_MS or not self._exists(topic, group, queue_id):
                    del queues[queue_id]
                    self._left_at.pop((topic, group, queue_id), None)
            if not queues:
                self._remove(key)
            if not number % _AT_ONCE:
                yield

    def _remove(self, key: str) -> None:
        topic, group = topic_and_group(key)
        for queue_id in self._table.pop(key, ()):
            self._left_at.pop((topic, group, queue_id), None)
        groups = self._groups.get(topic)
        if groups is not None:
            groups.discard(group)
            if not groups:
                del self._groups[topic]

    def _changed(self) -> None:
        if self._file is not None:
            self._file.changed()

    def find(self, topic: str, group: str, queue_id: int) -> OrderInfo | None:
        """Returns the last batch of a queue, or None."""
        return self._table.get(f"{topic}@{group}", {}).get(queue_id)

    def is_blocked(
        self, topic: str, group: str, queue_id: int, attempt_id: str | None, invisible_time: int, now_ms: int
    ) -> bool:
        """Returns True if the queue is blocked for a pop. A pop that repeats an attempt id is not blocked."""
        info = self.find(topic, group, queue_id)
        if info is None or (attempt_id is not None and attempt_id == info.attempt_id):
            return False
        return now_ms < info.blocked_until(invisible_time)

    def free_at(self, topic: str, group: str, queue_ids: Iterable[int], now_ms: int) -> int | None:
        """Returns the time at which the first blocked queue is unblocked, in ms; None if no queue is blocked."""
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
        """Records a popped batch and returns its entry. `start` becomes the group's offset."""
        key = f"{topic}@{group}"
        queues = self._table.get(key)
        if queues is None:
            queues = self._table[key] = {}
            self._groups.setdefault(topic, set()).add(group)
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
        self._changed()
        return info

    def ack(self, topic: str, group: str, queue_id: int, offset: int, pop_time: int) -> int | Outcome:
        """Acknowledges a message. Returns the group's new offset, or the reason why it does not move."""
        info = self.find(topic, group, queue_id)
        if info is None:
            return offset + 1
        if pop_time != info.pop_time:
            return Outcome.TOO_LATE
        offsets = info.queue_offsets()
        if offset not in offsets:
            return Outcome.ILLEGAL
        info.acked |= 1 << offsets.index(offset)
        self._changed()
        unacked = info.unacked()
        next_offset = unacked[0] if unacked else offsets[-1] + 1
        self._left_at[topic, group, queue_id] = next_offset
        return next_offset

    def change_visible_at(
        self, topic: str, group: str, queue_id: int, offset: int, pop_time: int, visible_at: int
    ) -> None:
        """Sets the time at which a message of the last batch is visible again. Ignores any other message."""
        info = self.find(topic, group, queue_id)
        if info is not None and info.pop_time == pop_time and offset in info.queue_offsets():
            info.visible_at = {**info.visible_at, offset: visible_at}
            self._changed()

    def suspend(self, topic: str, group: str, queue_id: int, pop_time: int, visible_at: int) -> None:
        """Sets the time at which the last batch is visible again. This delivery of its messages does not count.

        Ignores another batch. Source: `MemoryConsumerOrderInfoManager.suspendQueue`.
        """
        info = self.find(topic, group, queue_id)
        if info is not None and info.pop_time == pop_time:
            info.consumed_counts = {offset: count - 1 for offset, count in info.consumed_counts.items()}
            info.visible_at = {}
            info.invisible_time = visible_at - pop_time
            self._changed()

    def forget(self, topic: str, group: str, queue_id: int) -> None:
        """Removes the last batch of a queue, whose messages are all acknowledged."""
        key = f"{topic}@{group}"
        queues = self._table.get(key)
        if queues is not None and queues.pop(queue_id, None) is not None and not queues:
            self._remove(key)
        self._left_at.pop((topic, group, queue_id), None)
        self._changed()

    def was_moved(self, topic: str, group: str, queue_id: int, offset: int) -> bool:
        """Whether another request, such as a reset, has set the group's offset. Always False after a restart."""
        return self._left_at.get((topic, group, queue_id), offset) != offset

    def discard(self, topic: str, group: str, queue_ids: Iterable[int]) -> None:
        """Discards in-flight batches. They no longer block the queues, and acknowledging them moves no offset."""
        # All these queues share one empty batch. Its pop time matches no acknowledgement.
        nothing = OrderInfo(pop_time=0, last_consume_timestamp=clock.now_ms())
        queues = self._table.get(f"{topic}@{group}", {})
        for queue_id in queue_ids:
            self._left_at.pop((topic, group, queue_id), None)
            if queue_id in queues:
                queues[queue_id] = nothing
                self._changed()

    def clear(self) -> None:
        """Removes all batches."""
        self._table.clear()
        self._groups.clear()
        self._left_at.clear()
        self._changed()

    def discard_topics(self, topics: Collection[str]) -> None:
        """Removes all batches of deleted topics."""
        for topic in topics:
            for group in list(self._groups.get(topic, ())):
                self._remove(f"{topic}@{group}")
                self._changed()
