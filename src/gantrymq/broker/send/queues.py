"""SendQueues: finds the queue of a send and checks that it is writable (`AbstractSendMessageProcessor.msgCheck`).

The checks of a topic are on the hot path. Their result is cached until the topic changes. The queues of a topic with a
rate limit or a deduplication window are not cached, so each of its sends reaches the limit or the table of ids, and
native code handles none of them. Neither are those of a compaction topic: each of its messages needs a key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from gantrymq.broker.append import NORMAL, NewTopics, PreallocationWaits, message_type
from gantrymq.broker.tables import BrokerTopics, RateLimits
from gantrymq.errors import RequestRefused, StoreError
from gantrymq.limits import LIGHT_QUEUES_OF_MESSAGE
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.lite_topic import light_queue_of, lite_topic_problem
from gantrymq.protocol.multi_dispatch import (
    DISPATCH_MARK,
    MULTI_DISPATCH,
    dispatch_problem,
    is_light_queue,
    named_queues,
)
from gantrymq.protocol.properties import LITE_TOPIC, PRIORITY, find_property, priority_of, without_property
from gantrymq.protocol.send_request import SendOptions, SendTarget, decode_send_request
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX, may_be_sent_to, topic_problem
from gantrymq.remoting.connection import Connection
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.message_store import MessageStore
from gantrymq.system import randomness

_PRIORITY = PRIORITY.encode()


def check_key(topic: str, properties: bytes) -> None:
    """Raises RequestRefused if a message of a compaction topic has no key (`SendMessageProcessor.sendMessage`)."""
    if not (find_property(properties, b"KEYS") or b"").strip():
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"Required message key is missing: topic {topic!r} keeps the last message of each key",
        )


class SendQueues:
    """The writable queues of one broker. Creates a missing topic if the configuration allows it."""

    def __init__(
        self,
        store: MessageStore,
        topics: BrokerTopics,
        new_topics: NewTopics,
        preallocation_waits: PreallocationWaits,
        rate_limits: RateLimits,
    ) -> None:
        self._store = store
        self._topics = topics
        self._new_topics = new_topics
        self._preallocation_waits = preallocation_waits
        self._rate_limits = rate_limits
        #: True while a send is stored whose deduplication id was checked.
        self._is_checked = False
        #: Writable topic -> its queues by id. A queue is None until it is requested.
        self._writable: dict[str, list[ConsumeQueue | None]] = {}

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Lets `find` return the queues of topics with a deduplication window."""
        self._is_checked = True
        try:
            yield
        finally:
            self._is_checked = False

    @property
    def is_checked(self) -> bool:
        """Whether `checked` is in use."""
        return self._is_checked

    def topics_changed(self, names: Collection[str] = ()) -> None:
        """Drops the cached queues of these topics; of all topics if there are no names."""
        for name in names:
            self._writable.pop(name, None)
        if not names:
            self._writable.clear()

    def found(self, target: SendTarget) -> ConsumeQueue | None:
        """Returns the queue that `find` returns for this target until the topic changes.

        Returns None if the queue is not cached, or if the broker selects a queue at random.
        """
        queues = self._writable.get(target.topic, ())
        return queues[target.queue_id] if 0 <= target.queue_id < len(queues) else None

    def find(
        self, target: SendTarget, options: SendOptions, connection: Connection, request: RemotingCommand
    ) -> ConsumeQueue | None:
        """Returns the queue of a send. Creates a missing topic if the configuration allows it.

        Returns None if the request must wait: the topic is not on disk yet, or earlier requests wait for it. Also
        returns None if the topic has a deduplication window, except in `checked`. Raises RequestRefused if the queue
        does not exist or is not writable, and above a rate limit.
        """
        topic = target.topic
        queues = self._writable.get(topic)
        if queues is None:
            queues = self._resolve(target, options, connection, request)
            if queues is None:
                return None
        queue_id = target.queue_id
        if queue_id < 0:
            queue_id = self._random_queue_id(topic)
        if queue_id >= len(queues):
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{queue_id}] is illegal, topic {topic} has {len(queues)} queues",
            )
        queue = queues[queue_id]
        if queue is None:
            queue = queues[queue_id] = self._store.queue(topic, queue_id)
        return queue

    def needs_keys(self, topic: str) -> bool:
        """Returns whether each message of a topic needs a key, because the topic is a compaction topic."""
        return topic in self._topics.compacted

    def dispatched(self, topic: str, properties: bytes) -> bytes:
        """Returns the properties of a message for light queues. A lite topic becomes the name of its light queue.

        Raises RequestRefused if the message can't be dispatched to them.
        """
        lite_topic = find_property(properties, LITE_TOPIC.encode())
        problem = None
        if lite_topic is not None:
            name = lite_topic.decode(errors="replace")
            problem = lite_topic_problem(topic, name)
            properties = without_property(properties, MULTI_DISPATCH.encode())
            properties += b"%b%b\x02" % (DISPATCH_MARK, light_queue_of(topic, name).encode(errors="replace"))
        problem = problem or dispatch_problem(properties, LIGHT_QUEUES_OF_MESSAGE)
        if problem is not None:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {problem}")
        if self._store.config.enable_lmq_quota:
            self._check_quota(properties)
        return properties

    def _check_quota(self, properties: bytes) -> None:
        light, most = self._store.light, self._store.config.max_lmq_consume_queue_num
        assert light is not None
        names = {name for name in named_queues(properties) if is_light_queue(name)}
        if light.queue_count + len(names) <= most:
            return
        try:
            new = sum(not light.queue(name).max_offset for name in names)
        except StoreError:
            raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "the light queues are not available") from None
        if new and light.queue_count + new > most:
            raise RequestRefused(
                ResponseCode.LMQ_QUOTA_EXCEEDED,
                f"there are {light.queue_count} light queues, and the message names {new} new ones: "
                f"maxLmqConsumeQueueNum={most}",
            )

    def by_priority(self, queue: ConsumeQueue, properties: bytes) -> tuple[ConsumeQueue, bytes]:
        """Returns the queue of a message that may have a priority, and its properties.

        The priority is the queue id. A priority above the highest queue id selects the last queue. Delayed messages,
        ordered messages and half messages lose the priority.
        """
        priority = priority_of((find_property(properties, _PRIORITY) or b"").decode(errors="replace"))
        if priority < 0:
            return queue, properties
        if message_type(properties) != NORMAL:
            return queue, without_property(properties, _PRIORITY)
        config = self._topics.get(queue.topic)
        last = config.write_queue_nums - 1 if config is not None else 0
        return self._store.queue(queue.topic, max(min(priority, last), 0)), properties

    def _random_queue_id(self, topic: str) -> int:
        config = self._topics.get(topic)
        if config is None or config.write_queue_nums < 1:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"the topic[{topic}] has no queues to write to")
        return randomness.randrange(config.write_queue_nums)

    def _resolve(
        self, target: SendTarget, options: SendOptions, connection: Connection, request: RemotingCommand
    ) -> list[ConsumeQueue | None] | None:
        """Checks that a topic is writable and returns its queues. Raises and returns None as `find` does."""
        topic = target.topic
        problem = topic_problem(topic)
        if problem is not None:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, problem)
        if not may_be_sent_to(topic) or (self._store.light is not None and is_light_queue(topic)):
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")
        config = self._topics.get(topic) or self._create(target, options, connection)
        if not config.is_writable:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"the topic[{topic}] sending message is forbidden")
        if self.needs_keys(topic) and not options.batch:
            check_key(topic, decode_send_request(request).properties)
        is_waiting = self._new_topics.is_waiting(topic)
        has_waited = self._new_topics.is_answering or self._preallocation_waits.is_answering
        if not self._topics.is_written(topic) or (is_waiting and not has_waited):
            return None
        has_window = bool(config.attributes) and self._topics.deduplication_window_ms(topic) > 0
        if has_window and not self._is_checked:
            return None
        queues: list[ConsumeQueue | None] = [None] * max(config.write_queue_nums, config.read_queue_nums)
        if self._rate_limits.limits_sends(config):
            # A request that has waited for a file was counted before.
            if not self._preallocation_waits.is_answering:
                self._rate_limits.admit_send(config, connection, request.body, is_batch=options.batch)
        elif not (is_waiting or has_window or self.needs_keys(topic)):
            # If the queues were cached now, later requests would overtake the waiting ones.
            self._writable[topic] = queues
        return queues

    def _create(self, target: SendTarget, options: SendOptions, connection: Connection) -> TopicConfig:
        topic = target.topic
        config = self._topics.create_in_send(
            topic,
            target.default_topic,
            target.default_topic_queue_nums,
            connection.address,
            unit_mode=options.unit_mode,
        )
        if config is None and topic.startswith(RETRY_TOPIC_PREFIX):
            config = self._topics.create_if_absent(topic, 1, unit_mode=options.unit_mode)
        if config is None:
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{topic}] not exist, apply first please! Create it, or set autoCreateTopicEnable=true.",
            )
        return config
