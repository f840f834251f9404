"""Sending: SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE (`SendMessageProcessor`).

`send` is the hot path: header -> checks -> record -> answer, without a task and, beyond the request and its header,
without an object per message. What depends on the topic alone is looked up once and kept until a topic changes.
"""

from __future__ import annotations

import random

from gantrymq.broker.appender import Appender, born_host
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.flush_waits import FlushWaits
from gantrymq.broker.part import Part
from gantrymq.broker.retry import RetryTopics
from gantrymq.broker.schedule import Schedule
from gantrymq.broker.timer.message import recall_handle
from gantrymq.broker.timer.timer import Timer
from gantrymq.broker.topics import BrokerTopics
from gantrymq.broker.transaction.half_messages import half_properties, half_queue
from gantrymq.clock import now_ms
from gantrymq.errors import RequestRefused
from gantrymq.protocol.batch import decode_batch
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.send import SendMessageResponseHeader
from gantrymq.protocol.java import tags_code
from gantrymq.protocol.message_id import UniqueKeys, encode_offset_message_id
from gantrymq.protocol.properties import decode_properties, encode_properties, find_property
from gantrymq.protocol.send_request import SendTarget, decode_send_request
from gantrymq.protocol.send_response import SendResponses
from gantrymq.protocol.sys_flag import TRANSACTION_MASK
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX, SEND_FORBIDDEN_TOPICS, TIMER_TOPIC, topic_problem
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.message_store import PutResult

_TIMER_PROPERTIES = (b"TIMER_DELIVER_MS", b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS")


class Sending(Part):
    """The send requests of one broker."""

    def __init__(
        self,
        config: BrokerConfig,
        appender: Appender,
        topics: BrokerTopics,
        schedule: Schedule,
        timer: Timer,
        retry: RetryTopics,
        flush_waits: FlushWaits,
    ) -> None:
        self._config = config
        self._appender = appender
        self._append = appender.append
        self._topics = topics
        self._schedule = schedule
        self._timer = timer
        self._retry = retry
        self._flush_waits = flush_waits
        self._responses = SendResponses(appender.store_host)
        self._unique_keys = UniqueKeys(appender.store_host[:-4])
        self._sync_flush = config.store.flush_disk_type == "SYNC_FLUSH"
        self._cluster_name = config.broker_cluster_name
        self._cluster_property = f"CLUSTER\x01{config.broker_cluster_name}\x02".encode()
        #: Topic -> its queues by id, for topics that may be written; emptied whenever a topic changes.
        self._writable: dict[str, list[ConsumeQueue]] = {}

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.SEND_MESSAGE: self.send,
            RequestCode.SEND_MESSAGE_V2: self.send,
            RequestCode.SEND_BATCH_MESSAGE: self.send_batch,
        }

    def topics_changed(self) -> None:
        self._writable.clear()

    def send(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Stores one message."""
        target, born_timestamp, flag, properties, options = decode_send_request(request)
        if options.batch:
            return self.send_batch(connection, request)
        queue = self._queue(target, connection)
        queue_id = queue.queue_id
        properties = self._complete(properties)
        code = tags_code(find_property(properties, b"TAGS") or b"") if b"TAGS\x01" in properties else 0
        dead = handle = None
        if options.reconsume_times and target.topic.startswith(RETRY_TOPIC_PREFIX):
            dead = self._retry.dead_letter_queue_for(target.topic, options.reconsume_times, options.max_reconsume_times)
        if dead is not None:
            queue = dead
        elif b"DELAY" in properties or b"TIMER_DELIVER_MS" in properties or b"TRAN_MSG" in properties:
            if self._is_transaction(properties, options.reconsume_times):
                return self._prepare(connection, request, queue, properties, code)
            queue, properties, code = self.redirect(queue, properties, code)
            if queue.topic == TIMER_TOPIC:
                handle = recall_handle(self._config.broker_name, properties)
        result = self._append(
            queue,
            flag,
            target.sys_flag,
            born_timestamp,
            born_host(connection),
            options.reconsume_times,
            request.body,
            properties,
            code,
        )
        if handle is not None:
            return self._answer(connection, request, result, queue_id, properties, recall_handle=handle)
        response = self._responses.encode(
            request.serialize_type, request.opaque, result.physical_offset, queue_id, result.queue_offset
        )
        if self._sync_flush and b"WAIT\x01false" not in properties:
            self._flush_waits.reply(connection, request, result.physical_offset + result.size, (response,))
            return None
        return (response,)

    def send_batch(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Stores the messages of a batch body, all in one queue; the answer lists their ids, joined by commas."""
        target, born_timestamp, _, batch_properties, options = decode_send_request(request)
        if target.topic.startswith(RETRY_TOPIC_PREFIX):
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {target.topic}"
            )
        queue = self._queue(target, connection)
        if len(request.body) > self._appender.max_message_size:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"batch of {len(request.body)} bytes: at most {self._appender.max_message_size} are taken",
            )
        # All are read before the first is stored, so that a broken batch leaves nothing behind.
        messages = [
            (flag, body, self._complete(_joined(properties, batch_properties)))
            for flag, body, properties in decode_batch(request.body)
        ]
        if not messages:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, "batch without messages")
        host = born_host(connection)
        results = [
            self._appender.append(
                queue,
                flag,
                target.sys_flag,
                born_timestamp,
                host,
                options.reconsume_times,
                body,
                properties,
                tags_code(find_property(properties, b"TAGS") or b""),
            )
            for flag, body, properties in messages
        ]
        response = RemotingCommand.response(
            header=SendMessageResponseHeader(
                msg_id=",".join(
                    [encode_offset_message_id(self._appender.store_host, result.physical_offset) for result in results]
                ),
                queue_id=queue.queue_id,
                queue_offset=results[0].queue_offset,
            )
        )
        if self._sync_flush:
            last = results[-1]
            self._flush_waits.reply(connection, request, last.physical_offset + last.size, response)
            return None
        return response

    def _queue(self, target: SendTarget, connection: Connection) -> ConsumeQueue:
        if self._sync_flush and self._flush_waits.is_full:
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                "[REJECTREQUEST]system busy, start flow control for a while: the disk is behind",
            )
        queues = self._writable.get(target.topic)
        if queues is None:
            queues = self._resolve(target, connection)
        queue_id = target.queue_id
        if queue_id < 0:
            queue_id = random.randrange(len(queues))
        if queue_id >= len(queues):
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{queue_id}] is illegal, topic {target.topic} has {len(queues)} queues",
            )
        return queues[queue_id]

    def _resolve(self, target: SendTarget, connection: Connection) -> list[ConsumeQueue]:
        """The topic's queues, once it is clear that this topic may be written; creates it where that is allowed."""
        topic = target.topic
        problem = topic_problem(topic)
        if problem is not None:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, problem)
        if topic in SEND_FORBIDDEN_TOPICS:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")
        config = self._topics.get(topic) or self._create(target, connection)
        if not config.is_writable:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"the topic[{topic}] sending message is forbidden")
        queue_nums = max(config.write_queue_nums, config.read_queue_nums)
        queues = [self._appender.store.queue(topic, queue_id) for queue_id in range(queue_nums)]
        self._writable[topic] = queues
        return queues

    def _create(self, target: SendTarget, connection: Connection) -> TopicConfig:
        topic = target.topic
        config = self._topics.create_in_send(
            topic, target.default_topic, target.default_topic_queue_nums, connection.address
        )
        if config is None and topic.startswith(RETRY_TOPIC_PREFIX):
            config = self._topics.create_if_absent(topic, 1)
        if config is None:
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{topic}] not exist, apply first please! Create it, or set autoCreateTopicEnable=true.",
            )
        return config

    def _is_transaction(self, properties: bytes, reconsume_times: int) -> bool:
        if (find_property(properties, b"TRAN_MSG") or b"").lower() != b"true":
            return False
        # Consumers before 4.6.1 left the mark on what they sent to a retry topic.
        return not (reconsume_times and _delay_level(properties))

    def _prepare(
        self, connection: Connection, request: RemotingCommand, queue: ConsumeQueue, properties: bytes, code: int
    ) -> Reply:
        """Stores a half message: it waits for its transaction's end (`TransactionalMessageBridge.putHalfMessage`)."""
        if self._config.reject_transaction_message:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._config.broker_ip1}] sending transaction message is forbidden",
            )
        target, born_timestamp, flag, _, options = decode_send_request(request)
        result = self._appender.append(
            half_queue(self._appender.store),
            flag,
            target.sys_flag & ~TRANSACTION_MASK,
            born_timestamp,
            born_host(connection),
            options.reconsume_times,
            request.body,
            half_properties(properties, queue),
            code,
        )
        unique_key = find_property(properties, b"UNIQ_KEY")
        transaction_id = unique_key.decode() if unique_key else None
        return self._answer(connection, request, result, queue.queue_id, properties, transaction_id=transaction_id)

    def _answer(
        self,
        connection: Connection,
        request: RemotingCommand,
        result: PutResult,
        queue_id: int,
        properties: bytes,
        *,
        transaction_id: str | None = None,
        recall_handle: str | None = None,
    ) -> Reply:
        """The answer for a message that its producer can still take back."""
        response = RemotingCommand.response(
            header=SendMessageResponseHeader(
                msg_id=encode_offset_message_id(self._appender.store_host, result.physical_offset),
                queue_id=queue_id,
                queue_offset=result.queue_offset,
                transaction_id=transaction_id,
                recall_handle=recall_handle,
            )
        )
        if self._sync_flush and b"WAIT\x01false" not in properties:
            self._flush_waits.reply(connection, request, result.physical_offset + result.size, response)
            return None
        return response

    def redirect(self, queue: ConsumeQueue, properties: bytes, code: int) -> tuple[ConsumeQueue, bytes, int]:
        """Where a message goes that isn't to be consumed at once (`HookUtils.handleScheduleMessage`)."""
        level = _delay_level(properties)
        if level:
            return self._schedule.redirect(queue, properties, level, now_ms())
        if any(find_property(properties, name) for name in _TIMER_PROPERTIES):
            return self._timer.redirect(queue, properties, code)
        return queue, properties, code

    def _complete(self, properties: bytes) -> bytes:
        """The properties as broker 5.x stores them: with a unique key and the cluster's name."""
        if properties and properties[-1] != 2:
            properties += b"\x02"
        if b"UNIQ_KEY\x01" not in properties:
            properties += b"UNIQ_KEY\x01%b\x02" % self._unique_keys.next().encode()
        if b"CLUSTER\x01" in properties:
            return encode_properties(decode_properties(properties) | {"CLUSTER": self._cluster_name})
        return properties + self._cluster_property


def _delay_level(properties: bytes) -> int:
    level = find_property(properties, b"DELAY") or b""
    return int(level) if level.isdigit() else 0


def _joined(properties: bytes, more: bytes) -> bytes:
    return properties + (b"" if not properties or properties.endswith(b"\x02") else b"\x02") + more
