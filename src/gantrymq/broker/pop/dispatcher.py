"""Selects the messages for a pop request and records them as in flight (`PopMessageProcessor.popMsgFromQueue`).

A pop returns the next messages of any queue of the topic. No other member of the group receives them until the
invisible duration ends. A `PopBuffer` stores the in-flight messages, or `OrderlyPops` if `order` is set. A pop runs
without interruption, so two pops never return the same offset.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from struct import error as StructError

from gantrymq.broker.context import BrokerContext
from gantrymq.broker.pop.buffer import PopBuffer
from gantrymq.broker.pop.orderly import OrderlyPops
from gantrymq.broker.pop.queues import PopQueues
from gantrymq.broker.pull import DEFAULT_PULL_BYTES
from gantrymq.broker.tables import MessageFilter
from gantrymq.errors import GantryError, IllegalMessage, RecordError
from gantrymq.logs import peer_log
from gantrymq.protocol import properties as names
from gantrymq.protocol.bodies.pop import Checkpoint
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.headers.pop import PeekMessageRequestHeader, PopMessageRequestHeader
from gantrymq.protocol.properties import decode_properties, encode_properties
from gantrymq.protocol.receipt_handle import (
    ORDERLY_REVIVE_QUEUE,
    ReceiptHandle,
    message_offset_entry,
    order_count_entries,
    retry_flag,
    start_offset_entry,
)
from gantrymq.protocol.record import FIXED_SIZE_V4, decode_record, encode_again, unpacker
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.get_result import GetResult, GetStatus
from gantrymq.system import clock, randomness
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

_size_and_offset = unpacker("size", "queue_offset")

#: Longest time that one attempt spends on matching records with a filter, in seconds.
_MATCHING_S = 0.003

_CORRECTED = (GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY, GetStatus.OFFSET_FOUND_NULL)
_SKIPPED = (GetStatus.NO_MATCHED_MESSAGE, GetStatus.MESSAGE_WAS_REMOVING)


@dataclass(slots=True)
class Batch:
    """The messages that a request has found so far. `rest` is the number of messages that are still in the queues."""

    wanted: int
    pop_time: int
    revive_queue_id: int
    rest: int = 0
    count: int = 0
    size: int = 0
    buffers: list[bytes | memoryview] = field(default_factory=list)
    start_offsets: list[str] = field(default_factory=list)
    message_offsets: list[str] = field(default_factory=list)
    order_counts: list[str] = field(default_factory=list)


class PopDispatcher:
    """Selects messages for the pops and peeks of one broker."""

    def __init__(
        self,
        context: BrokerContext,
        *,
        queues: PopQueues,
        buffer: PopBuffer,
        orderly: OrderlyPops,
        revive_queue_nums: int,
    ) -> None:
        self._config = context.config
        self._store = context.store
        self._offsets = context.offsets
        self._queues = queues
        self._buffer = buffer
        self._orderly = orderly
        self._deliveries = context.deliveries
        self._stats = context.stats
        self._revive_queue_ids = itertools.cycle(range(revive_queue_nums))

    def pop(self, header: PopMessageRequestHeader, topic: TopicConfig, wanted: MessageFilter, most: int) -> Batch:
        """Returns the next messages for a request, `most` at most.

        Raises GantryError if no message can be returned, for example because its checkpoint cannot be stored. If some
        queues have returned messages before the error, returns these messages instead.
        """
        revive_queue_id = ORDERLY_REVIVE_QUEUE if header.order else next(self._revive_queue_ids)
        batch = Batch(most, clock.now_ms(), revive_queue_id)
        retry = not header.order
        handed_out_from = ""
        matching_ends = monotonic() + _MATCHING_S
        for queue in self._in_turn(topic, header.consumer_group, header.queue_id, retry=retry):
            is_retry = queue.topic != header.topic
            if is_retry and handed_out_from not in ("", queue.topic):
                # A response contains messages of one retry topic only, because old clients do not distinguish v1 and
                # v2.
                continue
            if wanted.matches is not None and monotonic() >= matching_ends:
                # This attempt adds the other queues to `rest` only. The next attempt reads them.
                batch.wanted = batch.count
            before = batch.count
            try:
                self._pop_queue(batch, header, queue, wanted)
            except GantryError as e:
                if not batch.count:
                    raise
                log.warning("a pop of %d messages leaves out %r: %s", batch.count, queue, e)
                break
            if is_retry and batch.count > before:
                handed_out_from = queue.topic
        return batch

    def peek(self, header: PeekMessageRequestHeader, topic: TopicConfig, limit: int) -> Batch:
        """Returns the messages that the group would pop next, without popping them."""
        batch = Batch(limit, clock.now_ms(), 0)
        for queue in self._in_turn(topic, header.consumer_group, header.queue_id):
            offset = self._queues.position(queue, header.consumer_group)
            offset = queue.min_offset if offset is None else max(offset, queue.min_offset)
            batch.rest += max(0, queue.max_offset - offset)
            if batch.count < batch.wanted:
                found = self._get(queue, offset, batch.wanted - batch.count)
                if found.status in _CORRECTED:
                    found = self._get(queue, found.next_begin_offset, batch.wanted - batch.count)
                batch.count += found.message_count
                batch.size += found.size
                batch.buffers += found.buffers
        return batch

    def _in_turn(self, topic: TopicConfig, group: str, queue_id: int, *, retry: bool = True) -> Iterable[ConsumeQueue]:
        """Returns the queues in the order in which they are read.

        The probability that the retry topics come first is `popFromRetryProbability` (percent). Otherwise they come
        last. Pops by priority use a separate probability, and read the queue with the highest priority first.
        """
        chance = randomness.randrange(100)
        if not retry:
            return self._queues.of_topic(topic, queue_id, chance)
        retry_topics = self._queues.retry_topics(topic.topic_name, group)
        if chance % 2:
            retry_topics.reverse()
        retry_first, first = self._config.pop_from_retry_probability, chance
        is_descending = False
        if self._queues.is_by_priority(topic, group, chance):
            retry_first, first = self._config.pop_from_retry_probability_for_priority, 0
            is_descending = self._config.priority_order_asc
        own = self._queues.of_topic(topic, queue_id, first)
        back = [self._queues.of_retry_topic(retry_topic, first) for retry_topic in retry_topics]
        if is_descending:
            for queues in (own, *back):
                queues.reverse()
        returned = [queue for queues in back for queue in queues]
        return [*returned, *own] if chance < retry_first else [*own, *returned]

    def _get(self, queue: ConsumeQueue, offset: int, limit: int, wanted: MessageFilter | None = None) -> GetResult:
        return self._store.get(queue, offset, limit, DEFAULT_PULL_BYTES, *(wanted or ()))

    def _pop_queue(
        self, batch: Batch, header: PopMessageRequestHeader, queue: ConsumeQueue, wanted: MessageFilter
    ) -> None:
        group = header.consumer_group
        offset = self._queues.position(queue, group)
        if offset is None:
            offset = self._queues.first_offset(queue, header.init_mode)
            self._offsets.commit(group, queue.topic, queue.queue_id, offset)
        if header.order and self._is_blocked(header, queue, offset):
            return
        left = batch.wanted - batch.count
        if left <= 0:
            batch.rest += max(0, queue.max_offset - max(offset, queue.min_offset))
            return
        begin = monotonic()
        found = self._get(queue, offset, left, wanted)
        if found.status in _CORRECTED:
            is_forward = found.next_begin_offset > offset
            offset = found.next_begin_offset
            if is_forward and not header.order:
                # The group's offset must not pass checkpoints that are only in memory.
                self._buffer.skip((queue.topic, group, queue.queue_id), offset)
            else:
                self._offsets.commit(group, queue.topic, queue.queue_id, offset)
            found = self._get(queue, offset, left, wanted)
        records = records_in(found)
        if len(records) != found.message_count:
            # One record is damaged. If the records are read one by one, the damaged record is detected and skipped.
            found = self._get(queue, offset, 1, wanted)
            records = records_in(found)
        self._stats.read(queue.topic, group, found, monotonic() - begin)
        if records:
            self._hand_out(batch, header, queue, offset, found, records)
        elif found.status in _SKIPPED and found.next_begin_offset > offset:
            if header.order:
                self._offsets.commit(group, queue.topic, queue.queue_id, found.next_begin_offset)
            else:
                self._buffer.skip((queue.topic, group, queue.queue_id), found.next_begin_offset)
        if found.status is not GetStatus.OFFSET_OVERFLOW_ONE:
            # Later messages are not confirmed yet. Their confirmation wakes the waiting requests.
            batch.rest += max(0, queue.max_offset - found.next_begin_offset)

    def _hand_out(
        self,
        batch: Batch,
        header: PopMessageRequestHeader,
        queue: ConsumeQueue,
        start: int,
        found: GetResult,
        records: list[tuple[int, bytes | memoryview]],
    ) -> None:
        group = header.consumer_group
        offsets = [offset for offset, _ in records]
        if header.order:
            info = self._orderly.popped(
                queue.topic,
                group,
                queue.queue_id,
                start,
                offsets,
                header.attempt_id,
                header.invisible_time,
                batch.pop_time,
                self._store.max_physical_offset,
            )
            self._offsets.commit(group, queue.topic, queue.queue_id, start)
            batch.order_counts.append(
                order_count_entries(queue.topic, queue.queue_id, info.consumed_counts, len(offsets))
            )
        else:
            checkpoint = Checkpoint(
                start_offset=start,
                pop_time=batch.pop_time,
                invisible_time=header.invisible_time,
                count=len(offsets),
                queue_id=queue.queue_id,
                topic=queue.topic,
                group=group,
                diffs=[offset - start for offset in offsets],
                broker_name=self._config.broker_name,
                log_end=self._store.max_physical_offset,
            )
            self._buffer.add(checkpoint, batch.revive_queue_id, found.next_begin_offset, batch.pop_time)
            self._stats.checkpointed(header.topic, group)
        batch.start_offsets.append(start_offset_entry(queue.topic, queue.queue_id, start))
        batch.message_offsets.append(message_offset_entry(queue.topic, queue.queue_id, offsets))
        buffers: list[bytes | memoryview] = list(found.buffers)
        if queue.topic.startswith(RETRY_TOPIC_PREFIX) and queue.topic != header.topic:
            handle = ReceiptHandle(
                start,
                batch.pop_time,
                header.invisible_time,
                batch.revive_queue_id,
                retry_flag(queue.topic),
                self._config.broker_name,
                queue.queue_id,
            )
            buffers = [_as_first_sent(record, header.topic, handle) for _, record in records]
        batch.buffers += buffers
        batch.size += sum(map(len, buffers))
        self._deliveries.add(queue, group, found)
        batch.count += len(offsets)

    def _is_blocked(self, header: PopMessageRequestHeader, queue: ConsumeQueue, offset: int) -> bool:
        group = header.consumer_group
        batch = self._orderly.find(queue.topic, group, queue.queue_id)
        # Another master may have reset the group while this broker was a slave.
        is_old = batch is not None and self._offsets.is_old_pop(group, queue.topic, queue.queue_id, batch.log_end)
        if is_old or self._orderly.was_moved(queue.topic, group, queue.queue_id, offset):
            self._orderly.discard(queue.topic, group, [queue.queue_id])
        return self._orderly.is_blocked(
            queue.topic, group, queue.queue_id, header.attempt_id, header.invisible_time, clock.now_ms()
        )


def records_in(found: GetResult) -> list[tuple[int, bytes | memoryview]]:
    """Returns (queue offset, record) of each message found, up to the first damaged record."""
    records: list[tuple[int, bytes | memoryview]] = []
    last = -1
    for buffer in found.buffers:
        at = 0
        while at < len(buffer):
            size, offset = _size_and_offset(buffer, at)
            if not FIXED_SIZE_V4 <= size <= len(buffer) - at or not last < offset < found.next_begin_offset:
                return records
            records.append((offset, buffer[at : at + size]))
            last = offset
            at += size
    return records


def _as_first_sent(buffer: bytes | memoryview, topic: str, handle: ReceiptHandle) -> bytes | memoryview:
    """Returns a retry topic's record, but with the original topic, and with the receipt handle in POP_CK.

    If the property does not fit, the record stays unchanged. Clients then build the handle from the name of the retry
    topic.
    """
    try:
        record = decode_record(buffer, check_crc=False)
        fields = decode_properties(record.properties)
        fields[names.POP_CK] = str(handle._replace(queue_offset=record.queue_offset))
        return encode_again(record._replace(topic=topic.encode(), properties=encode_properties(fields)))
    except (StructError, IllegalMessage, RecordError):
        return buffer
