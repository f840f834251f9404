"""Pulling: PULL_MESSAGE and LITE_PULL_MESSAGE (`PullMessageProcessor`, `DefaultPullMessageResultHandler`).

A found pull is answered with slices of the mapped log: nothing is decoded and nothing copied on the way to the socket.
"""

from __future__ import annotations

import asyncio
import logging

from gantrymq.background.jobs import Jobs
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.consumer_offsets import ConsumerOffsets
from gantrymq.broker.deliveries import Deliveries
from gantrymq.broker.long_polling import LongPolling, WaitingPull
from gantrymq.broker.message_filter import MessageFilter, MessageFilters
from gantrymq.broker.part import Part
from gantrymq.broker.read_checks import check_broker, check_queue_id, existing_group, readable_topic
from gantrymq.broker.subscription_groups import SubscriptionGroupTable
from gantrymq.broker.topics import BrokerTopics
from gantrymq.errors import RequestRefused
from gantrymq.protocol.bodies.heartbeat import SUBSCRIBE_ALL
from gantrymq.protocol.bodies.route import MASTER_ID
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.pull import PullMessageRequestHeader
from gantrymq.protocol.pull_request import decode_pull_request
from gantrymq.protocol.pull_response import encode_pull_head
from gantrymq.protocol.sys_flag import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.get_result import GetResult, GetStatus
from gantrymq.store.message_store import MessageStore

log = logging.getLogger(__name__)

#: What a pull gets that names no limit of its own (`MessageStoreConfig.maxTransferBytesOnMessageInMemory`), bytes. The
#: store's own limits hold for all.
DEFAULT_PULL_BYTES = 256 * 1024

#: No pull is held longer: past it the client's connection counts as idle.
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
    ) -> None:
        self._config = config
        self._store = store
        self._topics = topics
        self._groups = groups
        self._filters = filters
        self._offsets = offsets
        self._deliveries = deliveries
        self._loop = asyncio.get_running_loop()
        self.polling = LongPolling(self._retry, jobs)

    def handlers(self) -> dict[int, RequestHandler]:
        return {RequestCode.PULL_MESSAGE: self.pull, RequestCode.LITE_PULL_MESSAGE: self.pull}

    def pull(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Answers with messages, or holds the request until there are some."""
        header = decode_pull_request(request)
        queue, group = self._queue(header)
        if header.sys_flag & PULL_SUBSCRIPTION:
            wanted = self._filters.of_expression(
                header.consumer_group, header.topic, header.subscription or SUBSCRIBE_ALL, header.expression_type
            )
        else:
            wanted = self._filters.of_group(group, header.topic, header.sub_version)
        if header.sys_flag & PULL_COMMIT_OFFSET and header.commit_offset >= 0:
            self._offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        result = self._get(queue, header, wanted)
        code = _code(result, header)
        if code == ResponseCode.PULL_NOT_FOUND and header.sys_flag & PULL_SUSPEND and self._config.long_polling_enable:
            suspend_ms = max(0, min(header.suspend_timeout_millis, MAX_SUSPEND_MS))
            deadline = self._loop.time() + suspend_ms / 1000
            self.polling.hold(WaitingPull(connection, request, header, queue, wanted, deadline))
            return None
        return self._answer(request, code, result, group)

    def _retry(self, pull: WaitingPull, expired: bool) -> None:
        """Called by `LongPolling`: messages came, or the time is up."""
        if pull.connection.is_closed:
            return
        header = pull.header
        group = self._groups.get(header.consumer_group)
        if pull.connection.is_full:
            # Its peer may wait with any number of pulls; what it doesn't take isn't gathered for it.
            queue = pull.queue
            result = GetResult(GetStatus.NO_MATCHED_MESSAGE, header.queue_offset, queue.min_offset, queue.max_offset)
        else:
            result = self._get(pull.queue, header, pull.wanted)
        code = _code(result, header)
        caught_up = result.next_begin_offset >= pull.queue.max_offset
        if code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY) and caught_up and not expired:
            # What was filtered out isn't looked at again.
            header.queue_offset = result.next_begin_offset
            self.polling.hold(pull)
            return
        pull.connection.reply(pull.request, self._answer(pull.request, code, result, group))

    def _get(self, queue: ConsumeQueue, header: PullMessageRequestHeader, wanted: MessageFilter) -> GetResult:
        max_bytes = header.max_msg_bytes or DEFAULT_PULL_BYTES
        result = self._store.get(queue, header.queue_offset, header.max_msg_nums, max_bytes, *wanted)
        if result.next_begin_offset != header.queue_offset:
            self._deliveries.add(queue, header.consumer_group, result)
        return result

    def _answer(
        self, request: RemotingCommand, code: int, result: GetResult, group: SubscriptionGroupConfig | None
    ) -> list[bytes | memoryview]:
        broker_id = MASTER_ID
        if self._config.slave_read_enable and group is not None:
            behind = result.suggest_pulling_from_slave
            broker_id = group.which_broker_when_consume_slowly if behind else group.broker_id
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


def _code(result: GetResult, header: PullMessageRequestHeader) -> int:
    code = _CODES.get(result.status)
    if code is not None:
        return code
    # NO_MATCHED_LOGIC_QUEUE, NO_MESSAGE_IN_QUEUE: an empty queue is waited for, an offset in it can't be right.
    return ResponseCode.PULL_OFFSET_MOVED if header.queue_offset else ResponseCode.PULL_NOT_FOUND
