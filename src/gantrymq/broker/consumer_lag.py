"""How many messages wait for each group that is online, and for how long (`ConsumerLagCalculator`).

Unlike Java, which estimates how many of them a group's filter lets through, this counts them all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gantrymq.broker.consumer_groups import GroupMembers
from gantrymq.broker.consumer_offsets import ConsumerOffsets
from gantrymq.broker.deliveries import Deliveries
from gantrymq.broker.pop.queues import PopQueues
from gantrymq.broker.topics import BrokerTopics
from gantrymq.protocol.bodies.heartbeat import CONSUME_POP
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX
from gantrymq.remoting.connection import Connection
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.message_store import MessageStore


@dataclass(slots=True)
class Backlog:
    """What a group has before it in a topic, or `is_retry` in the topic's pop retry topics.

    `inflight` messages are handed out and not acknowledged, `ready` ones not handed out. The store times (ms) are of
    the oldest of all and of the oldest that is ready; None where there is none.
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
        return self.inflight + self.ready


class ConsumerLag:
    """Looks at the queues of one broker when asked."""

    def __init__(
        self,
        store: MessageStore,
        topics: BrokerTopics,
        members: GroupMembers[Connection],
        offsets: ConsumerOffsets,
        deliveries: Deliveries,
        pop_queues: PopQueues,
    ) -> None:
        self._store = store
        self._topics = topics
        self._members = members
        self._offsets = offsets
        self._deliveries = deliveries
        self._pop_queues = pop_queues

    def backlogs(self) -> Iterator[Backlog]:
        """One for each subscription of a group that is online; retry topics of groups that pull are left out."""
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
        end = self._store.shown_end(queue)
        consumed = self._offsets.query(backlog.group, queue.topic, queue.queue_id)
        if consumed is None:
            consumed = end
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
        store_ms = self._store.store_time(queue, max(offset, queue.min_offset))
        if store_ms <= 0:
            return known_ms
        return store_ms if known_ms is None else min(known_ms, store_ms)
