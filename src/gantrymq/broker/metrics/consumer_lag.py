"""The lag of each online consumer group: number of messages and store time of the oldest (`ConsumerLagCalculator`).

All messages count. Java estimates how many messages match the group's filter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gantrymq.broker.context import BrokerContext
from gantrymq.broker.pop import PopQueues
from gantrymq.protocol.bodies.heartbeat import CONSUME_POP
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX
from gantrymq.store.consume_queue import ConsumeQueue


@dataclass(slots=True)
class Backlog:
    """The lag of a group in a topic, or in its pop retry topics if `is_retry`.

    `inflight` is the number of messages that are delivered but not acknowledged. `ready` is the number of messages that
    are not delivered yet. `oldest_ms` is the store time of the oldest message of both kinds, `oldest_ready_ms` the
    store time of the oldest ready message. Both are None without such a message. For a message in the tier, they are
    the time at which its segment began.
    """

    group: str
    topic: str
    is_retry: bool
    inflight: int = 0
    ready: int = 0
    oldest_ms: int | None = None
    oldest_ready_ms: int | None = None

    @property
    def messages(self) -> int:
        """The number of all messages that are not acknowledged."""
        return self.inflight + self.ready


class ConsumerLag:
    """Calculates the lag from the queues of one broker, on request."""

    def __init__(self, context: BrokerContext, *, pop_queues: PopQueues) -> None:
        self._store = context.store
        self._tier = context.tier
        self._min_offset = context.min_offset
        self._topics = context.topics
        self._members = context.members
        self._offsets = context.offsets
        self._deliveries = context.deliveries
        self._pop_queues = pop_queues

    def backlogs(self) -> Iterator[Backlog]:
        """Yields the lag of each subscription of each online group, without retry topics of groups that pull."""
        for group in list(self._members.consumers.values()):
            is_pop = group.consume_type == CONSUME_POP
            for topic in list(group.subscriptions):
                if topic.startswith(RETRY_TOPIC_PREFIX) or self._topics.get(topic) is None:
                    continue
                yield self._backlog(Backlog(group.name, topic, False), [topic], is_pop)
                if is_pop:
                    retry_topics = self._pop_queues.retry_topics(topic, group.name)
                    yield self._backlog(Backlog(group.name, topic, True), retry_topics, is_pop)

    def _backlog(self, backlog: Backlog, topics: list[str], is_pop: bool) -> Backlog:
        for name in topics:
            topic = self._topics.get(name)
            for queue_id in range(0 if topic is None else topic.read_queue_nums):
                queue = self._store.find_queue(name, queue_id)
                if queue is not None:
                    self._add(backlog, queue, is_pop)
        return backlog

    def _add(self, backlog: Backlog, queue: ConsumeQueue, is_pop: bool) -> None:
        end = self._store.confirmed_end(queue)
        consumed = self._offsets.query(backlog.group, queue.topic, queue.queue_id)
        # Messages before the minimum offset were deleted or have expired.
        # Pops do not read the tier.
        first = queue.min_offset if is_pop else self._min_offset(queue)
        consumed = end if consumed is None else max(consumed, first)
        if is_pop:
            read = self._pop_queues.position(queue, backlog.group)
        else:
            read = self._deliveries.read_to(queue, backlog.group)
        read = consumed if read is None else max(min(read, end), consumed)
        backlog.inflight += read - consumed
        backlog.ready += max(end - read, 0)
        if consumed < end:
            backlog.oldest_ms = self._older(backlog.oldest_ms, queue, consumed)
        if read < end:
            backlog.oldest_ready_ms = self._older(backlog.oldest_ready_ms, queue, read)

    def _older(self, known_ms: int | None, queue: ConsumeQueue, offset: int) -> int | None:
        store_ms = self._store.store_time(queue, offset)
        if self._tier is not None and offset < queue.min_offset:
            store_ms = self._tier.segment_time(queue, offset) or 0
        if store_ms <= 0:
            return known_ms
        return store_ms if known_ms is None else min(known_ms, store_ms)
