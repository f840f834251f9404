"""Statistics of deliveries since the start, updated once per response (`ConsumerOffsetManager.commitPullOffset`)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from gantrymq.protocol.multi_dispatch import is_light_queue
from gantrymq.protocol.topic_name import LIGHT_QUEUE_PREFIX
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.get_result import GetResult


@dataclass(slots=True)
class Delivery:
    """The deliveries of a topic to a group."""

    messages: int = 0
    #: Size of the messages, in bytes.
    size: int = 0
    #: Queue id -> next offset to read.
    read_to: dict[int, int] = field(default_factory=dict)


class Deliveries:
    """Counts deliveries by topic and group. The counts of deleted topics stay, so that no counter decreases.

    All light queues are counted together, as one topic without read positions and lags, because there can be millions.
    The same holds for light groups that read them.

    Attributes:
        table: (topic, group) -> deliveries.
        lags: (topic, group, queue id) -> lag after the last read, in bytes. Empty unless lags are recorded.
    """

    def __init__(self) -> None:
        self.table: dict[tuple[str, str], Delivery] = {}
        self.lags: dict[tuple[str, str, int], int] = {}
        self._lag_of: Callable[[ConsumeQueue, int], int] | None = None

    def record_lags(self, lag_of: Callable[[ConsumeQueue, int], int] | None) -> None:
        """Starts to record the lag at each read. `lag_of` returns it for a queue and the next offset to read.

        None stops the recording and removes the recorded lags.
        """
        self._lag_of = lag_of
        if lag_of is None:
            self.lags.clear()

    def add(self, queue: ConsumeQueue, group: str, result: GetResult) -> None:
        """Counts the messages of a queue that `group` gets or skips, and records the next offset that it reads."""
        key = (queue.topic, group)
        delivery = self.table.get(key)
        if delivery is None:
            if queue.is_light:
                self._add_light(group, result)
                return
            delivery = self.table[key] = Delivery()
        delivery.messages += result.message_count
        delivery.size += result.size
        delivery.read_to[queue.queue_id] = result.next_begin_offset
        if self._lag_of is not None:
            self.lags[queue.topic, group, queue.queue_id] = self._lag_of(queue, result.next_begin_offset)

    def _add_light(self, group: str, result: GetResult) -> None:
        key = (LIGHT_QUEUE_PREFIX, LIGHT_QUEUE_PREFIX if is_light_queue(group) else group)
        delivery = self.table.setdefault(key, Delivery())
        delivery.messages += result.message_count
        delivery.size += result.size

    def forget_positions(self, topic: str, group: str, queue_ids: Collection[int]) -> None:
        """Removes the read positions and lags of a group in these queues, because the group was reset."""
        for queue_id in queue_ids:
            self.lags.pop((topic, group, queue_id), None)
        delivery = self.table.get((topic, group))
        if delivery is not None:
            for queue_id in queue_ids:
                delivery.read_to.pop(queue_id, None)

    def topics_deleted(self, topics: Collection[str]) -> None:
        """Removes the read positions and lags of all groups in deleted topics."""
        for key in [key for key in self.lags if key[0] in topics]:
            del self.lags[key]
        for (topic, _), delivery in self.table.items():
            if topic in topics:
                delivery.read_to.clear()

    def read_to(self, queue: ConsumeQueue, group: str) -> int | None:
        """Returns the next offset that a group reads; None if it has not read since the start."""
        delivery = self.table.get((queue.topic, group))
        return None if delivery is None else delivery.read_to.get(queue.queue_id)
