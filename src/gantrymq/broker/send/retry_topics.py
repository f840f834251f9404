"""RetryTopics: stores the messages again that a consumer failed to process.

A message goes to the retry topic %RETRY%group, with a delay that increases with each retry. After the last retry, it
goes to the dead-letter queue %DLQ%group. This applies to CONSUMER_SEND_MSG_BACK
(`AbstractSendMessageProcessor.consumerSendMsgBack`) and to plain sends to a retry topic
(`SendMessageProcessor.handleRetryAndDLQ`).
"""

from __future__ import annotations

from gantrymq.broker.append import Appender, RequestWaits
from gantrymq.broker.context import BrokerContext
from gantrymq.broker.delay import DelayLevels
from gantrymq.broker.feature import Feature
from gantrymq.broker.tables import SubscriptionGroupConfig
from gantrymq.errors import GantryError, RequestRefused
from gantrymq.protocol import properties as names
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.send import ConsumerSendMsgBackRequestHeader
from gantrymq.protocol.java import tags_code
from gantrymq.protocol.message_id import encode_offset_message_id
from gantrymq.protocol.properties import decode_properties, encode_fitting
from gantrymq.protocol.topic_name import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, retry_topic
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.queued_record import queued_record
from gantrymq.system import randomness
from gantrymq.system.clock import now_ms

DLQ_QUEUE_NUMS = 1
#: Delay level of the first retry. Each further retry uses the next higher level.
FIRST_RETRY_LEVEL = 3


class RetryTopics(Feature):
    """The retry and dead-letter topics of one broker."""

    def __init__(
        self, context: BrokerContext, *, appender: Appender, schedule: DelayLevels, waits: RequestWaits
    ) -> None:
        self._appender = appender
        self._topics = context.topics
        self._stats = context.stats
        self._groups = context.groups
        self._schedule = schedule
        self._pending_responses = waits.flush
        self._new_topics = waits.new_topics
        self._send_back = waits.files.holding(self.send_back)

    def handlers(self) -> dict[int, RequestHandler]:
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self._send_back}

    def send_back(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Stores a message that a consumer sends back, so that its group receives it again. Raises RequestRefused."""
        header = request.read_header(ConsumerSendMsgBackRequestHeader)
        group = self._group(header.group)
        if group.retry_queue_nums <= 0:
            return RemotingCommand.response()
        try:
            record = queued_record(self._appender.store, header.offset)
        except GantryError as e:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}: {e}"
            ) from e
        max_times = group.retry_max_times if header.max_reconsume_times is None else header.max_reconsume_times
        fields = decode_properties(record.properties)
        fields.setdefault(names.RETRY_TOPIC, record.topic.decode())
        fields.setdefault(names.ORIGIN_MESSAGE_ID, encode_offset_message_id(record.store_host, record.physical_offset))
        fields.pop(names.DELAY_TIME_LEVEL, None)
        code = tags_code(fields.get(names.TAGS, "").encode())
        most = self._appender.max_properties_length
        properties = encode_fitting(fields, most, (names.ORIGIN_MESSAGE_ID, names.RETRY_TOPIC), record.properties)
        is_dead = record.reconsume_times >= max_times or header.delay_level < 0
        level = header.delay_level or FIRST_RETRY_LEVEL + record.reconsume_times
        if is_dead:
            queue = self._dead_letter_queue(group)
        else:
            topic = self._topics.create_if_absent(
                retry_topic(group.group_name), group.retry_queue_nums, unit_mode=header.unit_mode
            )
            if not topic.is_writable:
                raise RequestRefused(
                    ResponseCode.NO_PERMISSION, f"the topic[{topic.topic_name}] sending message is forbidden"
                )
            queue = self._appender.store.queue(topic.topic_name, randomness.randrange(group.retry_queue_nums))
        if not self._topics.is_written(queue.topic):
            self._new_topics.hold(connection, request, self._send_back, queue.topic)
            return None
        if not is_dead:
            delayed = self._schedule.redirect(queue, properties, level, now_ms())
            if len(delayed[1]) <= most:
                queue, properties, code = delayed
            # If the properties of the delay exceed the limit, the message is redelivered without a delay.
        self._pending_responses.check()
        put = self._appender.append_again(record, queue, properties, code, record.reconsume_times + 1)
        origin = fields[names.RETRY_TOPIC]
        if self._topics.get(origin) is None:
            # A producer can write any text into this property. Only existing topics get statistics.
            origin = record.topic.decode()
        self._stats.sent_back(origin, group.group_name)
        if is_dead:
            self._stats.sent_to_dlq(origin, group.group_name)
            self._stats.dead_letter(origin, group.group_name)
        if self._pending_responses.is_used:
            # After the response, the consumer discards the message. Java responds at once, so that a power failure can
            # destroy the message.
            end, waits = put.physical_offset + put.size, self._pending_responses
            waits.reply(connection, request, end, RemotingCommand.response(), late_codes=waits.response_codes_of_copies)
            return None
        return RemotingCommand.response()

    def dead_letter_queue_for(
        self, topic: str, reconsume_times: int, max_reconsume_times: int | None
    ) -> ConsumeQueue | None:
        """Returns the dead-letter queue for a message without retries left. None if it can be retried."""
        group = self._group(topic.removeprefix(RETRY_TOPIC_PREFIX))
        max_times = group.retry_max_times if max_reconsume_times is None else max_reconsume_times
        return self._dead_letter_queue(group) if reconsume_times > max_times else None

    def _dead_letter_queue(self, group: SubscriptionGroupConfig) -> ConsumeQueue:
        topic = self._topics.create_if_absent(DLQ_TOPIC_PREFIX + group.group_name, DLQ_QUEUE_NUMS)
        return self._appender.store.queue(topic.topic_name, randomness.randrange(DLQ_QUEUE_NUMS))

    def _group(self, name: str) -> SubscriptionGroupConfig:
        group = self._groups.get(name)
        if group is None:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name}")
        return group
