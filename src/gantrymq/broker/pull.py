"""Pulling: PULL_MESSAGE and LITE_PULL_MESSAGE (`PullMessageProcessor`, `DefaultPullMessageResultHandler`).

A found pull is answered with slices of the mapped log: nothing is decoded and nothing copied on the way to the socket.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import lru_cache

from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.consumer_groups import GroupMembers
from gantrymq.broker.consumer_offsets import ConsumerOffsets
from gantrymq.broker.long_polling import LongPolling, WaitingPull
from gantrymq.broker.subscription_groups import SubscriptionGroupTable
from gantrymq.broker.topics import TopicTable
from gantrymq.errors import RequestRefused
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers import PullMessageRequestHeader, PullMessageResponseHeader
from gantrymq.protocol.heartbeat import EXPRESSION_TAG, SUBSCRIBE_ALL, SubscriptionData
from gantrymq.protocol.sys_flag import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from gantrymq.protocol.topic_config import PERM_READ
from gantrymq.remoting.connection import Connection, Handler, Reply
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.message_store import GetResult, GetStatus, MessageStore

log = logging.getLogger(__name__)

Filter = Callable[[int], bool] | None

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


class Pulling:
    """The pull requests of one broker."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: TopicTable,
        groups: SubscriptionGroupTable,
        members: GroupMembers[Connection],
        offsets: ConsumerOffsets,
    ) -> None:
        self._config = config
        self._store = store
        self._topics = topics
        self._groups = groups
        self._members = members
        self._offsets = offsets
        self._loop = asyncio.get_running_loop()
        self.polling = LongPolling(self._retry)

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.PULL_MESSAGE: self.pull, RequestCode.LITE_PULL_MESSAGE: self.pull}

    def pull(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Answers with messages, or holds the request until there are some."""
        header = request.read_header(PullMessageRequestHeader)
        queue = self._queue(header)
        accepts = self._filter(header)
        if header.sys_flag & PULL_COMMIT_OFFSET and header.commit_offset >= 0:
            self._offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        result = self._get(queue, header, accepts)
        code = _code(result, header)
        if code == ResponseCode.PULL_NOT_FOUND and header.sys_flag & PULL_SUSPEND and self._config.long_polling_enable:
            suspend_ms = max(0, min(header.suspend_timeout_millis, MAX_SUSPEND_MS))
            deadline = self._loop.time() + suspend_ms / 1000
            self.polling.hold(WaitingPull(connection, request, header, queue, accepts, deadline))
            return None
        return self._answer(request, code, result)

    def _retry(self, pull: WaitingPull, expired: bool) -> None:
        """Called by `LongPolling`: messages came, or the time is up."""
        result = self._get(pull.queue, pull.header, pull.accepts)
        code = _code(result, pull.header)
        caught_up = result.next_begin_offset >= pull.queue.max_offset
        if code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY) and caught_up and not expired:
            # What was filtered out isn't looked at again.
            pull.header.queue_offset = result.next_begin_offset
            self.polling.hold(pull)
            return
        if not pull.connection.is_closed:
            pull.connection.reply(pull.request, self._answer(pull.request, code, result))

    def _get(self, queue: ConsumeQueue, header: PullMessageRequestHeader, accepts: Filter) -> GetResult:
        max_bytes = header.max_msg_bytes or DEFAULT_PULL_BYTES
        return self._store.get(queue, header.queue_offset, header.max_msg_nums, max_bytes, accepts)

    def _answer(self, request: RemotingCommand, code: int, result: GetResult) -> list[bytes | memoryview]:
        response = RemotingCommand.response(
            code,
            result.status.name,
            PullMessageResponseHeader(
                suggest_which_broker_id=0,
                next_begin_offset=result.next_begin_offset,
                min_offset=result.min_offset,
                max_offset=result.max_offset,
            ),
        )
        response.opaque = request.opaque
        response.serialize_type = request.serialize_type
        return [response.encode_head(result.size), *result.buffers]

    def _queue(self, header: PullMessageRequestHeader) -> ConsumeQueue:
        if not self._config.broker_permission & PERM_READ:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"the broker[{self._config.broker_ip1}] pulling message is forbidden"
            )
        group = self._groups.get(header.consumer_group)
        if group is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{header.consumer_group}] does not exist",
            )
        if not group.consume_enable:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"subscription group no permission, {header.consumer_group}"
            )
        if not self._groups.may_read(header.consumer_group, header.topic):
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{header.consumer_group}] is forbidden for topic[{header.topic}]",
            )
        topic = self._topics.get(header.topic)
        if topic is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please!")
        if not topic.is_readable:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"the topic[{header.topic}] pulling message is forbidden")
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] topicConfig.readQueueNums:"
                f"[{topic.read_queue_nums}]",
            )
        return self._store.queue(header.topic, header.queue_id)

    def _filter(self, header: PullMessageRequestHeader) -> Filter:
        """What the queue's tags codes must pass; the client compares the tags themselves."""
        if header.sys_flag & PULL_SUBSCRIPTION:
            return tag_filter(header.subscription or SUBSCRIBE_ALL, header.expression_type or EXPRESSION_TAG)
        group = self._members.consumers.get(header.consumer_group)
        if group is None:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist")
        subscription = group.subscriptions.get(header.topic)
        if subscription is None:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist")
        if subscription.sub_version < header.sub_version:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        return tag_filter(subscription.sub_string, subscription.expression_type)


@lru_cache(maxsize=1000)
def tag_filter(expression: str, expression_type: str) -> Filter:
    """The test of a tags code for `*` (None: all pass) or `a || b`. Raises RequestRefused for SQL92."""
    if expression_type != EXPRESSION_TAG:
        # What Java answers without enablePropertyFilter.
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"The broker does not support consumer to filter message by {expression_type}"
        )
    codes = SubscriptionData.parse("", expression).code_set
    return frozenset(codes).__contains__ if codes else None


def _code(result: GetResult, header: PullMessageRequestHeader) -> int:
    code = _CODES.get(result.status)
    if code is not None:
        return code
    # NO_MATCHED_LOGIC_QUEUE, NO_MESSAGE_IN_QUEUE: an empty queue is waited for, an offset in it can't be right.
    return ResponseCode.PULL_OFFSET_MOVED if header.queue_offset else ResponseCode.PULL_NOT_FOUND
