"""What went out to consumers since the broker started: counted once per answer, not per message.

As `BrokerStatsManager.incGroupGetNums` and `ConsumerOffsetManager.commitPullOffset`. Plain tables.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.get_result import GetResult


@dataclass(slots=True)
class Delivery:
    """A group's share of a topic: messages and their bytes; `read_to` is by queue id where it reads on."""

    messages: int = 0
    size: int = 0
    read_to: dict[int, int] = field(default_factory=dict)


class Deliveries:
    """By topic and group; those of deleted topics stay, so that no counter falls."""

    def __init__(self) -> None:
        self.table: dict[tuple[str, str], Delivery] = {}

    def add(self, queue: ConsumeQueue, group: str, result: GetResult) -> None:
        """Takes in what `group` is about to get of a queue, or has skipped."""
        key = (queue.topic, group)
        delivery = self.table.get(key)
        if delivery is None:
            delivery = self.table[key] = Delivery()
        delivery.messages += result.message_count
        delivery.size += result.size
        delivery.read_to[queue.queue_id] = result.next_begin_offset

    def forget_positions(self, topic: str, group: str, queue_ids: Iterable[int]) -> None:
        """Forgets the read positions of a group in these queues, because the group was reset."""
        delivery = self.table.get((topic, group))
        if delivery is not None:
            for queue_id in queue_ids:
                delivery.read_to.pop(queue_id, None)

    def topics_deleted(self, topics: Collection[str]) -> None:
        """Forgets the read positions of all groups in deleted topics."""
        for (topic, _), delivery in self.table.items():
            if topic in topics:
                delivery.read_to.clear()

    def totals(self) -> Iterator[tuple[str, int]]:
        """("topic@group", messages) of all."""
        for (topic, group), delivery in self.table.items():
            yield f"{topic}@{group}", delivery.messages

    def read_to(self, queue: ConsumeQueue, group: str) -> int | None:
        """Where a group reads on, None if it hasn't read since the start."""
        delivery = self.table.get((queue.topic, group))
        return None if delivery is None else delivery.read_to.get(queue.queue_id)
