"""SEND_BATCH_MESSAGE: many messages for one queue in one request (`SendMessageProcessor.sendBatchMessage`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from gantrymq.broker.appender import Appender, born_host
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.flush_waits import FlushWaits
from gantrymq.broker.new_topics import NewTopics
from gantrymq.broker.plain_sends import PlainSends
from gantrymq.broker.room_waits import RoomWaits
from gantrymq.broker.send_queues import SendQueues
from gantrymq.broker.transaction.half_batches import HalfBatches
from gantrymq.broker.writers import Writers
from gantrymq.errors import RequestRefused, StoreBusy
from gantrymq.protocol.batch import MAX_BATCH_MESSAGES, decode_batch
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.send import SendMessageResponseHeader
from gantrymq.protocol.java import tags_code
from gantrymq.protocol.message_id import UniqueKeys, encode_offset_message_ids
from gantrymq.protocol.properties import MAX_PROPERTIES_LENGTH, find_property, is_waited_for, without_property
from gantrymq.protocol.row_ids import AFTER_MARK
from gantrymq.protocol.send_request import decode_send_request
from gantrymq.protocol.sys_flag import TRANSACTION_MASK, TRANSACTION_PREPARED
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX
from gantrymq.remoting.connection import Connection, Reply
from gantrymq.remoting.long_requests import LongRequests, Steps
from gantrymq.store.delay_level import delay_level
from gantrymq.store.record_batch import RecordBatch

#: Messages of a batch that are made into records in one step: 0.4 ms.
_BATCH_STEP = 200
#: The same where native code makes them.
_NATIVE_BATCH_STEP = 2000
#: A property that the broker sets itself.
_POP_CK = b"POP_CK\x01"


class BatchSending:
    """The batches that are sent to one broker."""

    def __init__(
        self,
        config: BrokerConfig,
        appender: Appender,
        queues: SendQueues,
        flush_waits: FlushWaits,
        unique_keys: UniqueKeys,
        *,
        long_requests: LongRequests,
        new_topics: NewTopics,
        room_waits: RoomWaits,
        writers: Writers,
        plain: PlainSends | None,
    ) -> None:
        self._config = config
        self._appender = appender
        self._queues = queues
        self._flush_waits = flush_waits
        self._long_requests = long_requests
        self._new_topics = new_topics
        self._room_waits = room_waits
        self._writers = writers
        self._plain = plain
        self._half_batches = HalfBatches(config, appender, flush_waits, room_waits, unique_keys)
        self._is_safe = flush_waits.is_used

    def config_changed(self) -> None:
        self._is_safe = self._flush_waits.is_used

    def send(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Stores the messages of a batch body, one behind the other in one queue; the answer lists their ids.

        Nothing is stored of a batch that can't be stored as a whole. What the header's properties say holds for the
        batch, and doesn't become part of its messages (`MessageExtEncoder.encode`). One with TRANSACTION_PREPARED is a
        batch of half messages.
        """
        target, born_timestamp, _, properties, options = decode_send_request(request)
        if target.topic.startswith(RETRY_TOPIC_PREFIX):
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {target.topic}"
            )
        if len(properties) > MAX_PROPERTIES_LENGTH or len(request.body) > self._appender.max_message_size:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"batch of {len(request.body)} bytes with {len(properties)} bytes of properties: at most "
                f"{self._appender.max_message_size} and {MAX_PROPERTIES_LENGTH} are taken",
            )
        is_half = target.sys_flag & TRANSACTION_MASK == TRANSACTION_PREPARED
        if (target.sys_flag & TRANSACTION_MASK and not is_half) or delay_level(properties):
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL, "the messages of a batch are neither delayed nor in a transaction"
            )
        if self._is_safe:
            self._flush_waits.check_room()
        queue = self._queues.find(target, options, connection)
        if queue is None:
            self._new_topics.hold(connection, request, self.send, target.topic)
            return None
        waits = self._is_safe and is_waited_for(properties)
        if waits:
            self._flush_waits.check()
        if is_half:
            steps = self._half_batches.store(connection, request, queue, waits)
            return self._long_requests.run(connection, request, steps)
        batch = self._appender.store.begin_batch(
            queue, target.sys_flag, born_timestamp, born_host(connection), options.reconsume_times
        )
        return self._long_requests.run(connection, request, self._store_batch(connection, request, batch, waits))

    def _store_batch(self, connection: Connection, request: RemotingCommand, batch: RecordBatch, waits: bool) -> Steps:
        """Makes the records of a batch step by step, puts them into the store at once, and answers."""
        messages, start = request.body, 0
        while start < len(messages):
            most = min(_NATIVE_BATCH_STEP, MAX_BATCH_MESSAGES - len(batch))
            following = batch.add_messages(messages, start, most, _POP_CK)
            if following == start:
                break
            start = following
            if start < len(messages):
                yield
        for count, (flag, body, properties) in enumerate(decode_batch(messages, start), len(batch) + 1):
            if count > MAX_BATCH_MESSAGES:
                raise RequestRefused(
                    ResponseCode.MESSAGE_ILLEGAL, f"batch of more than {MAX_BATCH_MESSAGES} messages: send several"
                )
            if _POP_CK in properties:
                properties = without_property(properties, b"POP_CK")
            code = tags_code(find_property(properties, b"TAGS") or b"") if b"TAGS\x01" in properties else 0
            batch.add(flag, body, properties, code)
            if not count % _BATCH_STEP:
                yield
        if not batch:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, "batch without messages")
        return self._append_batch(batch, waits, connection, request)

    def _append_batch(self, batch: RecordBatch, waits: bool, connection: Connection, request: RemotingCommand) -> Reply:
        queue_offset, last_row, rows = batch.queue.max_offset, None, None
        if AFTER_MARK in request.raw_ext:
            if not self._writers.is_read:
                connection.respond_with(
                    request, self._append_after(self._writers.read, batch, waits, connection, request)
                )
                return None
            rows = self._writers.rows(request, batch)
            if not self._writers.is_begun:
                connection.respond_with(
                    request, self._append_after(self._writers.begin, batch, waits, connection, request)
                )
                return None
        try:
            if rows is None:
                offsets = self._appender.append_batch(batch)
            else:
                queue_offset, offsets = self._writers.append(rows)
                last_row = rows.last_row
        except StoreBusy:
            self._room_waits.hold(connection, request, partial(self._append_batch, batch, waits))
            return None
        response = RemotingCommand.response(
            header=SendMessageResponseHeader(
                msg_id=encode_offset_message_ids(self._appender.store_host, offsets),
                queue_id=batch.queue.queue_id,
                queue_offset=queue_offset,
                msg_region=self._config.region_id,
                trace_on="true" if self._config.trace_on else "false",
                gantry_last_row=last_row,
            )
        )
        plain = self._plain
        if rows is None and plain is not None and plain.asks_about(connection, request):
            found = self._queues.found(decode_send_request(request).target)
            if found is not None:
                plain.tell(request, found, is_batch=True)
        if waits:
            # Also rows that were there already: who sends them again is told no sooner.
            timeout_ms = decode_send_request(request).options.timeout_ms
            end = self._appender.store.max_physical_offset
            self._flush_waits.reply(connection, request, end, response, timeout_ms=timeout_ms)
            return None
        return response

    async def _append_after(
        self,
        work: Callable[[], Awaitable[None]],
        batch: RecordBatch,
        waits: bool,
        connection: Connection,
        request: RemotingCommand,
    ) -> Reply:
        await work()
        return self._append_batch(batch, waits, connection, request)
