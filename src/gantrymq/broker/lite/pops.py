"""LitePops: POP_LITE_MESSAGE, and acknowledgements of messages of lite topics (`PopLiteMessageProcessor`).

A pop returns messages of the client's lite topics that are ready. Each lite topic has one batch in flight for a group,
as in pops in order. The batches are only in memory: after a restart, their messages are delivered again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from struct import error as StructError

from gantrymq.broker.context import BrokerContext
from gantrymq.broker.lite.dispatcher import LiteDispatcher, wait_key
from gantrymq.broker.lite.subscriptions import LiteClient, LiteSubscriptions
from gantrymq.broker.pop import OrderlyPops, Outcome, PopLongPolling, PopQueues, QueueKey, Waiter
from gantrymq.broker.pull import DEFAULT_PULL_BYTES, MAX_SUSPEND_MS, check_broker, readable_topic
from gantrymq.broker.tables import SubscriptionGroupConfig, is_lite
from gantrymq.errors import GantryError, RecordError, RequestRefused
from gantrymq.logs import peer_log
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.lite import PopLiteMessageRequestHeader, PopLiteMessageResponseHeader
from gantrymq.protocol.headers.pop import (
    INIT_FROM_MAX,
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
)
from gantrymq.protocol.lite_topic import LITE_BIND_TOPIC, light_queue_of, lite_topic_problem
from gantrymq.protocol.multi_dispatch import LIGHT_QUEUE_ID, queue_offsets
from gantrymq.protocol.receipt_handle import ORDERLY_REVIVE_QUEUE, ReceiptHandle
from gantrymq.protocol.record import FIXED_SIZE_V4, topic_and_properties, unpacker
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.remoting.responses import error_response
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.get_result import GetResult, GetStatus
from gantrymq.system import clock
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

_size = unpacker("size")


@dataclass(slots=True)
class _Batch:
    """The messages that a pop has found so far, each with its number of earlier deliveries."""

    pop_time: int
    count: int = 0
    size: int = 0
    buffers: list[bytes | memoryview] = field(default_factory=list)
    delivered: list[int] = field(default_factory=list)


class LitePops:
    """Handles the pops of lite topics of one broker."""

    def __init__(
        self,
        context: BrokerContext,
        *,
        subscriptions: LiteSubscriptions,
        dispatcher: LiteDispatcher,
        orderly: OrderlyPops,
        waiting: PopLongPolling,
        queues: PopQueues,
    ) -> None:
        self._config = context.config
        self._store = context.store
        self._topics = context.topics
        self._groups = context.groups
        self._offsets = context.offsets
        self._stats = context.stats
        self._deliveries = context.deliveries
        self._rate_limits = context.rate_limits
        self._subscriptions = subscriptions
        self._dispatcher = dispatcher
        self._orderly = orderly
        self._waiting = waiting
        self._queues = queues
        self._loop = asyncio.get_running_loop()

    def handlers(self) -> dict[int, RequestHandler]:
        return {RequestCode.POP_LITE_MESSAGE: self.pop}

    # -- pops ---------------------------------------------------------------------------------------------------

    def pop(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Answers POP_LITE_MESSAGE, or holds it until messages arrive."""
        header = request.read_header(PopLiteMessageRequestHeader)
        header.born_time = header.born_time or clock.now_ms()
        self._queues.check_poll_time(header.born_time, header.poll_time)
        self._queues.check_count(header.max_msg_num)
        self._queues.check_invisible_time(header.invisible_time)
        self._queues.check_attempt_id(header.attempt_id)
        self._check(header)
        client = self._subscriptions.find(header.client_id)
        if client is None or (client.group, client.topic) != (header.consumer_group, header.topic):
            # It has not subscribed yet, or its subscriptions have expired. It repeats them soon.
            return self._hold(connection, request, header, (header.client_id, header.consumer_group, LIGHT_QUEUE_ID))
        client.connection = connection
        reply = None if self._waiting.is_stopped else self._attempt(connection, request, header, client)
        return reply if reply is not None else self._hold(connection, request, header, wait_key(client))

    def _check(self, header: PopLiteMessageRequestHeader) -> None:
        """Raises RequestRefused if the group may not read the lite topics of the topic."""
        check_broker(self._config, "pop")
        topic = readable_topic(self._topics, header.topic, "peeking")
        if not is_lite(topic.attributes):
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"the topic [{header.topic}] message type not match: LITE"
            )
        check_lite_group(self._groups.find(header.consumer_group), header.consumer_group, header.topic)

    def _attempt(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: PopLiteMessageRequestHeader,
        client: LiteClient,
    ) -> Reply:
        """Returns the response, or None if there are no messages. Raises RequestRefused above a rate limit."""
        client.accessed()
        limits = self._rate_limits.admit_delivery(self._groups.find(client.group), connection)
        most = header.max_msg_num if limits is None else limits.most(header.max_msg_num, 1)[0]
        batch = _Batch(clock.now_ms())
        for name in list(client.ready):
            if batch.count >= most:
                break
            client.ready.pop(name, None)
            queue = client.queues.get(name)
            if queue is None:
                continue
            try:
                self._pop_queue(batch, header, queue, most - batch.count)
            except GantryError as e:
                client.ready[name] = None
                if not batch.count:
                    raise
                log.warning("a pop of %d messages leaves out %r: %s", batch.count, queue, e)
                break
        if not batch.count:
            return None
        client.consumed_ms = clock.now_ms()
        if limits is not None:
            limits.take(batch.count, batch.size)
        if client.ready:
            # Another waiting request of the client pops the rest.
            self._waiting.wake(wait_key(client))
        return _answer(request, ResponseCode.SUCCESS, header, batch)

    def _pop_queue(self, batch: _Batch, header: PopLiteMessageRequestHeader, queue: ConsumeQueue, most: int) -> None:
        """Adds the next messages of a light queue to the batch, unless messages are in flight. Raises GantryError."""
        group, name = header.consumer_group, queue.topic
        if self._orderly.is_blocked(
            name, group, LIGHT_QUEUE_ID, header.attempt_id, header.invisible_time, batch.pop_time
        ):
            return
        offset = self._position(queue, group)
        began = monotonic()
        found = self._get(queue, offset, most)
        offsets = _light_offsets(queue, found)
        if len(offsets) != found.message_count:
            # One record is damaged. If the records are read one by one, the damaged record is detected and skipped.
            found = self._get(queue, offset, 1)
            offsets = _light_offsets(queue, found)
        self._stats.read(header.topic, group, found, monotonic() - began)
        if not offsets:
            if found.next_begin_offset != offset:
                self._offsets.commit(group, name, LIGHT_QUEUE_ID, found.next_begin_offset)
                if self._dispatcher.has_messages(queue, group):
                    self._dispatcher.dispatch(name, group)
            return
        info = self._orderly.popped(
            name,
            group,
            LIGHT_QUEUE_ID,
            offset,
            offsets,
            header.attempt_id,
            header.invisible_time,
            batch.pop_time,
            self._store.max_physical_offset,
        )
        self._offsets.commit(group, name, LIGHT_QUEUE_ID, offset)
        self._dispatcher.popped(name, group, batch.pop_time + header.invisible_time)
        self._deliveries.add(queue, group, found)
        batch.delivered += [info.consumed_counts.get(queue_offset, 0) for queue_offset in offsets]
        batch.buffers += found.buffers
        batch.size += found.size
        batch.count += len(offsets)

    def _position(self, queue: ConsumeQueue, group: str) -> int:
        """Returns the offset at which the next pop begins."""
        offset = self._offsets.query(group, queue.topic, LIGHT_QUEUE_ID)
        if offset is None:
            return self._queues.first_offset(queue, INIT_FROM_MAX)
        # The lite topic was deleted and has new messages, or the log has lost its end.
        return queue.min_offset if not queue.min_offset <= offset <= queue.max_offset else offset

    def _get(self, queue: ConsumeQueue, offset: int, most: int) -> GetResult:
        return self._store.get(queue, offset, most, DEFAULT_PULL_BYTES)

    def _hold(
        self, connection: Connection, request: RemotingCommand, header: PopLiteMessageRequestHeader, key: QueueKey
    ) -> Reply:
        # Removes the body and the fields, which can take megabytes. The response needs neither.
        request = request.without_content()

        def attempt(expired: bool) -> bool:
            if connection.is_closed:
                return True
            client = self._subscriptions.find(header.client_id)
            # A peer that does not read its responses gets no more messages, because it can have many waiting pops.
            ends = expired or self._waiting.is_stopped or connection.is_full
            reply: Reply = None
            try:
                if client is not None and key == wait_key(client) and not self._waiting.is_stopped:
                    reply = None if connection.is_full else self._attempt(connection, request, header, client)
            except Exception as e:
                reply = error_response(e, request, connection.address)
            if reply is None and ends:
                reply = _nothing(request, header, ResponseCode.POLLING_TIMEOUT)
            if reply is None:
                return False
            connection.reply(request, reply)
            return True

        left_ms = min(header.born_time + header.poll_time - clock.now_ms(), header.poll_time, MAX_SUSPEND_MS)
        if header.poll_time <= 0 or left_ms <= 0 or self._waiting.is_stopped:
            return _nothing(request, header, ResponseCode.POLLING_TIMEOUT)
        waiter = Waiter(connection, request, self._loop.time() + left_ms / 1000, attempt)
        if not self._waiting.hold(key, (), waiter):
            return _nothing(request, header, ResponseCode.POLLING_FULL)
        return None

    # -- acknowledgements ---------------------------------------------------------------------------------------

    def ack(self, header: AckMessageRequestHeader) -> RemotingCommand:
        """Handles ACK_MESSAGE for a message of a lite topic (`AckMessageProcessor.ackLite`)."""
        group = header.consumer_group
        check_lite_group(self._groups.find(group), group, header.topic)
        queue, handle = self._handed_out(header)
        name = queue.topic
        committed = self._offsets.query(group, name, LIGHT_QUEUE_ID)
        if committed is None or header.offset < committed:
            return RemotingCommand.response()
        outcome = self._orderly.ack(name, group, LIGHT_QUEUE_ID, header.offset, handle.pop_time)
        if outcome is Outcome.ILLEGAL:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, f"ack offset illegal: {outcome.value}")
        if isinstance(outcome, int):
            self._offsets.commit(group, name, LIGHT_QUEUE_ID, outcome)
            self._stats.acknowledged(header.topic, group, 1)
            info = self._orderly.find(name, group, LIGHT_QUEUE_ID)
            if info is not None and not info.unacked():
                self._orderly.forget(name, group, LIGHT_QUEUE_ID)
                if self._dispatcher.has_messages(queue, group):
                    self._dispatcher.dispatch(name, group)
        return RemotingCommand.response()

    def change_invisible_time(self, header: ChangeInvisibleTimeRequestHeader) -> RemotingCommand:
        """Handles CHANGE_MESSAGE_INVISIBLETIME for a message of a lite topic (`processChangeInvisibleTimeForLite`)."""
        group = header.consumer_group
        check_lite_group(self._groups.find(group), group, header.topic)
        self._queues.check_invisible_time(header.invisible_time)
        queue, handle = self._handed_out(header)
        name, visible_ms = queue.topic, clock.now_ms() + header.invisible_time
        committed = self._offsets.query(group, name, LIGHT_QUEUE_ID)
        if committed is None or header.offset >= committed:
            if header.suspend:
                self._orderly.suspend(name, group, LIGHT_QUEUE_ID, handle.pop_time, visible_ms)
            else:
                self._orderly.change_visible_at(name, group, LIGHT_QUEUE_ID, header.offset, handle.pop_time, visible_ms)
            self._dispatcher.changed(name, group)
        return RemotingCommand.response(
            header=ChangeInvisibleTimeResponseHeader(
                pop_time=handle.pop_time, invisible_time=visible_ms - handle.pop_time, revive_qid=handle.revive_queue_id
            )
        )

    def _handed_out(
        self, header: AckMessageRequestHeader | ChangeInvisibleTimeRequestHeader
    ) -> tuple[ConsumeQueue, ReceiptHandle]:
        """Returns the light queue of a message and its receipt handle. Raises RequestRefused if they can't belong."""
        lite_topic = header.lite_topic or ""
        if (problem := lite_topic_problem(header.topic, lite_topic)) is not None:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, problem)
        queue = self._store.queue(light_queue_of(header.topic, lite_topic), LIGHT_QUEUE_ID)
        if not 0 <= header.offset < queue.max_offset:
            raise RequestRefused(
                ResponseCode.NO_MESSAGE,
                f"offset is illegal, {header.offset} of {queue.topic}, which has {queue.min_offset}~{queue.max_offset}",
            )
        handle = ReceiptHandle.parse(header.extra_info)
        if header.queue_id != LIGHT_QUEUE_ID or not handle.is_orderly:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, "it is no receipt handle of a lite topic")
        return queue, handle


def check_lite_group(group: SubscriptionGroupConfig | None, name: str, topic: str) -> SubscriptionGroupConfig:
    """Returns the group if it may read the lite topics of a topic. Raises RequestRefused."""
    if group is None:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{name}] not exist, create it first"
        )
    if not group.consume_enable:
        raise RequestRefused(ResponseCode.NO_PERMISSION, f"subscription group no permission, {name}")
    if group.attributes.get(LITE_BIND_TOPIC) != topic:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"subscription bind topic not match, {name}: set its attribute {LITE_BIND_TOPIC}={topic}",
        )
    return group


def _light_offsets(queue: ConsumeQueue, found: GetResult) -> list[int]:
    """Returns the offset in a light queue of each record found, up to the first damaged record."""
    offsets: list[int] = []
    last = -1
    for buffer in found.buffers:
        at = 0
        while at < len(buffer):
            (size,) = _size(buffer, at)
            if not FIXED_SIZE_V4 <= size <= len(buffer) - at:
                return offsets
            try:
                _, properties = topic_and_properties(buffer[at : at + size])
            except (RecordError, StructError):
                return offsets
            offset = queue_offsets(properties).get(queue.topic, -1)
            if not last < offset < found.next_begin_offset:
                return offsets
            offsets.append(offset)
            last = offset
            at += size
    return offsets


def _nothing(request: RemotingCommand, header: PopLiteMessageRequestHeader, code: int) -> Reply:
    return _answer(request, code, header, _Batch(clock.now_ms()))


def _answer(
    request: RemotingCommand, code: int, header: PopLiteMessageRequestHeader, batch: _Batch
) -> list[bytes | memoryview]:
    response = RemotingCommand.response(
        code,
        GetStatus.FOUND.name if batch.count else GetStatus.NO_MESSAGE_IN_QUEUE.name,
        PopLiteMessageResponseHeader(
            pop_time=batch.pop_time,
            invisible_time=header.invisible_time,
            revive_qid=ORDERLY_REVIVE_QUEUE,
            order_count_info=";".join(map(str, batch.delivered)),
        ),
    )
    response.opaque = request.opaque
    response.serialize_type = request.serialize_type
    return [response.encode_head(batch.size), *batch.buffers]
