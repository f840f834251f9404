"""POP_MESSAGE: messages for consumers without queues of their own (`PopMessageProcessor`), and PEEK_MESSAGE.

Whoever asks gets the next messages of any queue, and nobody else gets them for the invisible time. What is handed out
is in a `PopBuffer`, or with `order` in `OrderlyPops`; a pop runs in one go, so no two see the same offset.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from struct import error as StructError

from gantrymq import clock
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.consumer_offsets import ConsumerOffsets
from gantrymq.broker.deliveries import Deliveries
from gantrymq.broker.message_filter import MessageFilter, MessageFilters
from gantrymq.broker.pop.buffer import PopBuffer
from gantrymq.broker.pop.orderly import OrderlyPops
from gantrymq.broker.pop.queues import PopQueues
from gantrymq.broker.pop.waiting import LineKey, PopWaiting, Waiter
from gantrymq.broker.pull import DEFAULT_PULL_BYTES, MAX_SUSPEND_MS
from gantrymq.errors import IllegalMessage, RequestRefused
from gantrymq.protocol import properties as names
from gantrymq.protocol.bodies.heartbeat import SUBSCRIBE_ALL
from gantrymq.protocol.bodies.pop import MAX_MESSAGES, Checkpoint
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.pop import (
    INIT_FROM_MIN,
    PeekMessageRequestHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from gantrymq.protocol.properties import decode_properties, encode_properties
from gantrymq.protocol.receipt_handle import (
    ORDERLY_REVIVE_QUEUE,
    ReceiptHandle,
    message_offset_entry,
    order_count_entries,
    retry_flag,
    start_offset_entry,
)
from gantrymq.protocol.record import decode_records, encode_again, unpacker
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.get_result import GetResult, GetStatus
from gantrymq.store.message_store import MessageStore

#: No request may be older than it was willing to wait by more, ms.
_MAX_LATE_MS = 500

_size_and_offset = unpacker("size", "queue_offset")

_CORRECTED = (GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY, GetStatus.OFFSET_FOUND_NULL)
_SKIPPED = (GetStatus.NO_MATCHED_MESSAGE, GetStatus.MESSAGE_WAS_REMOVING)


@dataclass(slots=True)
class _Batch:
    """What one request has come to; `rest` is how many messages there are beyond it."""

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


class Popping:
    """The pop and peek requests of one broker."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        offsets: ConsumerOffsets,
        queues: PopQueues,
        filters: MessageFilters,
        buffer: PopBuffer,
        orderly: OrderlyPops,
        waiting: PopWaiting,
        deliveries: Deliveries,
        revive_queue_nums: int,
    ) -> None:
        self._config = config
        self._store = store
        self._offsets = offsets
        self._queues = queues
        self._filters = filters
        self._buffer = buffer
        self._orderly = orderly
        self._waiting = waiting
        self._deliveries = deliveries
        self._loop = asyncio.get_running_loop()
        self._revive_queue_ids = itertools.cycle(range(revive_queue_nums))
        self._wake_timers: dict[LineKey, asyncio.TimerHandle] = {}

    def handlers(self) -> dict[int, RequestHandler]:
        return {RequestCode.POP_MESSAGE: self.pop, RequestCode.PEEK_MESSAGE: self.peek}

    def stop(self) -> None:
        for timer in self._wake_timers.values():
            timer.cancel()

    # -- requests -----------------------------------------------------------------------------------------------

    def pop(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Answers with messages, or holds the request until there are some."""
        header = request.read_header(PopMessageRequestHeader)
        now_ms = clock.now_ms()
        header.born_time = header.born_time or now_ms
        if now_ms - header.born_time - header.poll_time > _MAX_LATE_MS:
            raise RequestRefused(
                ResponseCode.POLLING_TIMEOUT,
                f"the broker[{self._config.broker_ip1}] pop message is timeout too much",
            )
        if not 1 <= header.max_msg_nums <= MAX_MESSAGES:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"the broker[{self._config.broker_ip1}] pop message's num is {header.max_msg_nums}: 1 to "
                f"{MAX_MESSAGES}",
            )
        self._queues.check_invisible_time(header.invisible_time)
        topic = self._queues.readable(header.topic, header.consumer_group, header.queue_id)
        wanted = self._filters.of_expression(
            header.consumer_group, header.topic, header.exp or SUBSCRIBE_ALL, header.exp_type
        )
        reply = None if self._waiting.is_stopped else self._attempt(header, topic, wanted, request)
        if reply is not None:
            return reply
        return self._hold(connection, request, header, topic, wanted)

    def peek(self, connection: Connection, request: RemotingCommand) -> Reply:
        """What the group would pop next, which it still can."""
        header = request.read_header(PeekMessageRequestHeader)
        topic = self._queues.readable(header.topic, header.consumer_group, header.queue_id)
        batch = _Batch(min(header.max_msg_nums, MAX_MESSAGES), clock.now_ms(), 0)
        for queue in self._in_turn(topic, header.consumer_group, header.queue_id):
            offset = self._queues.position(queue, header.consumer_group)
            offset = queue.min_offset if offset is None else offset
            batch.rest += queue.max_offset - offset
            if batch.count < batch.wanted:
                found = self._store.get(queue, offset, batch.wanted - batch.count, DEFAULT_PULL_BYTES)
                if found.status in _CORRECTED:
                    found = self._store.get(
                        queue, found.next_begin_offset, batch.wanted - batch.count, DEFAULT_PULL_BYTES
                    )
                batch.count += found.message_count
                batch.size += found.size
                batch.buffers += found.buffers
        code = ResponseCode.SUCCESS if batch.count else ResponseCode.PULL_NOT_FOUND
        return self._answer(request, code, batch, 0, is_orderly=False)

    # -- answering and waiting ----------------------------------------------------------------------------------

    def _attempt(
        self, header: PopMessageRequestHeader, topic: TopicConfig, wanted: MessageFilter, request: RemotingCommand
    ) -> Reply:
        """The answer, or None when there are no messages."""
        batch = self._pop(header, topic, wanted)
        if batch.rest > 0:
            # Others who wait for the same may have the rest.
            self._waiting.wake_soon((header.topic, header.consumer_group, header.queue_id))
        if not batch.count:
            return None
        return self._answer(request, ResponseCode.SUCCESS, batch, header.invisible_time, is_orderly=bool(header.order))

    def _hold(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: PopMessageRequestHeader,
        topic: TopicConfig,
        wanted: MessageFilter,
    ) -> Reply:
        def attempt(expired: bool) -> bool:
            if connection.is_closed:
                return True
            # A peer that doesn't take what is sent to it may wait with any number of pops: no more is gathered for it.
            is_full = connection.is_full
            reply = None if is_full else self._attempt(header, topic, wanted, request)
            if reply is None and (expired or is_full):
                reply = self._nothing(request, header, ResponseCode.POLLING_TIMEOUT)
            if reply is None:
                return False
            connection.reply(request, reply)
            return True

        left_ms = min(header.born_time + header.poll_time - clock.now_ms(), header.poll_time, MAX_SUSPEND_MS)
        if header.poll_time <= 0 or left_ms <= 0 or self._waiting.is_stopped:
            return self._nothing(request, header, ResponseCode.POLLING_TIMEOUT)
        key = (header.topic, header.consumer_group, header.queue_id)
        queues = self._queues.watched(topic, header.consumer_group, header.queue_id)
        waiter = Waiter(connection, request, self._loop.time() + left_ms / 1000, attempt)
        if not self._waiting.hold(key, queues, waiter):
            return self._nothing(request, header, ResponseCode.POLLING_FULL)
        return None

    def _nothing(self, request: RemotingCommand, header: PopMessageRequestHeader, code: int) -> Reply:
        batch = _Batch(0, clock.now_ms(), ORDERLY_REVIVE_QUEUE if header.order else 0)
        return self._answer(request, code, batch, header.invisible_time, is_orderly=bool(header.order))

    def _answer(
        self, request: RemotingCommand, code: int, batch: _Batch, invisible_time: int, *, is_orderly: bool
    ) -> list[bytes | memoryview]:
        response = RemotingCommand.response(
            code,
            GetStatus.FOUND.name if batch.count else GetStatus.NO_MESSAGE_IN_QUEUE.name,
            PopMessageResponseHeader(
                pop_time=batch.pop_time,
                invisible_time=invisible_time,
                revive_qid=batch.revive_queue_id,
                rest_num=batch.rest,
                start_offset_info=";".join(batch.start_offsets),
                msg_offset_info=";".join(batch.message_offsets),
                order_count_info=";".join(batch.order_counts) if is_orderly else None,
            ),
        )
        response.opaque = request.opaque
        response.serialize_type = request.serialize_type
        return [response.encode_head(batch.size), *batch.buffers]

    def wake_when_free(self, topic: str, group: str, queue_id: int) -> None:
        """Wakes who waits for an orderly queue now or, while it is blocked, when its messages are visible again."""
        if self._waiting.is_stopped:
            return
        key = (topic, group, queue_id)
        timer = self._wake_timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        info = self._orderly.find(topic, group, queue_id)
        left_ms = 0 if info is None else info.blocked_until(0) - clock.now_ms()
        self._wake_timers[key] = self._loop.call_later(max(left_ms, 0) / 1000, self._wake, key)

    def _wake(self, key: LineKey) -> None:
        del self._wake_timers[key]
        topic, group, _ = key
        self._waiting.wake((topic, group, -1))
        self._waiting.wake(key)

    # -- popping ------------------------------------------------------------------------------------------------

    def _pop(self, header: PopMessageRequestHeader, topic: TopicConfig, wanted: MessageFilter) -> _Batch:
        revive_queue_id = ORDERLY_REVIVE_QUEUE if header.order else next(self._revive_queue_ids)
        batch = _Batch(header.max_msg_nums, clock.now_ms(), revive_queue_id)
        retry = not header.order
        handed_out_from = ""
        for queue in self._in_turn(topic, header.consumer_group, header.queue_id, retry=retry):
            is_retry = queue.topic != header.topic
            if is_retry and handed_out_from not in ("", queue.topic):
                # In one answer there is but one retry topic: old clients don't tell v1 and v2 apart.
                continue
            before = batch.count
            self._pop_queue(batch, header, queue, wanted)
            if is_retry and batch.count > before:
                handed_out_from = queue.topic
        return batch

    def _in_turn(self, topic: TopicConfig, group: str, queue_id: int, *, retry: bool = True) -> Iterable[ConsumeQueue]:
        """The queues in the order in which they are asked: sometimes those of the retry topics first."""
        chance = random.randrange(100)
        own = self._queues.of_topic(topic, queue_id, chance)
        if not retry:
            return own
        retry_topics = self._queues.retry_topics(topic.topic_name, group)
        if chance % 2:
            retry_topics.reverse()
        back = [queue for retry_topic in retry_topics for queue in self._queues.of_retry_topic(retry_topic, chance)]
        return [*back, *own] if chance < self._config.pop_from_retry_probability else [*own, *back]

    def _pop_queue(
        self, batch: _Batch, header: PopMessageRequestHeader, queue: ConsumeQueue, wanted: MessageFilter
    ) -> None:
        group = header.consumer_group
        offset = self._queues.position(queue, group)
        if offset is None:
            offset = self._first_offset(queue, header.init_mode)
            self._offsets.commit(group, queue.topic, queue.queue_id, offset)
        if header.order and self._is_blocked(header, queue, offset):
            return
        left = batch.wanted - batch.count
        if left <= 0:
            batch.rest += max(0, queue.max_offset - offset)
            return
        found = self._store.get(queue, offset, left, DEFAULT_PULL_BYTES, *wanted)
        if found.status in _CORRECTED:
            is_forward = found.next_begin_offset > offset
            offset = found.next_begin_offset
            if is_forward and not header.order:
                # Not past what is handed out and only in memory.
                self._buffer.skip((queue.topic, group, queue.queue_id), offset)
            else:
                self._offsets.commit(group, queue.topic, queue.queue_id, offset)
            found = self._store.get(queue, offset, left, DEFAULT_PULL_BYTES, *wanted)
        if found.message_count:
            self._hand_out(batch, header, queue, offset, found)
        elif found.status in _SKIPPED and found.next_begin_offset > offset:
            if header.order:
                self._offsets.commit(group, queue.topic, queue.queue_id, found.next_begin_offset)
            else:
                self._buffer.skip((queue.topic, group, queue.queue_id), found.next_begin_offset)
        batch.rest += max(0, queue.max_offset - found.next_begin_offset)

    def _hand_out(
        self, batch: _Batch, header: PopMessageRequestHeader, queue: ConsumeQueue, start: int, found: GetResult
    ) -> None:
        group = header.consumer_group
        offsets = [offset for buffer in found.buffers for offset in _offsets_in(buffer)]
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
            )
            self._offsets.commit(group, queue.topic, queue.queue_id, start)
            batch.order_counts.append(
                order_count_entries(queue.topic, queue.queue_id, info.consumed_counts, len(offsets))
            )
            self.wake_when_free(queue.topic, group, queue.queue_id)
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
            )
            self._buffer.add(checkpoint, batch.revive_queue_id, found.next_begin_offset, batch.pop_time)
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
            buffers = [record for buffer in found.buffers for record in _as_first_sent(buffer, header.topic, handle)]
        batch.buffers += buffers
        batch.size += sum(map(len, buffers))
        self._deliveries.add(queue, group, found)
        batch.count += len(offsets)

    def _is_blocked(self, header: PopMessageRequestHeader, queue: ConsumeQueue, offset: int) -> bool:
        group = header.consumer_group
        if self._orderly.was_moved(queue.topic, group, queue.queue_id, offset):
            self._orderly.clear(queue.topic, group, queue.queue_id)
        return self._orderly.is_blocked(
            queue.topic, group, queue.queue_id, header.attempt_id, header.invisible_time, clock.now_ms()
        )

    def _first_offset(self, queue: ConsumeQueue, init_mode: int) -> int:
        """Where a new group begins: at the oldest message, or at the newest one."""
        if init_mode == INIT_FROM_MIN or queue.topic.startswith(RETRY_TOPIC_PREFIX):
            return queue.min_offset
        if queue.min_offset <= 0 and self._config.init_pop_offset_by_check_msg_in_mem:
            unit = queue.unit(0)
            if unit is not None and self._store.max_physical_offset - unit[0] <= self._store.in_memory_bytes:
                return 0
        return max(0, queue.max_offset - 1)


def _offsets_in(buffer: memoryview) -> Iterable[int]:
    """The queue offsets of the records in a buffer."""
    at = 0
    while at < len(buffer):
        size, offset = _size_and_offset(buffer, at)
        yield offset
        at += size


def _as_first_sent(buffer: memoryview, topic: str, handle: ReceiptHandle) -> Iterable[bytes]:
    """The records of a retry topic under the name of the first one, with their receipt handle as POP_CK.

    One whose properties have no room for it keeps its retry topic, from which clients make the handle themselves.
    """
    at = 0
    for record in decode_records(buffer, check_crc=False):
        original = bytes(buffer[at : at + record.size])
        at += record.size
        fields = decode_properties(record.properties)
        fields[names.POP_CK] = str(handle._replace(queue_offset=record.queue_offset))
        try:
            yield encode_again(record._replace(topic=topic.encode(), properties=encode_properties(fields)))
        except (StructError, IllegalMessage):
            yield original
