"""PullProcessor: PULL_MESSAGE and LITE_PULL_MESSAGE (`PullMessageProcessor`, `DefaultPullMessageResultHandler`).

The messages of a response are slices of the mapped log. They are sent without being decoded or copied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Generator, Mapping

from gantrymq.broker.context import BrokerContext
from gantrymq.broker.feature import Feature
from gantrymq.broker.pull.long_polling import LongPolling, WaitingPull
from gantrymq.broker.pull.read_checks import check_broker, check_queue_id, existing_group, readable_topic
from gantrymq.broker.pull.reused_offsets import WHILE_S, ReusedOffsets
from gantrymq.broker.replication import Replication, SlaveReads
from gantrymq.broker.tables import DeliveryLimits, MessageFilter, compiling, is_tag_type
from gantrymq.errors import RefusalReason, RequestRefused
from gantrymq.limits import WAITING_PULLS, WAITING_PULLS_OF_ONE
from gantrymq.protocol.bodies.heartbeat import CONSUME_ACTIVELY, SUBSCRIBE_ALL
from gantrymq.protocol.bodies.route import MASTER_ID
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.pull import PullMessageRequestHeader
from gantrymq.protocol.private_fields import REASON_FIELD, RECOVERED_END_FIELD, RECOVERY_FIELD, TOPIC_BEGIN_FIELD
from gantrymq.protocol.pull_request import decode_pull_request
from gantrymq.protocol.pull_response import NO_FIELDS, encode_pull_head
from gantrymq.protocol.sys_flag import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from gantrymq.protocol.topic_name import is_system_group
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.remoting.long_requests import Steps
from gantrymq.store.config import UNIT_SIZE
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.get_result import GetResult, GetStatus
from gantrymq.system.clock import monotonic, now_ms

#: Maximum size of the response if a pull request sets no limit, in bytes
#: (`MessageStoreConfig.maxTransferBytesOnMessageInMemory`). The store applies further limits.
DEFAULT_PULL_BYTES = 256 * 1024

#: Longest wait of a pull, in ms. After that time, the client's connection counts as idle.
MAX_SUSPEND_MS = 120_000

_CODES = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}


class PullProcessor(Feature):
    """Handles the pull requests of one broker."""

    def __init__(self, context: BrokerContext, *, replication: Replication) -> None:
        self._config = context.config
        self._store = context.store
        self._topics = context.topics
        self._groups = context.groups
        self._filters = context.filters
        self._members = context.members
        self._offsets = context.offsets
        self._deliveries = context.deliveries
        self._stats = context.stats
        self._rate_limits = context.rate_limits
        self._tier = context.tier
        self._loop = asyncio.get_running_loop()
        self._long_requests = context.long_requests
        self._replication = replication
        self.polling = LongPolling(self._retry, context.jobs)
        self._slave: SlaveReads | None = None
        self.reused_offsets: ReusedOffsets | None = None
        #: Value of RECOVERY_FIELD.
        self._start_ms = str(now_ms())
        #: True if another broker may be master.
        self._is_doubted = False
        events = context.events
        events.connection_closed.subscribe(self.polling.connection_closed)
        events.messages_replicated.subscribe(self._wake)
        events.topics_deleted.subscribe(lambda names, queues: self._wake(queues))
        events.offsets_reset.subscribe(self._offsets_reset)
        events.mastership_doubted.subscribe(self._mastership_doubted)

    def handlers(self) -> dict[int, RequestHandler]:
        return {RequestCode.PULL_MESSAGE: self.pull, RequestCode.LITE_PULL_MESSAGE: self.pull}

    async def become_master(self) -> None:
        self._slave = None
        self.reused_offsets = ReusedOffsets(self._offsets, self._loop.time() + WHILE_S)

    async def become_slave(self) -> None:
        self.reused_offsets = None
        self._slave = SlaveReads(self._config.broker_id, lambda: self._replication.has_master)

    def _offsets_reset(self, topic: str, group: str, offsets: Mapping[int, int]) -> None:
        for queue_id, offset in offsets.items():
            queue = self._store.find_queue(topic, queue_id)
            if self.reused_offsets is not None and queue is not None:
                self.reused_offsets.answered(queue, group, offset)

    def _mastership_doubted(self, is_doubted: bool) -> None:
        """Rejects all waiting pulls if another broker may be master. Consumers then request the route again."""
        self._is_doubted = is_doubted
        if is_doubted:
            self.polling.answer_all()

    def _wake(self, queues: Collection[ConsumeQueue]) -> None:
        """Answers the pulls and pops that wait for messages in these queues."""
        for queue in queues:
            self.polling.message_arrived(queue)

    def is_of_lost(self, queue: ConsumeQueue, group: str, offset: int) -> bool:
        """Returns whether an offset includes messages that the queue has lost. Such an offset must not be committed.

        See `ReusedOffsets.is_of_lost`.
        """
        reused = self.reused_offsets
        return reused is not None and self._loop.time() < reused.until and reused.is_of_lost(queue, group, offset)

    def pull(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns the messages from an offset on.

        If no message is found and the request may wait, the broker holds the request, and the result is None.

        Raises RequestRefused if the group may not read the queue, if too many pulls wait, or above a rate limit.
        """
        header = decode_pull_request(request)
        if header.bulk_msg_nums is not None and connection.answers_pile_up:
            header.bulk_msg_nums = None
        queue, group = self._queue(header)
        if self._config.reject_pull_consumer_enable:
            self._check_member(connection, header.consumer_group)
        expression = self._sql_of(header)
        if expression is not None:
            steps = self._pull_filtered(connection, request, header, queue, group, expression)
            return self._long_requests.run(connection, request, steps)
        wanted = self._wanted(header, group)
        if header.sys_flag & PULL_COMMIT_OFFSET:
            self._commit(queue, header)
        limits = None
        if group.attributes or self._rate_limits.limits_clients:
            limits = self._rate_limits.admit_delivery(group, connection)
        result = self._read(queue, header, wanted, limits=limits)
        self._stats.read(header.topic, header.consumer_group, result, monotonic() - connection.command_began)
        if result.status is GetStatus.FOUND:
            # This is the hot path.
            begin = self._offsets.topic_begin(header.topic)
            return self._answer(request, ResponseCode.SUCCESS, result, group, queue, begin)
        if result.status is GetStatus.OFFSET_TOO_SMALL and self._tier is not None:
            connection.respond_with(request, self._pull_from_tier(connection, request, header, queue, wanted, group))
            return None
        return self._answer_or_hold(connection, request, header, queue, wanted, result, group)

    async def _pull_from_tier(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: PullMessageRequestHeader,
        queue: ConsumeQueue,
        wanted: MessageFilter,
        group: SubscriptionGroupConfig,
    ) -> Reply:
        """Returns messages that are no longer in the log. Raises RequestRefused; see `Tier.get`."""
        assert self._tier is not None
        max_messages, max_bytes = _limits_of(header)
        limits = self._rate_limits.admit_delivery(group, connection)
        if limits is not None:
            max_messages, max_bytes = limits.most(max_messages, max_bytes)
        began = monotonic()
        result = await self._tier.get(queue, header.queue_offset, max_messages, max_bytes, *wanted)
        if limits is not None:
            limits.take(result.message_count, result.size)
        self._deliveries.add(queue, header.consumer_group, result)
        self._stats.read(header.topic, header.consumer_group, result, monotonic() - began)
        begin = self._offsets.topic_begin(header.topic)
        return self._answer(request, self._code(result, header), result, group, queue, begin)

    def _sql_of(self, header: PullMessageRequestHeader) -> str | None:
        """Returns the SQL92 expression of a pull, which takes long to evaluate, or None for a filter by tags."""
        if header.sys_flag & PULL_SUBSCRIPTION:
            return None if is_tag_type(header.expression_type) else header.subscription or ""
        return self._filters.sql_of_group(header.consumer_group, header.topic)

    def _wanted(self, header: PullMessageRequestHeader, group: SubscriptionGroupConfig) -> MessageFilter:
        """Returns the filter of a pull, from the pull's own subscription or from its group's subscription."""
        if header.sys_flag & PULL_SUBSCRIPTION:
            return self._filters.of_expression(
                header.consumer_group, header.topic, header.subscription or SUBSCRIBE_ALL, header.expression_type
            )
        return self._filters.of_group(group, header.topic, header.sub_version)

    def _commit(self, queue: ConsumeQueue, header: PullMessageRequestHeader) -> None:
        """Commits the offset that a pull contains, unless it includes lost messages."""
        if header.commit_offset >= 0 and not self.is_of_lost(queue, header.consumer_group, header.commit_offset):
            self._offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)

    def _pull_filtered(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: PullMessageRequestHeader,
        queue: ConsumeQueue,
        group: SubscriptionGroupConfig,
        expression: str,
    ) -> Steps:
        """Works like `pull`, but in steps of a few milliseconds."""
        yield from compiling(expression)
        wanted = self._wanted(header, group)
        if header.sys_flag & PULL_COMMIT_OFFSET:
            self._commit(queue, header)
        limits = self._rate_limits.admit_delivery(group, connection)
        result = yield from self._get_filtered(connection, queue, header, wanted, limits)
        if result.status is GetStatus.OFFSET_TOO_SMALL and self._tier is not None:
            connection.respond_with(request, self._pull_from_tier(connection, request, header, queue, wanted, group))
            return None
        return self._answer_or_hold(connection, request, header, queue, wanted, result, group)

    def _answer_or_hold(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: PullMessageRequestHeader,
        queue: ConsumeQueue,
        wanted: MessageFilter,
        result: GetResult,
        group: SubscriptionGroupConfig,
    ) -> Reply:
        """Returns the response, or holds the pull if it found no message and may wait. Raises RequestRefused."""
        code = self._code(result, header)
        begin = self._offsets.topic_begin(header.topic)
        if code == ResponseCode.PULL_NOT_FOUND and header.sys_flag & PULL_SUSPEND and self._config.long_polling_enable:
            if self._is_doubted:
                raise _doubted()
            if self.polling.count_of(connection) >= WAITING_PULLS_OF_ONE or len(self.polling) >= WAITING_PULLS:
                raise RequestRefused(
                    ResponseCode.SYSTEM_BUSY, f"{len(self.polling)} pulls wait for messages: try again later"
                )
            suspend_ms = max(0, min(header.suspend_timeout_millis, MAX_SUSPEND_MS))
            deadline = self._loop.time() + suspend_ms / 1000
            request = request.without_content()
            # Removes the subscription, to save memory. Equal subscriptions share the compiled filter in `wanted`.
            header.subscription = header.expression_type = None
            self.polling.hold(WaitingPull(connection, request, header, queue, wanted, deadline, begin))
            return None
        return self._answer(request, code, result, group, queue, begin)

    def _retry(self, pull: WaitingPull, expired: bool) -> None:
        """Answers a waiting pull or holds it again. `LongPolling` calls it when messages arrive or the pull expires."""
        if pull.connection.is_closed:
            return
        # One message can cause the responses to thousands of pulls.
        reply = self._long_requests.run(pull.connection, pull.request, self._retry_in_steps(pull, expired))
        if reply is not None:
            pull.connection.reply(pull.request, reply)

    def _retry_in_steps(self, pull: WaitingPull, expired: bool) -> Steps:
        if self._store.find_queue(pull.header.topic, pull.header.queue_id) is not pull.queue:
            # The queue was deleted. The consumer pulls again, and `topic_begin` then shows that the queue is new.
            result, expired = _nothing(pull.queue, pull.header), True
        elif pull.connection.is_full:
            # The client does not read its responses. Responses to all of its pulls would fill the memory.
            result = _nothing(pull.queue, pull.header)
        else:
            group = self._groups.find(pull.header.consumer_group)
            limits = self._rate_limits.admit_delivery(group, pull.connection)
            if pull.wanted.matches is None:
                began = monotonic()
                result = self._read(pull.queue, pull.header, pull.wanted, limits=limits)
                self._stats.read(pull.queue.topic, pull.header.consumer_group, result, monotonic() - began)
            else:
                result = yield from self._get_filtered(pull.connection, pull.queue, pull.header, pull.wanted, limits)
        return self._answer_again(pull, result, expired)

    def _answer_again(self, pull: WaitingPull, result: GetResult, expired: bool) -> Reply:
        """Returns the response to a waiting pull, or None if the pull waits again."""
        header = pull.header
        code = self._code(result, header)
        # `MessageStore.get` also returns this status if the next messages are not confirmed yet.
        is_end = result.status is GetStatus.OFFSET_OVERFLOW_ONE
        caught_up = is_end or result.next_begin_offset >= pull.queue.max_offset
        if code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY) and caught_up and not expired:
            # The filter has rejected the messages before this offset.
            header.queue_offset = result.next_begin_offset
            self.polling.hold(pull)
            return None
        if code == ResponseCode.PULL_NOT_FOUND and self._is_doubted:
            raise _doubted()
        group = self._groups.get(header.consumer_group)
        return self._answer(pull.request, code, result, group, pull.queue, pull.topic_begin)

    def _read(
        self,
        queue: ConsumeQueue,
        header: PullMessageRequestHeader,
        wanted: MessageFilter,
        end: int | None = None,
        limits: DeliveryLimits | None = None,
    ) -> GetResult:
        """Reads messages from the store, up to the offset `end` and within `limits`, and records the delivery."""
        max_messages, max_bytes = _limits_of(header)
        if limits is not None:
            max_messages, max_bytes = limits.most(max_messages, max_bytes)
        if self.reused_offsets is not None and (ahead := self._ahead(queue, header)) is not None:
            return ahead
        result = self._store.get(
            queue,
            header.queue_offset,
            max_messages,
            max_bytes,
            *wanted,
            bulk=header.bulk_msg_nums is not None,
            end=end,
        )
        if limits is not None:
            limits.take(result.message_count, result.size)
        if result.status is GetStatus.OFFSET_OVERFLOW_BADLY and queue.recovered_end is None:
            self._go_to_begin_of_new_topic(result, queue)
        # Also without a message: after a restart, a consumer can wait at the end and have messages in flight.
        self._deliveries.add(queue, header.consumer_group, result)
        if self.reused_offsets is not None:
            self.reused_offsets.answered(queue, header.consumer_group, result.next_begin_offset)
        return result

    def _go_to_begin_of_new_topic(self, result: GetResult, queue: ConsumeQueue) -> None:
        """Sends a consumer to the start of the queue if the topic was deleted and created again.

        The consumer's offset belongs to the old topic. Raises RequestRefused if the start may be in a tier whose
        segments are unknown.
        """
        if self._offsets.topic_begin(queue.topic):
            if self._tier is not None:
                result.min_offset = self._tier.min_offset(queue)
            result.next_begin_offset = result.min_offset

    def _ahead(self, queue: ConsumeQueue, header: PullMessageRequestHeader) -> GetResult | None:
        """Returns the result for a group whose offset includes lost messages, else None. See `ReusedOffsets`."""
        assert self.reused_offsets is not None
        if self._loop.time() >= self.reused_offsets.until:
            self.reused_offsets = None
            return None
        end = self.reused_offsets.end_of(queue, header.consumer_group, header.queue_offset)
        if end is None:
            return None
        return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, end, queue.min_offset, queue.max_offset)

    def _get_filtered(
        self,
        connection: Connection,
        queue: ConsumeQueue,
        header: PullMessageRequestHeader,
        wanted: MessageFilter,
        limits: DeliveryLimits | None,
    ) -> Generator[None, None, GetResult]:
        """Like `_read`, but in steps of a few milliseconds until a message passes the filter. Also counts the read.

        A pull checks at most as many messages as in Java, and the next pull continues after them. All steps count as
        one read.
        """
        end = header.queue_offset + max(self._store.config.max_filter_message_size // UNIT_SIZE, 1)
        seconds = 0.0
        while not connection.is_full:
            begin = monotonic()
            result = self._read(queue, header, wanted, end, limits)
            seconds += monotonic() - begin
            following = result.next_begin_offset
            nothing_fits = result.status is GetStatus.NO_MATCHED_MESSAGE and following > header.queue_offset
            if not nothing_fits or following >= min(end, queue.max_offset):
                break
            header.queue_offset = following
            yield
        else:
            result = _nothing(queue, header)
        self._stats.read(queue.topic, header.consumer_group, result, seconds)
        return result

    def _code(self, result: GetResult, header: PullMessageRequestHeader) -> int:
        code = _code(result, header)
        return code if self._slave is None else self._slave.code(code, result, header.queue_offset)

    def _answer(
        self,
        request: RemotingCommand,
        code: int,
        result: GetResult,
        group: SubscriptionGroupConfig | None,
        queue: ConsumeQueue,
        topic_begin: int,
    ) -> list[bytes | memoryview]:
        broker_id = MASTER_ID
        if self._config.slave_read_enable and group is not None:
            behind = result.suggest_pulling_from_slave
            broker_id = group.which_broker_when_consume_slowly if behind else group.broker_id
            if self._slave is not None and not behind:
                broker_id = self._slave.suggested_broker()
        private_fields = NO_FIELDS
        if topic_begin or queue.recovered_end is not None or result.status is GetStatus.MESSAGE_WAS_REMOVING:
            private_fields = self._private_fields(queue, topic_begin, result.status)
        head = encode_pull_head(
            request.serialize_type,
            request.opaque,
            code,
            # `value` would take 0.2 us longer.
            result.status._value_,
            broker_id,
            result.next_begin_offset,
            result.min_offset,
            result.max_offset,
            result.size,
            private_fields,
        )
        return [head, *result.buffers]

    def _private_fields(self, queue: ConsumeQueue, topic_begin: int, status: GetStatus) -> Mapping[str, str]:
        fields = {TOPIC_BEGIN_FIELD: str(topic_begin)} if topic_begin else {}
        if status is GetStatus.MESSAGE_WAS_REMOVING:
            fields[REASON_FIELD] = RefusalReason.MESSAGES_REMOVED.value
        if self.reused_offsets is not None and queue.recovered_end is not None:
            fields[RECOVERY_FIELD] = self._start_ms
            fields[RECOVERED_END_FIELD] = str(queue.recovered_end)
        return fields

    def _queue(self, header: PullMessageRequestHeader) -> tuple[ConsumeQueue, SubscriptionGroupConfig]:
        """Returns the queue and the group of a pull. Raises RequestRefused if the group may not read the queue."""
        check_broker(self._config, "pulling")
        group = existing_group(self._groups, header.consumer_group)
        if not group.consume_enable:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"subscription group no permission, {header.consumer_group}"
            )
        if not self._groups.may_read(header.consumer_group, header.topic):
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{header.consumer_group}] is forbidden for topic[{header.topic}]",
            )
        check_queue_id(readable_topic(self._topics, header.topic, "pulling"), header.queue_id)
        return self._store.queue(header.topic, header.queue_id), group

    def _check_member(self, connection: Connection, group_name: str) -> None:
        """Raises RequestRefused for a pull consumer, and for a group without a connected consumer."""
        group = self._members.consumers.get(group_name)
        if group is not None and (group.consume_type != CONSUME_ACTIVELY or connection in group.clients):
            return
        if not is_system_group(group_name):
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"group {group_name} has no connected push consumer, and this broker rejects pull consumers "
                "(rejectPullConsumerEnable)",
            )


def _limits_of(header: PullMessageRequestHeader) -> tuple[int, int]:
    """Returns the largest number and size in bytes of the messages that a pull requests."""
    if header.bulk_msg_nums is None:
        return header.max_msg_nums, header.max_msg_bytes or DEFAULT_PULL_BYTES
    return header.bulk_msg_nums, header.bulk_msg_bytes or DEFAULT_PULL_BYTES


def _nothing(queue: ConsumeQueue, header: PullMessageRequestHeader) -> GetResult:
    """Returns an empty result. The consumer then pulls again from the same offset."""
    return GetResult(GetStatus.NO_MATCHED_MESSAGE, header.queue_offset, queue.min_offset, queue.max_offset)


def _code(result: GetResult, header: PullMessageRequestHeader) -> int:
    code = _CODES.get(result.status)
    if code is not None:
        return code
    # The status is NO_MATCHED_LOGIC_QUEUE or NO_MESSAGE_IN_QUEUE. A pull from offset 0 waits. Any other offset is wrong
    # in an empty queue.
    return ResponseCode.PULL_OFFSET_MOVED if header.queue_offset else ResponseCode.PULL_NOT_FOUND


def _doubted() -> RequestRefused:
    return RequestRefused(
        ResponseCode.SYSTEM_BUSY,
        "there are no new messages, and another broker may be master: request the route of the topic",
        RefusalReason.NOT_MASTER,
    )
