"""SendProcessor: handles SEND_MESSAGE and SEND_MESSAGE_V2 (`SendMessageProcessor`). Batches are in `batches`.

`send` is the hot path: header, checks, record, response. It creates no task, and no objects for a message except the
request and the header. `send` contains all rules; `fast_path` only repeats its result for further messages.
"""

from __future__ import annotations

from collections.abc import Collection

from gantrymq.broker.append import TRANSACTION, Appender, RequestWaits, born_host, message_type
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.context import BrokerContext
from gantrymq.broker.delay import Delays, recall_handle
from gantrymq.broker.feature import Feature
from gantrymq.broker.replication import not_enough
from gantrymq.broker.send.batches import BatchSends, StoredIds
from gantrymq.broker.send.deduplication import deduplicate_id
from gantrymq.broker.send.fast_path import PlainSends
from gantrymq.broker.send.queues import SendQueues
from gantrymq.broker.send.retry_topics import RetryTopics
from gantrymq.broker.transaction import HalfBatches, half_properties, half_queue
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
from gantrymq.protocol.record import Record
from gantrymq.protocol.send_request import decode_send_request
from gantrymq.protocol.send_response import SendResponses
from gantrymq.protocol.sys_flag import TRANSACTION_MASK
from gantrymq.protocol.topic_name import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, TIMER_TOPIC, TRANSACTION_HALF_TOPIC
from gantrymq.remoting.connection import Connection, FirstLook, Reply, RequestHandler
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.delay_level import delay_level
from gantrymq.store.message_store import PutResult

#: Start of a property that only the broker may set.
_POP_CK = "POP_CK\x01"


class SendProcessor(Feature):
    """Handles the send requests of one broker.

    Attributes:
        plain: The fast path for ordinary sends. None without native code.
    """

    def __init__(
        self,
        context: BrokerContext,
        *,
        appender: Appender,
        delays: Delays,
        retry: RetryTopics,
        waits: RequestWaits,
        stored_ids: StoredIds,
    ) -> None:
        config = context.config
        self._config = config
        self._appender = appender
        self._append = appender.append
        self._received = appender.received
        self._has_light_queues = appender.store.light is not None
        self._topics = context.topics
        self._stats = context.stats
        self._transactions = context.stats.transactions
        self._delays = delays
        self._retry = retry
        self._pending_responses = pending_responses = waits.flush
        self._trace_on = "true" if config.trace_on else "false"
        self._responses = SendResponses(appender.store_host, config.region_id, config.trace_on)
        self._unique_keys = UniqueKeys(appender.store_host[:-4])
        #: Whether responses wait for the disk or for replicas. Responses to messages with WAIT=false never wait.
        self._is_safe = pending_responses.is_used
        self._brokers_properties = _brokers_properties(config)
        self._queues = SendQueues(appender.store, context.topics, waits.new_topics, waits.files, context.rate_limits)
        self._new_topics = waits.new_topics
        self._preallocation_waits = waits.files
        self._deduplication = stored_ids.deduplication
        self.plain = (
            PlainSends(native, appender, pending_responses, context.long_requests) if native is not None else None
        )
        self._batches = BatchSends(
            context,
            appender=appender,
            queues=self._queues,
            waits=waits,
            half_batches=HalfBatches(
                config,
                appender,
                pending_responses=pending_responses,
                preallocation_waits=waits.files,
                unique_keys=self._unique_keys,
                counts=self._transactions,
            ),
            stored_ids=stored_ids,
            plain=self.plain,
        )
        self._begin_plain()
        events = context.events
        events.config_changed.subscribe(self._config_changed)
        events.topics_changed.subscribe(self._topics_changed)
        events.queues_expired.subscribe(self._topics_changed)
        events.role_changed.subscribe(self._forget_plain)

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.SEND_MESSAGE: self.send,
            RequestCode.SEND_MESSAGE_V2: self.send,
            RequestCode.SEND_BATCH_MESSAGE: self._batches.send,
        }

    def _config_changed(self) -> None:
        config = self._config
        self._trace_on = "true" if config.trace_on else "false"
        self._responses = SendResponses(self._appender.store_host, config.region_id, config.trace_on)
        self._brokers_properties = _brokers_properties(config)
        self._is_safe = self._pending_responses.is_used
        self._appender.config_changed()
        # The limits of clients may have changed.
        self._queues.topics_changed()
        self._begin_plain()

    def _topics_changed(self, names: Collection[str] = ()) -> None:
        """Drops the cached headers, and the cached queues of these topics (of all topics if there are no names)."""
        self._forget_plain()
        self._queues.topics_changed(names)

    # -- plain sends ------------------------------------------------------------------------------------------------

    @property
    def first_look(self) -> FirstLook | None:
        """Stores and answers plain sends before they are decoded. None without native code."""
        return self.plain.first_look if self.plain is not None else None

    def _begin_plain(self) -> None:
        if self.plain is not None:
            self.plain.begin(self._responses, self._brokers_properties)

    def _forget_plain(self) -> None:
        """Drops the cached headers of the fast path, because the rules for them may have changed."""
        if self.plain is not None:
            self.plain.forget()

    # -- sends one by one -------------------------------------------------------------------------------------------

    def send(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Stores one message. Returns the response, or None if the request or its response waits.

        Raises RequestRefused if the message is not accepted, and StoreError if the store can't be written.
        """
        target, born_timestamp, flag, properties, options = decode_send_request(request)
        if options.batch:
            return self._batches.send(connection, request)
        # `in` takes 45 ns in a str and 300 ns in bytes. Names of properties are ASCII.
        text = properties.decode("latin-1")
        if self._is_safe:
            self._pending_responses.check_capacity()
        queue = self._queues.find(target, options, connection, request)
        if queue is None:
            return self._without_queue(connection, request, target.topic)
        if self._is_safe and self._pending_responses.lacks_replicas and is_waited_for(properties):
            raise not_enough()
        properties = self._complete(properties, text)
        if self._has_light_queues and ("INNER_MULTI_DISPATCH\x01" in text or "__LITE_TOPIC\x01" in text):
            properties = self._queues.dispatched(target.topic, properties)
        if "_SYS_MSG_PRIORITY_\x01" in text:
            queue, properties = self._queues.by_priority(queue, properties)
        queue_id = queue.queue_id
        code = tags_code(find_property(properties, b"TAGS") or b"") if "TAGS\x01" in text else 0
        kind = message_type(properties) if self._received is not None else ""
        dead = handle = None
        if options.reconsume_times and target.topic.startswith(RETRY_TOPIC_PREFIX):
            dead = self._retry.dead_letter_queue_for(target.topic, options.reconsume_times, options.max_reconsume_times)
        if dead is not None:
            if not self._topics.is_written(dead.topic):
                self._new_topics.hold(connection, request, self.send, dead.topic)
                return None
            queue = dead
        elif "DELAY" in text or "TIMER_DELIVER_MS" in text or "TRAN_MSG" in text:
            if self._is_transaction(properties, options.reconsume_times):
                return self._prepare(connection, request, queue, properties, code)
            queue, properties, code = self._delays.redirect(queue, properties, code)
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
            self._preallocation_waits.hold(connection, request, self.send)
            return None
        if self._received is not None:
            self._received.add(queue.topic, kind, result.size)
        if dead is not None:
            self._stats.dead_letter(target.topic, dead.topic.removeprefix(DLQ_TOPIC_PREFIX))
        # `find_property`, inlined: saves 0.15 us.
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
        plain = self.plain
        if plain is not None and plain.asks_about(connection, request):
            found = self._queues.found(target)
            if found is not None:
                plain.cache(request, found)
        if self._is_safe and is_waited_for(properties):
            end = result.physical_offset + result.size
            self._pending_responses.reply(connection, request, end, (response,), timeout_ms=options.timeout_ms)
            return None
        return (response,)

    # -- topics with a deduplication window -------------------------------------------------------------------------

    def _without_queue(self, connection: Connection, request: RemotingCommand, topic: str) -> Reply:
        """Handles a send for which `SendQueues.find` returned None."""
        if not self._queues.is_checked and self._deduplication.window_ms(topic):
            return self._send_once(connection, request)
        self._new_topics.hold(connection, request, self.send, topic)
        return None

    def _send_once(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Stores a message, or answers with the position of an earlier message with the same deduplication id."""
        target, _, _, properties, options = decode_send_request(request)
        message_id = deduplicate_id(properties)
        if not message_id:
            with self._queues.checked():
                return self.send(connection, request)
        if self._is_transaction(properties, options.reconsume_times):
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL, "the message is illegal: a half message can't have a deduplication id"
            )
        deduplication = self._deduplication
        if not deduplication.is_read:
            connection.respond_with(request, self._send_when_read(connection, request))
            return None
        first = deduplication.find(target.topic, message_id)
        if first is not None:
            return self._answer_again(connection, request, first)
        deduplication.check_capacity(1)
        end = self._appender.store.max_physical_offset
        with self._queues.checked():
            reply = self.send(connection, request)
        # Nothing was stored if the request waits for a file or for its topic.
        if self._appender.store.max_physical_offset > end:
            deduplication.stored_at(end)
        return reply

    async def _send_when_read(self, connection: Connection, request: RemotingCommand) -> Reply:
        await self._deduplication.read()
        return self.send(connection, request)

    def _answer_again(self, connection: Connection, request: RemotingCommand, first: Record) -> Reply:
        """Returns the response for a message that is stored already, as `first`.

        Raises the errors of `find`, and of an append. A master that was replaced must not answer, because the log of
        the new one may lack the message.
        """
        self._appender.check()
        target, _, _, properties, options = decode_send_request(request)
        with self._queues.checked():
            if self._queues.find(target, options, connection, request) is None:
                return self._without_queue(connection, request, target.topic)
        if self._is_safe and self._pending_responses.lacks_replicas and is_waited_for(properties):
            raise not_enough()
        self._deduplication.count_repeated(target.topic)
        # A delayed message is in a system topic. The response has its real queue.
        real_queue_id = find_property(first.properties, b"REAL_QID") or b""
        is_waiting = first.topic != target.topic.encode()
        is_of_timer = first.topic == TIMER_TOPIC.encode()
        return self._answer(
            connection,
            request,
            PutResult(first.queue_offset, first.physical_offset, first.size, first.store_timestamp),
            int(real_queue_id) if is_waiting and real_queue_id.isdigit() else first.queue_id,
            properties,
            transaction_id=(find_property(first.properties, b"UNIQ_KEY") or b"").decode(errors="replace"),
            recall_handle=recall_handle(self._config.broker_name, first.properties) if is_of_timer else None,
        )

    # -- half messages ----------------------------------------------------------------------------------------------

    def _is_transaction(self, properties: bytes, reconsume_times: int) -> bool:
        """Returns whether a message is a half message."""
        if (find_property(properties, b"TRAN_MSG") or b"").lower() != b"true":
            return False
        # Consumers before 4.6.1 leave the property in the messages that they send to a retry topic.
        return not (reconsume_times and delay_level(properties))

    def _prepare(
        self, connection: Connection, request: RemotingCommand, queue: ConsumeQueue, properties: bytes, code: int
    ) -> Reply:
        """Stores a half message until its commit or rollback (`TransactionalMessageBridge.putHalfMessage`)."""
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
            self._preallocation_waits.hold(connection, request, self.send)
            return None
        if self._received is not None:
            self._received.add(TRANSACTION_HALF_TOPIC, TRANSACTION, result.size)
        self._transactions.stored(queue.topic)
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
        """Returns the response for a half message, a repeated message or one with a recall handle; None if it waits."""
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
            self._pending_responses.reply(connection, request, end, response, timeout_ms=timeout_ms)
            return None
        return response

    def _complete(self, properties: bytes, text: str) -> bytes:
        """Returns the properties as broker 5.x stores them. `text` is the same as `properties`, decoded as Latin-1.

        Adds a unique key, if there is none, and the broker's own properties. Removes the receipt handle of a pop, which
        a forwarded message contains (`SendMessageProcessor.clearReservedProperties`).
        """
        # `has_property`, inlined: saves 0.15 us.
        has_key = properties.startswith(b"UNIQ_KEY\x01") or "\x02UNIQ_KEY\x01" in text
        if properties and properties[-1] != 2:
            properties += b"\x02"
        if not has_key:
            properties += b"UNIQ_KEY\x01%b\x02" % self._unique_keys.next().encode()
        if _POP_CK in text:
            properties = without_property(properties, b"POP_CK")
        # A forwarded message has the properties that its former broker added. Only CLUSTER is checked, to save time.
        # A message without CLUSTER can get a second TRACE_ON and MSG_REGION, which is harmless: the last value counts.
        if "CLUSTER\x01" in text:
            for name in (b"CLUSTER", b"TRACE_ON", b"MSG_REGION"):
                properties = without_property(properties, name)
        return properties + self._brokers_properties


def _brokers_properties(config: BrokerConfig) -> bytes:
    """Returns the properties that the broker adds to each message. TRACE_ON makes consumers write traces.

    Source: AbstractSendMessageProcessor.buildMsgContext, SendMessageProcessor.sendMessage.
    """
    return encode_properties(
        {
            MSG_REGION: config.region_id,
            TRACE_SWITCH: "true" if config.trace_on else "false",
            CLUSTER: config.broker_cluster_name,
        }
    )
