"""SEND_BATCH_MESSAGE: stores the messages of one request in one queue (`SendMessageProcessor.sendBatchMessage`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from functools import partial
from typing import NamedTuple

from gantrymq.broker.append import Appender, RequestWaits, born_host, message_type
from gantrymq.broker.context import BrokerContext
from gantrymq.broker.send.deduplication import Deduplication, deduplicate_id
from gantrymq.broker.send.fast_path import PlainSends
from gantrymq.broker.send.idempotent_writes import IdempotentWrites
from gantrymq.broker.send.queues import SendQueues, check_key
from gantrymq.broker.transaction import HalfBatches
from gantrymq.errors import RequestRefused, StoreBusy
from gantrymq.protocol.batch import MAX_BATCH_MESSAGES, decode_batch
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.send import SendMessageResponseHeader
from gantrymq.protocol.java import tags_code
from gantrymq.protocol.message_id import encode_offset_message_ids
from gantrymq.protocol.properties import MAX_PROPERTIES_LENGTH, find_property, is_waited_for, without_property
from gantrymq.protocol.record import Record, record_properties
from gantrymq.protocol.row_ids import AFTER_MARK
from gantrymq.protocol.send_request import decode_send_request
from gantrymq.protocol.sys_flag import TRANSACTION_MASK, TRANSACTION_PREPARED
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX
from gantrymq.remoting.connection import Connection, Reply
from gantrymq.remoting.long_requests import Steps
from gantrymq.store.delay_level import delay_level
from gantrymq.store.record_batch import RecordBatch

#: Maximum number of messages that Python encodes as records in one step. A step takes 0.4 ms.
_BATCH_STEP = 200
#: Maximum number of messages that native code encodes as records in one step.
_NATIVE_BATCH_STEP = 2000
#: Maximum number of ids that are searched in one step. Each known one reads a record of the log.
_FIND_STEP = 20
#: Queue offset and physical offset of a message.
_Position = tuple[int, int]
#: Start of a property that only the broker may set.
_POP_CK = b"POP_CK\x01"


class StoredIds(NamedTuple):
    """The tables with the ids of stored messages, by which the broker recognizes repeated sends."""

    writers: IdempotentWrites
    deduplication: Deduplication


class BatchSends:
    """Handles the batch sends of one broker."""

    def __init__(
        self,
        context: BrokerContext,
        *,
        appender: Appender,
        queues: SendQueues,
        waits: RequestWaits,
        half_batches: HalfBatches,
        stored_ids: StoredIds,
        plain: PlainSends | None,
    ) -> None:
        self._config = context.config
        self._appender = appender
        self._has_light_queues = appender.store.light is not None
        self._queues = queues
        self._pending_responses = waits.flush
        self._long_requests = context.long_requests
        self._new_topics = waits.new_topics
        self._preallocation_waits = waits.files
        self._writers, self._deduplication = stored_ids
        self._plain = plain
        self._half_batches = half_batches
        self._is_safe = waits.flush.is_used
        context.events.config_changed.subscribe(self._config_changed)

    def _config_changed(self) -> None:
        self._is_safe = self._pending_responses.is_used

    def send(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Stores the messages of a batch in one queue, in order. The response lists their ids.

        The batch is stored as a whole or not at all. The properties in the header apply to the batch, and are not added
        to its messages (`MessageExtEncoder.encode`). With TRANSACTION_PREPARED, the messages are half messages. Raises
        RequestRefused if the batch can't be accepted.
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
            self._pending_responses.check_capacity()
        queue = self._queues.find(target, options, connection, request)
        has_window = False
        if queue is None:
            with self._queues.checked():
                queue = self._queues.find(target, options, connection, request)
            if queue is None:
                self._new_topics.hold(connection, request, self.send, target.topic)
                return None
            has_window = self._deduplication.window_ms(target.topic) > 0
        waits = self._is_safe and is_waited_for(properties)
        if waits:
            self._pending_responses.check()
        if is_half:
            steps = self._half_batches.store(connection, request, queue, waits)
        else:
            batch = self._appender.store.begin_batch(
                queue, target.sys_flag, born_timestamp, born_host(connection), options.reconsume_times
            )
            steps = self._store_batch(connection, request, batch, waits, has_window)
        if self._queues.needs_keys(target.topic):
            steps = _with_keys(request, target.topic, steps)
        return self._long_requests.run(connection, request, steps)

    def _store_batch(
        self, connection: Connection, request: RemotingCommand, batch: RecordBatch, waits: bool, has_window: bool
    ) -> Steps:
        """Encodes the records of a batch in steps, appends them all at once, and returns the response.

        If the topic has a deduplication window (`has_window`), leaves out the messages with known ids.
        """
        messages, start = request.body, 0
        # Native code removes no offsets of light queues.
        while start < len(messages) and not self._has_light_queues:
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
            # As in `SendProcessor.send`, `in` is faster for a str than for bytes.
            text = properties.decode("latin-1")
            if "POP_CK\x01" in text:
                properties = without_property(properties, b"POP_CK")
            if self._has_light_queues and "INNER_MULTI_QUEUE_OFFSET\x01" in text:
                # Only the broker may set it, for a message that it dispatches.
                properties = without_property(properties, b"INNER_MULTI_QUEUE_OFFSET")
            code = tags_code(find_property(properties, b"TAGS") or b"") if "TAGS\x01" in text else 0
            batch.add(flag, body, properties, code)
            if not count % _BATCH_STEP:
                yield
        if not batch:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, "batch without messages")
        if has_window:
            return (yield from self._store_once(batch, waits, connection, request))
        return self._append_batch(batch, waits, connection, request)

    def _append_batch(self, batch: RecordBatch, waits: bool, connection: Connection, request: RemotingCommand) -> Reply:
        """Appends a batch and returns the response, or None if the request or its response waits."""
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
            stored = batch if rows is None else rows.new
            if (received := self._appender.received) is not None and stored is not None:
                kind = message_type(decode_send_request(request).properties)
                received.add(batch.queue.topic, kind, sum(stored.sizes), len(stored))
        except StoreBusy:
            self._preallocation_waits.hold(connection, request, partial(self._append_batch, batch, waits))
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
                plain.cache(request, found, is_batch=True)
        if waits:
            # This also applies to rows that an earlier attempt has stored: a repeated send must wait for the flush and
            # the replicas, too.
            timeout_ms = decode_send_request(request).options.timeout_ms
            end = self._appender.store.max_physical_offset
            self._pending_responses.reply(connection, request, end, response, timeout_ms=timeout_ms)
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
        """Awaits `work`, then appends the batch."""
        await work()
        return self._append_batch(batch, waits, connection, request)

    # -- topics with a deduplication window -------------------------------------------------------------------------

    def _store_once(self, batch: RecordBatch, waits: bool, connection: Connection, request: RemotingCommand) -> Steps:
        """Appends the messages of a batch whose deduplication ids are new, and returns the response."""
        if AFTER_MARK in request.raw_ext:
            return self._append_batch(batch, waits, connection, request)
        ids = list[bytes]()
        for record in batch.records:
            ids.append(deduplicate_id(record_properties(record)))
            if not len(ids) % _BATCH_STEP:
                yield
        if not any(ids):
            return self._append_batch(batch, waits, connection, request)
        if not self._deduplication.is_read:
            work = self._append_once_when_read(batch, ids, waits, connection, request)
            connection.respond_with(request, work)
            return None
        return (yield from self._store_new(batch, ids, waits, connection, request))

    def _store_new(
        self, batch: RecordBatch, ids: list[bytes], waits: bool, connection: Connection, request: RemotingCommand
    ) -> Steps:
        """Finds the known messages of a batch in steps, appends the others, and returns the response."""
        known = dict[bytes, _Position]()
        for count, message_id in enumerate(ids):
            if message_id and message_id not in known:
                first = self._deduplication.find(batch.queue.topic, message_id)
                if first is not None:
                    known[message_id] = _position(first, batch)
            if not count % _FIND_STEP:
                yield
        return self._append_once(batch, ids, known, waits, connection, request)

    async def _append_once_when_read(
        self, batch: RecordBatch, ids: list[bytes], waits: bool, connection: Connection, request: RemotingCommand
    ) -> Reply:
        await self._deduplication.read()
        steps = self._store_new(batch, ids, waits, connection, request)
        return self._long_requests.run(connection, request, steps)

    def _append_once(
        self,
        batch: RecordBatch,
        ids: list[bytes],
        known: dict[bytes, _Position],
        waits: bool,
        connection: Connection,
        request: RemotingCommand,
    ) -> Reply:
        """Appends the messages of a batch whose ids, the elements of `ids`, are new. Returns the response.

        `known` has the positions of messages whose ids are known already. Other requests may have stored more ids since
        then.
        """
        topic, deduplication = batch.queue.topic, self._deduplication
        # A master that was replaced must not answer, because the log of the new one may lack the known messages.
        self._appender.check()
        if self._appender.store.find_queue(topic, batch.queue.queue_id) is not batch.queue:
            # The topic was deleted since the request arrived, and the known messages with it.
            return self.send(connection, request)
        #: Index in the batch of each message to store, and of the first one with an id.
        new, index_of = list[int](), dict[bytes, int]()
        known_before = len(known)
        for index, message_id in enumerate(ids):
            if message_id:
                if message_id in known or message_id in index_of:
                    continue
                if (first := deduplication.find(topic, message_id)) is not None:
                    known[message_id] = _position(first, batch)
                    if len(known) - known_before > _BATCH_STEP:
                        # Another request has just stored the same messages: each record takes time.
                        steps = self._store_new(batch, ids, waits, connection, request)
                        return self._long_requests.run(connection, request, steps)
                    continue
                index_of[message_id] = index
            new.append(index)
        deduplication.check_capacity(len(index_of))
        queue_offset, stored = batch.queue.max_offset, _part_of(batch, new)
        try:
            offsets = self._appender.append_batch(stored) if new else []
        except StoreBusy:
            again = partial(self._append_once, batch, ids, known, waits)
            self._preallocation_waits.hold(connection, request, again)
            return None
        if (received := self._appender.received) is not None and new:
            kind = message_type(decode_send_request(request).properties)
            received.add(topic, kind, sum(stored.sizes), len(new))
        places: dict[int, _Position] = {
            index: (queue_offset + i, offset) for i, (index, offset) in enumerate(zip(new, offsets, strict=True))
        }
        for message_id, index in index_of.items():
            deduplication.stored(topic, message_id, places[index][1])
        if len(new) < len(ids):
            deduplication.count_repeated(topic, len(ids) - len(new))
        for index, message_id in enumerate(ids):
            if message_id in known:
                places[index] = known[message_id]
            elif index not in places:
                places[index] = places[index_of[message_id]]
        return self._answer_once([places[index] for index in range(len(ids))], batch, waits, connection, request)

    def _answer_once(
        self,
        places: Sequence[_Position],
        batch: RecordBatch,
        waits: bool,
        connection: Connection,
        request: RemotingCommand,
    ) -> Reply:
        """Returns the response with the queue offsets and physical offsets of all messages, or None if it waits."""
        offsets = [queue_offset for queue_offset, _ in places]
        are_successive = offsets[0] >= 0 and offsets == list(range(offsets[0], offsets[0] + len(offsets)))
        response = RemotingCommand.response(
            header=SendMessageResponseHeader(
                msg_id=encode_offset_message_ids(self._appender.store_host, [offset for _, offset in places]),
                queue_id=batch.queue.queue_id,
                queue_offset=offsets[0],
                msg_region=self._config.region_id,
                trace_on="true" if self._config.trace_on else "false",
                gantry_offsets=None if are_successive else ",".join(map(str, offsets)),
            )
        )
        if waits:
            # A repeated message must wait for the flush and the replicas, too.
            timeout_ms = decode_send_request(request).options.timeout_ms
            end = self._appender.store.max_physical_offset
            self._pending_responses.reply(connection, request, end, response, timeout_ms=timeout_ms)
            return None
        return response


def _position(first: Record, batch: RecordBatch) -> _Position:
    """Returns the position of a known message. Its queue offset is -1 if it is not in the queue of the batch."""
    is_here = first.topic == batch.queue.topic_bytes and first.queue_id == batch.queue.queue_id
    return first.queue_offset if is_here else -1, first.physical_offset


def _part_of(batch: RecordBatch, indexes: Sequence[int]) -> RecordBatch:
    """Returns a copy of a batch with the records at these indexes."""
    part = copy(batch)
    part.records = [batch.records[index] for index in indexes]
    part.sizes = [batch.sizes[index] for index in indexes]
    part.tags_codes = [batch.tags_codes[index] for index in indexes]
    return part


def _with_keys(request: RemotingCommand, topic: str, steps: Steps) -> Steps:
    """Checks the keys of all messages of a batch before the steps that store them. Raises RequestRefused."""
    for count, (_, _, properties) in enumerate(decode_batch(request.body, 0), 1):
        check_key(topic, properties)
        if not count % _BATCH_STEP:
            yield
    return (yield from steps)
