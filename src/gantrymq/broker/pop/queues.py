"""Checks and lookups that all pop requests share: permissions, queues and the position of a group."""

from __future__ import annotations

from collections.abc import Iterable

from gantrymq.broker.context import BrokerContext
from gantrymq.broker.pop.buffer import PopBuffer
from gantrymq.broker.pull import check_broker, check_queue_id, existing_group, existing_topic, readable_topic
from gantrymq.broker.tables import is_by_priority, priority_factor
from gantrymq.errors import RequestRefused
from gantrymq.protocol.bodies.pop import MAX_MESSAGES
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.headers.pop import INIT_FROM_MIN
from gantrymq.protocol.receipt_handle import pop_retry_topic
from gantrymq.protocol.topic_name import MAX_RETRY_TOPIC_LENGTH, RETRY_TOPIC_PREFIX
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.system import clock

#: A pop is rejected if it arrives more than this time (in ms) after the end of its poll time.
_MAX_LATE_MS = 500
#: Longest attempt id, in characters. A Java client's id has 36 characters.
_LONGEST_ATTEMPT_ID = 255


class PopQueues:
    """Checks pop requests and finds their queues on one broker."""

    def __init__(self, context: BrokerContext, buffer: PopBuffer) -> None:
        self._config = context.config
        self._store = context.store
        self._topics = context.topics
        self._groups = context.groups
        self._offsets = context.offsets
        self._buffer = buffer

    def readable(self, topic: str, group: str, queue_id: int) -> TopicConfig:
        """Returns the topic if the group may pop from it. Raises RequestRefused in the same cases as Java."""
        check_broker(self._config, "pop")
        config = readable_topic(self._topics, topic, "peeking")
        if queue_id >= 0:
            check_queue_id(config, queue_id)
        back = max(self.retry_topics(topic, group), key=len)
        if len(back) > MAX_RETRY_TOPIC_LENGTH:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"{back}, where messages come back, is longer than {MAX_RETRY_TOPIC_LENGTH} characters",
            )
        group_config = existing_group(self._groups, group)
        if not group_config.consume_enable or not self._groups.may_read(group, topic):
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}")
        return config

    def is_current(self, topic: TopicConfig) -> bool:
        """Returns True if a topic from `readable` is unchanged: not deleted, created again or updated."""
        return self._topics.get(topic.topic_name) is topic

    def check_poll_time(self, born_time: int, poll_time: int) -> None:
        """Raises RequestRefused if a pop arrives too late. The times are in ms, `born_time` since the epoch."""
        if clock.now_ms() - born_time - poll_time > _MAX_LATE_MS:
            raise RequestRefused(
                ResponseCode.POLLING_TIMEOUT,
                f"the broker[{self._config.broker_ip1}] pop message is timeout too much",
            )

    def check_count(self, count: int, doing: str = "pop") -> None:
        """Raises RequestRefused for an invalid number of messages. `doing` is the verb of the error."""
        if not 1 <= count <= MAX_MESSAGES:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"the broker[{self._config.broker_ip1}] {doing} message's num is {count}: 1 to {MAX_MESSAGES}",
            )

    def check_invisible_time(self, invisible_time: int) -> None:
        """Raises RequestRefused if timers are off or `invisible_time` (ms) exceeds the longest delay of a timer."""
        store = self._config.store
        if not store.timer_wheel_enable:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"the broker[{self._config.broker_ip1}] pop message is forbidden because timerWheelEnable is false",
            )
        if not 0 <= invisible_time <= store.timer_max_delay_sec * 1000:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"invisibleTime[{invisible_time}] is illegal: 0 to {store.timer_max_delay_sec * 1000} ms",
            )

    def check_attempt_id(self, attempt_id: str | None) -> None:
        """Raises RequestRefused if an attempt id, which is in memory until the queue's next pop, is too long."""
        if attempt_id is not None and len(attempt_id) > _LONGEST_ATTEMPT_ID:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"attemptId of {len(attempt_id)} characters: at most {_LONGEST_ATTEMPT_ID}",
            )

    def exists(self, topic: str, group: str, queue_id: int) -> bool:
        """Returns True if the topic has the queue and the group exists."""
        config = self._topics.get(topic)
        return config is not None and queue_id < config.read_queue_nums and self._groups.find(group) is not None

    def handed_out(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Returns the queue of a popped message. Raises RequestRefused if it does not exist."""
        check_queue_id(existing_topic(self._topics, topic), queue_id, ResponseCode.MESSAGE_ILLEGAL)
        return self._store.queue(topic, queue_id)

    def of_topic(self, config: TopicConfig, queue_id: int, first: int = 0) -> list[ConsumeQueue]:
        """Returns the queue or, for -1, all queues of the topic, starting with queue `first` modulo their number."""
        if queue_id >= 0:
            return [self._store.queue(config.topic_name, queue_id)]
        count = config.read_queue_nums
        return [self._store.queue(config.topic_name, (first + i) % count) for i in range(count)]

    def ids(self, config: TopicConfig, queue_id: int) -> Iterable[int]:
        """Returns the queue id, or for -1 all queue ids of the topic."""
        return (queue_id,) if queue_id >= 0 else range(config.read_queue_nums)

    def retry_topics(self, topic: str, group: str) -> list[str]:
        """Returns the pop retry topics of a group. The first one is used for new messages."""
        first = [pop_retry_topic(topic, group, v2=True)] if self._config.enable_retry_topic_v2 else []
        if not first or self._config.retrieve_message_from_pop_retry_topic_v1:
            first.append(pop_retry_topic(topic, group))
        return first

    def of_retry_topic(self, topic: str, first: int = 0) -> list[ConsumeQueue]:
        """Returns the queues of a retry topic. The result is empty before the first redelivery."""
        config = self._topics.get(topic)
        return [] if config is None else self.of_topic(config, -1, first)

    def watched(self, config: TopicConfig, group: str, queue_id: int) -> tuple[ConsumeQueue, ...]:
        """Returns the queues in which a message can arrive for a request for `queue_id` (-1: all queues)."""
        # With `useSeparateRetryQueue`, a message is redelivered in the retry queue with the same id.
        ids = range(config.write_queue_nums) if self._config.use_separate_retry_queue else (0,)
        topics = self.retry_topics(config.topic_name, group)
        return (*self.of_topic(config, queue_id), *(self._store.queue(topic, id_) for topic in topics for id_ in ids))

    def is_by_priority(self, config: TopicConfig, group: str, chance: int) -> bool:
        """Returns whether a pop selects queues by priority. `chance` is a random number below 100."""
        if not is_by_priority(config.attributes):
            return False
        group_config = self._groups.find(group)
        return group_config is not None and chance < priority_factor(group_config.attributes)

    def position(self, queue: ConsumeQueue, group: str) -> int | None:
        """Returns the offset at which the group's next pop begins; None if the group has no offset yet."""
        offset = self._buffer.next_offset((queue.topic, group, queue.queue_id))
        return self._offsets.query(group, queue.topic, queue.queue_id) if offset is None else offset

    def first_offset(self, queue: ConsumeQueue, init_mode: int) -> int:
        """Returns the first offset of a new group: the offset of the oldest or of the newest message.

        Retry topics and INIT_FROM_MIN start at the oldest message. With `initPopOffsetByCheckMsgInMem`, this also
        applies to a queue whose first message is still in memory.
        """
        if init_mode == INIT_FROM_MIN or queue.topic.startswith(RETRY_TOPIC_PREFIX):
            return queue.min_offset
        if queue.min_offset <= 0 and self._config.init_pop_offset_by_check_msg_in_mem:
            unit = queue.unit(0)
            if unit is not None and self._store.max_physical_offset - unit[0] <= self._store.in_memory_bytes:
                return 0
        return max(0, self._store.confirmed_end(queue) - 1)
