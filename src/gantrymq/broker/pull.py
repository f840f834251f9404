"""Pulling: PULL_MESSAGE and LITE_PULL_MESSAGE (`PullMessageProcessor`, `DefaultPullMessageResultHandler`).

A found pull is answered with slices of the mapped log: nothing is decoded and nothing copied on the way to the socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Mapping

from gantrymq.background.jobs import Jobs
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.consumer_offsets import ConsumerOffsets
from gantrymq.broker.deliveries import Deliveries
from gantrymq.broker.long_polling import LongPolling, WaitingPull
from gantrymq.broker.message_filter import MessageFilter, MessageFilters, compiling, is_tag_type
from gantrymq.broker.part import Part
from gantrymq.broker.read_checks import check_broker, check_queue_id, existing_group, readable_topic
from gantrymq.broker.replication.slave_reads import SlaveReads
from gantrymq.broker.reused_offsets import WHILE_S, ReusedOffsets
from gantrymq.broker.subscription_groups import SubscriptionGroupTable
from gantrymq.broker.topics import BrokerTopics
from gantrymq.errors import RefusalReason, RequestRefused
from gantrymq.protocol.bodies.heartbeat import SUBSCRIBE_ALL
from gantrymq.protocol.bodies.route import MASTER_ID
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.pull import PullMessageRequestHeader
from gantrymq.protocol.private_fields import REASON_FIELD, TOPIC_BEGIN_FIELD
from gantrymq.protocol.pull_request import decode_pull_request
from gantrymq.protocol.pull_response import NO_FIELDS, encode_pull_head
from gantrymq.protocol.sys_flag import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.remoting.long_requests import LongRequests, Steps
from gantrymq.store.config import UNIT_SIZE
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.get_result import GetResult, GetStatus
from gantrymq.store.message_store import MessageStore

#: What a pull gets that names no limit of its own (`MessageStoreConfig.maxTransferBytesOnMessageInMemory`), bytes. The
#: store's own limits hold for all, others for bulk readers.
DEFAULT_PULL_BYTES = 256 * 1024

#: No pull is held longer: past it the client's connection counts as idle.
MAX_SUSPEND_MS = 120_000
#: So many pulls may wait, of one connection and of all. Java has no bound; a consumer has one for each of its queues.
MAX_HELD_OF_ONE = 10_000
MAX_HELD = 100_000

_CODES = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}


class Pulling(Part):
    """The pull requests of one broker."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: BrokerTopics,
        groups: SubscriptionGroupTable,
        filters: MessageFilters,
        offsets: ConsumerOffsets,
        deliveries: Deliveries,
        *,
        jobs: Jobs,
        long_requests: LongRequests,
    ) -> None:
        self._config = config
        self._store = store
        self._topics = topics
        self._groups = groups
        self._filters = filters
        self._offsets = offsets
        self._deliveries = deliveries
        self._loop = asyncio.get_running_loop()
        self._long_requests = long_requests
        self.polling = LongPolling(self._retry, jobs)
        #: Whether a slave's master is there.
        self.has_master: Callable[[], bool] = lambda: False
        self._slave: SlaveReads | None = None
        self._reused: ReusedOffsets | None = None

    def handlers(self) -> dict[int, RequestHandler]:
        return {RequestCode.PULL_MESSAGE: self.pull, RequestCode.LITE_PULL_MESSAGE: self.pull}

    async def become_master(self) -> None:
        self._slave = None
        self._reused = ReusedOffsets(self._offsets, self._loop.time() + WHILE_S)

    async def become_slave(self) -> None:
        self._reused = None
        self._slave = SlaveReads(self._config.broker_id, self.has_master)

    def offsets_reset(self, topic: str, group: str, offsets: Mapping[int, int]) -> None:
        """An administrator has set the group's offsets in these queues."""
        for queue_id, offset in offsets.items():
            queue = self._store.find_queue(topic, queue_id)
            if self._reused is not None and queue is not None:
                self._reused.answered(queue, group, offset)

    def queues_deleted(self, queues: Iterable[ConsumeQueue]) -> None:
        """Answers the pulls and pops that wait for messages in deleted queues."""
        for queue in queues:
            self.polling.message_arrived(queue)

    def is_of_lost(self, queue: ConsumeQueue, group: str, offset: int) -> bool:
        """A group has got so far only in what the queue had before it lost its end: not to be committed."""
        reused = self._reused
        return reused is not None and self._loop.time() < reused.until and reused.is_of_lost(queue, group, offset)

    def pull(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Answers with messages, or holds the request until there are some."""
        header = decode_pull_request(request)
        if header.bulk_msg_nums is not None and connection.answers_pile_up:
            header.bulk_msg_nums = None
        queue, group = self._queue(header)
        expression = self._sql_of(header)
        if expression is not None:
            steps = self._pull_filtered(connection, request, header, queue, group, expression)
            return self._long_requests.run(connection, request, steps)
        wanted = self._wanted(header, group)
        if header.sys_flag & PULL_COMMIT_OFFSET:
            self._commit(queue, header)
        result = self._get(queue, header, wanted)
        if result.status is GetStatus.FOUND:
            # The hot path.
            begin = self._offsets.topic_begin(header.topic)
            return self._answer(request, ResponseCode.SUCCESS, result, group, begin)
        return self._answer_or_hold(connection, request, header, queue, wanted, result, group)

    def _sql_of(self, header: PullMessageRequestHeader) -> str | None:
        """The SQL92 expression by which a pull is filtered, which takes its time; None for tags."""
        if header.sys_flag & PULL_SUBSCRIPTION:
            return None if is_tag_type(header.expression_type) else header.subscription or ""
        return self._filters.sql_of_group(header.consumer_group, header.topic)

    def _wanted(self, header: PullMessageRequestHeader, group: SubscriptionGroupConfig) -> MessageFilter:
        if header.sys_flag & PULL_SUBSCRIPTION:
            return self._filters.of_expression(
                header.consumer_group, header.topic, header.subscription or SUBSCRIBE_ALL, header.expression_type
            )
        return self._filters.of_group(group, header.topic, header.sub_version)

    def _commit(self, queue: ConsumeQueue, header: PullMessageRequestHeader) -> None:
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
        """As `pull`, some milliseconds at a time."""
        yield from compiling(expression)
        wanted = self._wanted(header, group)
        if header.sys_flag & PULL_COMMIT_OFFSET:
            self._commit(queue, header)
        result = yield from self._get_filtered(connection, queue, header, wanted)
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
        code = self._code(result, header)
        begin = self._offsets.topic_begin(header.topic)
        if code == ResponseCode.PULL_NOT_FOUND and header.sys_flag & PULL_SUSPEND and self._config.long_polling_enable:
            if self.polling.count_of(connection) >= MAX_HELD_OF_ONE or len(self.polling) >= MAX_HELD:
                raise RequestRefused(
                    ResponseCode.SYSTEM_BUSY, f"{len(self.polling)} pulls wait for messages: try again later"
                )
            suspend_ms = max(0, min(header.suspend_timeout_millis, MAX_SUSPEND_MS))
            deadline = self._loop.time() + suspend_ms / 1000
            request = request.without_content()
            # `wanted` is what it has become, and equal ones share that.
            header.subscription = header.expression_type = None
            self.polling.hold(WaitingPull(connection, request, header, queue, wanted, deadline, begin))
            return None
        return self._answer(request, code, result, group, begin)

    def _retry(self, pull: WaitingPull, expired: bool) -> None:
        """Called by `LongPolling`: messages came, or the time is up."""
        if pull.connection.is_closed:
            return
        # A message may have thousands of pulls answered.
        reply = self._long_requests.run(pull.connection, pull.request, self._retry_in_steps(pull, expired))
        if reply is not None:
            pull.connection.reply(pull.request, reply)

    def _retry_in_steps(self, pull: WaitingPull, expired: bool) -> Steps:
        if self._store.find_queue(pull.header.topic, pull.header.queue_id) is not pull.queue:
            # The queue was deleted. The consumer pulls again, and detects the new queue by `topic_begin`.
            result, expired = _nothing(pull.queue, pull.header), True
        elif pull.connection.is_full:
            # Its peer may wait with any number of pulls; what it doesn't take isn't gathered for it.
            result = _nothing(pull.queue, pull.header)
        elif pull.wanted.matches is None:
            result = self._get(pull.queue, pull.header, pull.wanted)
        else:
            result = yield from self._get_filtered(pull.connection, pull.queue, pull.header, pull.wanted)
        return self._answer_again(pull, result, expired)

    def _answer_again(self, pull: WaitingPull, result: GetResult, expired: bool) -> Reply:
        """The answer, or None when it is held once more."""
        header = pull.header
        code = self._code(result, header)
        # Or what follows isn't shown yet.
        is_end = result.status is GetStatus.OFFSET_OVERFLOW_ONE
        caught_up = is_end or result.next_begin_offset >= pull.queue.max_offset
        if code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY) and caught_up and not expired:
            # What was filtered out isn't looked at again.
            header.queue_offset = result.next_begin_offset
            self.polling.hold(pull)
            return None
        return self._answer(pull.request, code, result, self._groups.get(header.consumer_group), pull.topic_begin)

    def _get(
        self, queue: ConsumeQueue, header: PullMessageRequestHeader, wanted: MessageFilter, end: int | None = None
    ) -> GetResult:
        if header.bulk_msg_nums is None:
            max_messages, max_bytes = header.max_msg_nums, header.max_msg_bytes
        else:
            max_messages, max_bytes = header.bulk_msg_nums, header.bulk_msg_bytes
        if self._reused is not None and (ahead := self._ahead(queue, header)) is not None:
            return ahead
        result = self._store.get(
            queue,
            header.queue_offset,
            max_messages,
            max_bytes or DEFAULT_PULL_BYTES,
            *wanted,
            bulk=header.bulk_msg_nums is not None,
            end=end,
        )
        if result.status is GetStatus.OFFSET_OVERFLOW_BADLY and queue.recovered_end is None:
            self._go_to_begin_of_new_topic(result, header.topic)
        if result.next_begin_offset != header.queue_offset:
            self._deliveries.add(queue, header.consumer_group, result)
        if self._reused is not None:
            self._reused.answered(queue, header.consumer_group, result.next_begin_offset)
        return result

    def _go_to_begin_of_new_topic(self, result: GetResult, topic: str) -> None:
        """Sends a consumer to the begin of a queue if the topic was created again: its offset is of the old topic."""
        if self._offsets.topic_begin(topic):
            result.next_begin_offset = result.min_offset

    def _ahead(self, queue: ConsumeQueue, header: PullMessageRequestHeader) -> GetResult | None:
        """The answer to a group that has had what the queue has lost."""
        assert self._reused is not None
        if self._loop.time() >= self._reused.until:
            self._reused = None
            return None
        end = self._reused.end_of(queue, header.consumer_group, header.queue_offset)
        if end is None:
            return None
        return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, end, queue.min_offset, queue.max_offset)

    def _get_filtered(
        self, connection: Connection, queue: ConsumeQueue, header: PullMessageRequestHeader, wanted: MessageFilter
    ) -> Generator[None, None, GetResult]:
        """As `_get`, which looks at records for a few milliseconds: goes on while it finds nothing.

        A pull looks at as many as in Java; the next one goes on where it ended.
        """
        end = header.queue_offset + max(self._store.config.max_filter_message_size // UNIT_SIZE, 1)
        while True:
            if connection.is_full:
                return _nothing(queue, header)
            result = self._get(queue, header, wanted, end)
            following = result.next_begin_offset
            nothing_fits = result.status is GetStatus.NO_MATCHED_MESSAGE and following > header.queue_offset
            if not nothing_fits or following >= min(end, queue.max_offset):
                return result
            header.queue_offset = following
            yield

    def _code(self, result: GetResult, header: PullMessageRequestHeader) -> int:
        code = _code(result, header)
        return code if self._slave is None else self._slave.code(code, result, header.queue_offset)

    def _answer(
        self,
        request: RemotingCommand,
        code: int,
        result: GetResult,
        group: SubscriptionGroupConfig | None,
        topic_begin: int,
    ) -> list[bytes | memoryview]:
        broker_id = MASTER_ID
        if self._config.slave_read_enable and group is not None:
            behind = result.suggest_pulling_from_slave
            broker_id = group.which_broker_when_consume_slowly if behind else group.broker_id
            if self._slave is not None and not behind:
                broker_id = self._slave.suggested_broker()
        private_fields = NO_FIELDS
        if topic_begin or result.status is GetStatus.MESSAGE_WAS_REMOVING:
            private_fields = _private_fields(topic_begin, result.status)
        head = encode_pull_head(
            request.serialize_type,
            request.opaque,
            code,
            result.status.value,
            broker_id,
            result.next_begin_offset,
            result.min_offset,
            result.max_offset,
            result.size,
            private_fields,
        )
        return [head, *result.buffers]

    def _queue(self, header: PullMessageRequestHeader) -> tuple[ConsumeQueue, SubscriptionGroupConfig]:
        """The queue asked for, and the group that asks. Raises RequestRefused."""
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


def _nothing(queue: ConsumeQueue, header: PullMessageRequestHeader) -> GetResult:
    """Whoever asks is to ask again, from where it is."""
    return GetResult(GetStatus.NO_MATCHED_MESSAGE, header.queue_offset, queue.min_offset, queue.max_offset)


def _code(result: GetResult, header: PullMessageRequestHeader) -> int:
    code = _CODES.get(result.status)
    if code is not None:
        return code
    # NO_MATCHED_LOGIC_QUEUE, NO_MESSAGE_IN_QUEUE: an empty queue is waited for, an offset in it can't be right.
    return ResponseCode.PULL_OFFSET_MOVED if header.queue_offset else ResponseCode.PULL_NOT_FOUND


def _private_fields(topic_begin: int, status: GetStatus) -> Mapping[str, str]:
    fields = {TOPIC_BEGIN_FIELD: str(topic_begin)} if topic_begin else {}
    if status is GetStatus.MESSAGE_WAS_REMOVING:
        fields[REASON_FIELD] = RefusalReason.MESSAGES_REMOVED.value
    return fields
