"""Sending: SEND_MESSAGE, SEND_MESSAGE_V2 (`SendMessageProcessor`); batches are in `send_batch`.

`send` is the hot path: header -> checks -> record -> answer, without a task and, beyond the request and its header,
without an object per message. It alone knows the rules; `plain_sends` repeats what it did.
"""

from __future__ import annotations

from collections.abc import Collection

from gantrymq.broker.appender import Appender, born_host
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.flush_waits import FlushWaits
from gantrymq.broker.new_topics import NewTopics
from gantrymq.broker.part import Part
from gantrymq.broker.plain_sends import PlainSends
from gantrymq.broker.replication.promises import not_enough
from gantrymq.broker.retry import RetryTopics
from gantrymq.broker.room_waits import RoomWaits
from gantrymq.broker.schedule import Schedule
from gantrymq.broker.send_batch import BatchSending
from gantrymq.broker.send_queues import SendQueues
from gantrymq.broker.timer.message import recall_handle
from gantrymq.broker.timer.timer import Timer
from gantrymq.broker.topics import BrokerTopics
from gantrymq.broker.transaction.half_messages import half_properties, half_queue
from gantrymq.broker.writers import Writers
from gantrymq.errors import RequestRefused, StoreBusy
from gantrymq.kernels import native
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.send import SendMessageResponseHeader
from gantrymq.protocol.java import tags_code
from gantrymq.protocol.message_id import UniqueKeys, encode_offset_message_id
from gantrymq.protocol.properties import (
    CLUSTER,
    MSG_REGION,
    TRACE_SWITCH,
    encode_properties,
    find_property,
    is_waited_for,
    without_property,
)
from gantrymq.protocol.send_request import decode_send_request
from gantrymq.protocol.send_response import SendResponses
from gantrymq.protocol.sys_flag import TRANSACTION_MASK
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX, TIMER_TOPIC
from gantrymq.remoting.connection import Connection, FirstLook, Reply, RequestHandler
from gantrymq.remoting.long_requests import LongRequests
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.delay_level import delay_level
from gantrymq.store.message_store import PutResult
from gantrymq.system.clock import now_ms

_TIMER_PROPERTIES = (b"TIMER_DELIVER_MS", b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS")
#: A property that the broker sets itself.
_POP_CK = b"POP_CK\x01"


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
        *,
        long_requests: LongRequests,
        new_topics: NewTopics,
        room_waits: RoomWaits,
        writers: Writers,
    ) -> None:
        self._config = config
        self._appender = appender
        self._append = appender.append
        self._topics = topics
        self._schedule = schedule
        self._timer = timer
        self._retry = retry
        self._flush_waits = flush_waits
        self._trace_on = "true" if config.trace_on else "false"
        self._responses = SendResponses(appender.store_host, config.region_id, config.trace_on)
        self._unique_keys = UniqueKeys(appender.store_host[:-4])
        #: Answers wait, those for messages that say WAIT=false excepted.
        self._is_safe = flush_waits.is_used
        self._brokers_properties = _brokers_properties(config)
        self._queues = SendQueues(appender.store, topics, new_topics, room_waits)
        self._new_topics = new_topics
        self._room_waits = room_waits
        self._plain = PlainSends(native, appender, flush_waits, long_requests) if native is not None else None
        self._batches = BatchSending(
            config,
            appender,
            self._queues,
            flush_waits,
            self._unique_keys,
            long_requests=long_requests,
            new_topics=new_topics,
            room_waits=room_waits,
            writers=writers,
            plain=self._plain,
        )
        self._begin_plain()

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.SEND_MESSAGE: self.send,
            RequestCode.SEND_MESSAGE_V2: self.send,
            RequestCode.SEND_BATCH_MESSAGE: self._batches.send,
        }

    def config_changed(self) -> None:
        config = self._config
        self._trace_on = "true" if config.trace_on else "false"
        self._responses = SendResponses(self._appender.store_host, config.region_id, config.trace_on)
        self._brokers_properties = _brokers_properties(config)
        self._is_safe = self._flush_waits.is_used
        self._appender.config_changed()
        self._batches.config_changed()
        self._begin_plain()

    def topics_changed(self, names: Collection[str] = ()) -> None:
        """These topics, all when none is named, are looked at anew."""
        self.forget_plain()
        self._queues.topics_changed(names)

    # -- plain sends ------------------------------------------------------------------------------------------------

    @property
    def first_look(self) -> FirstLook | None:
        """Stores and answers plain sends before they are decoded; None where Python does all."""
        return self._plain.first_look if self._plain is not None else None

    def _begin_plain(self) -> None:
        if self._plain is not None:
            self._plain.begin(self._responses, self._brokers_properties)

    def forget_plain(self) -> None:
        """What sends mean may have changed: each kind is looked at anew."""
        if self._plain is not None:
            self._plain.forget()

    # -- sends one by one -------------------------------------------------------------------------------------------

    def send(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Stores one message."""
        target, born_timestamp, flag, properties, options = decode_send_request(request)
        if options.batch:
            return self._batches.send(connection, request)
        if self._is_safe:
            self._flush_waits.check_room()
        queue = self._queues.find(target, options, connection)
        if queue is None:
            self._new_topics.hold(connection, request, self.send, target.topic)
            return None
        if self._is_safe and self._flush_waits.lacks_replicas and is_waited_for(properties):
            raise not_enough()
        queue_id = queue.queue_id
        properties = self._complete(properties)
        code = tags_code(find_property(properties, b"TAGS") or b"") if b"TAGS\x01" in properties else 0
        dead = handle = None
        if options.reconsume_times and target.topic.startswith(RETRY_TOPIC_PREFIX):
            dead = self._retry.dead_letter_queue_for(target.topic, options.reconsume_times, options.max_reconsume_times)
        if dead is not None:
            if not self._topics.is_written(dead.topic):
                self._new_topics.hold(connection, request, self.send, dead.topic)
                return None
            queue = dead
        elif b"DELAY" in properties or b"TIMER_DELIVER_MS" in properties or b"TRAN_MSG" in properties:
            if self._is_transaction(properties, options.reconsume_times):
                return self._prepare(connection, request, queue, properties, code)
            queue, properties, code = self.redirect(queue, properties, code)
            if queue.topic == TIMER_TOPIC:
                handle = recall_handle(self._config.broker_name, properties)
        try:
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
        except StoreBusy:
            self._room_waits.hold(connection, request, self.send)
            return None
        # `find_property`, written out: 0.15 us less.
        at = 9 if properties.startswith(b"UNIQ_KEY\x01") else properties.find(b"\x02UNIQ_KEY\x01") + 10
        unique_id = properties[at : properties.find(b"\x02", at)]
        if handle is not None:
            transaction_id = unique_id.decode(errors="replace")
            return self._answer(
                connection, request, result, queue_id, properties, transaction_id=transaction_id, recall_handle=handle
            )
        response = self._responses.encode(
            request.serialize_type, request.opaque, result.physical_offset, queue_id, result.queue_offset, unique_id
        )
        plain = self._plain
        if plain is not None and plain.asks_about(connection, request):
            found = self._queues.found(target)
            if found is not None:
                plain.tell(request, found)
        if self._is_safe and is_waited_for(properties):
            end = result.physical_offset + result.size
            self._flush_waits.reply(connection, request, end, (response,), timeout_ms=options.timeout_ms)
            return None
        return (response,)

    def _is_transaction(self, properties: bytes, reconsume_times: int) -> bool:
        if (find_property(properties, b"TRAN_MSG") or b"").lower() != b"true":
            return False
        # Consumers before 4.6.1 left the mark on what they sent to a retry topic.
        return not (reconsume_times and delay_level(properties))

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
        try:
            result = self._append(
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
        except StoreBusy:
            self._room_waits.hold(connection, request, self.send)
            return None
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
                msg_region=self._config.region_id,
                trace_on=self._trace_on,
            )
        )
        if self._is_safe and is_waited_for(properties):
            timeout_ms = decode_send_request(request).options.timeout_ms
            end = result.physical_offset + result.size
            self._flush_waits.reply(connection, request, end, response, timeout_ms=timeout_ms)
            return None
        return response

    def redirect(self, queue: ConsumeQueue, properties: bytes, code: int) -> tuple[ConsumeQueue, bytes, int]:
        """Where a message goes that isn't to be consumed at once (`HookUtils.handleScheduleMessage`)."""
        level = delay_level(properties)
        if level:
            return self._schedule.redirect(queue, properties, level, now_ms())
        if any(find_property(properties, name) for name in _TIMER_PROPERTIES):
            return self._timer.redirect(queue, properties, code)
        return queue, properties, code

    def _complete(self, properties: bytes) -> bytes:
        """The properties as broker 5.x stores them: with a unique key and the broker's own, without a pop's receipt.

        A consumer that forwards what it popped sends the receipt along, and it isn't that of the new message
        (`SendMessageProcessor.clearReservedProperties`).
        """
        # `has_property`, written out: 0.15 us less.
        has_key = properties.startswith(b"UNIQ_KEY\x01") or b"\x02UNIQ_KEY\x01" in properties
        if properties and properties[-1] != 2:
            properties += b"\x02"
        if not has_key:
            properties += b"UNIQ_KEY\x01%b\x02" % self._unique_keys.next().encode()
        if _POP_CK in properties:
            properties = without_property(properties, b"POP_CK")
        # A message that a consumer forwards has those of the broker that it comes from. One of a broker that adds the
        # others alone has them twice: the last ones count, and looking for each would take 0.1 us of every send.
        if b"CLUSTER\x01" in properties:
            for name in (b"CLUSTER", b"TRACE_ON", b"MSG_REGION"):
                properties = without_property(properties, name)
        return properties + self._brokers_properties


def _brokers_properties(config: BrokerConfig) -> bytes:
    """What the broker adds to each message. Clients write traces of what they consume if TRACE_ON says so.

    Source: AbstractSendMessageProcessor.buildMsgContext, SendMessageProcessor.sendMessage.
    """
    return encode_properties(
        {
            MSG_REGION: config.region_id,
            TRACE_SWITCH: "true" if config.trace_on else "false",
            CLUSTER: config.broker_cluster_name,
        }
    )
