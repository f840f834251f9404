"""Requests for the first offset of a queue, the last offset, and the offset at a time (`AdminBrokerProcessor`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.broker.context import BrokerContext
from gantrymq.broker.feature import Feature
from gantrymq.errors import RequestRefused
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.offset import (
    OffsetResponseHeader,
    QueueRequestHeader,
    SearchOffsetRequestHeader,
    StoreTimeResponseHeader,
)
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.store.consume_queue import ConsumeQueue

if TYPE_CHECKING:
    from gantrymq.tier.tier import Tier


class QueueOffsets(Feature):
    """Handles requests for queue offsets. A queue without messages has the offset 0."""

    def __init__(self, context: BrokerContext) -> None:
        self._store = context.store
        self._topics = context.topics
        self._tier = context.tier

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.GET_MAX_OFFSET: self.max_offset,
            RequestCode.GET_MIN_OFFSET: self.min_offset,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest_store_time,
        }

    def max_offset(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Handles GET_MAX_OFFSET: returns the offset after the last confirmed message."""
        queue = self._queue(request.read_header(QueueRequestHeader))
        return _offset(self._store.confirmed_end(queue) if queue else 0)

    def min_offset(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Handles GET_MIN_OFFSET: returns the offset of the oldest message, which may be in the tier."""
        queue = self._queue(request.read_header(QueueRequestHeader))
        if queue is not None and self._tier is not None:
            return _offset(self._tier.min_offset(queue))
        return _offset(queue.min_offset if queue else 0)

    def search_offset(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Handles SEARCH_OFFSET_BY_TIMESTAMP: returns the offset at a store time."""
        header = request.read_header(SearchOffsetRequestHeader)
        queue = self._queue(QueueRequestHeader(topic=header.topic, queue_id=header.queue_id))
        upper = (header.boundary_type or "").upper() == "UPPER"
        if queue is None:
            return _offset(0)
        offset = self._store.offset_by_time(queue, header.timestamp, upper)
        if self._tier is None or offset > queue.min_offset or self._tier.min_offset(queue) == offset:
            return _offset(offset)
        if not (upper and 0 <= self._store.store_time(queue, offset) <= header.timestamp):
            connection.respond_with(request, self._search_tier(self._tier, queue, header.timestamp, upper, offset))
            return None
        return _offset(offset)

    async def _search_tier(
        self, tier: Tier, queue: ConsumeQueue, timestamp_ms: int, upper: bool, otherwise: int
    ) -> RemotingCommand:
        found = await tier.offset_by_time(queue, timestamp_ms, upper)
        return _offset(otherwise if found is None else found)

    def earliest_store_time(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Handles GET_EARLIEST_MSG_STORETIME: returns the oldest message's store time in ms, -1 if there is none.

        It is the message at the offset that GET_MIN_OFFSET returns, or the next one that can be read.
        """
        queue = self._queue(request.read_header(QueueRequestHeader))
        if queue is not None and self._tier is not None and self._tier.min_offset(queue) < queue.min_offset:
            connection.respond_with(request, self._earliest_in_tier(self._tier, queue))
            return None
        return _store_time(self._store.store_time(queue, queue.min_offset) if queue else -1)

    async def _earliest_in_tier(self, tier: Tier, queue: ConsumeQueue) -> RemotingCommand:
        timestamp = await tier.earliest_store_time(queue)
        return _store_time(self._store.store_time(queue, queue.min_offset) if timestamp is None else timestamp)

    def _queue(self, header: QueueRequestHeader) -> ConsumeQueue | None:
        topic = self._topics.get(header.topic)
        if topic is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist")
        if not 0 <= header.queue_id < max(topic.read_queue_nums, topic.write_queue_nums):
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"queueId[{header.queue_id}] is illegal for topic {header.topic}"
            )
        return self._store.find_queue(header.topic, header.queue_id)


def _offset(offset: int) -> RemotingCommand:
    return RemotingCommand.response(header=OffsetResponseHeader(offset=offset))


def _store_time(timestamp_ms: int) -> RemotingCommand:
    return RemotingCommand.response(header=StoreTimeResponseHeader(timestamp=timestamp_ms))
