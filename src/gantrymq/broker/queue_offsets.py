"""Questions about a queue: its first and last offset, the offset at a time (`AdminBrokerProcessor`)."""

from __future__ import annotations

from gantrymq.broker.part import Part
from gantrymq.broker.topics import BrokerTopics
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
from gantrymq.store.message_store import MessageStore


class QueueOffsets(Part):
    """Answers from the store; a queue that was never written is empty."""

    def __init__(self, store: MessageStore, topics: BrokerTopics) -> None:
        self._store = store
        self._topics = topics

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.GET_MAX_OFFSET: self.max_offset,
            RequestCode.GET_MIN_OFFSET: self.min_offset,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest_store_time,
        }

    def max_offset(self, connection: Connection, request: RemotingCommand) -> Reply:
        queue = self._queue(request.read_header(QueueRequestHeader))
        return _offset(self._store.shown_end(queue) if queue else 0)

    def min_offset(self, connection: Connection, request: RemotingCommand) -> Reply:
        queue = self._queue(request.read_header(QueueRequestHeader))
        return _offset(queue.min_offset if queue else 0)

    def search_offset(self, connection: Connection, request: RemotingCommand) -> Reply:
        header = request.read_header(SearchOffsetRequestHeader)
        queue = self._queue(QueueRequestHeader(topic=header.topic, queue_id=header.queue_id))
        upper = (header.boundary_type or "").upper() == "UPPER"
        return _offset(self._store.offset_by_time(queue, header.timestamp, upper) if queue else 0)

    def earliest_store_time(self, connection: Connection, request: RemotingCommand) -> Reply:
        queue = self._queue(request.read_header(QueueRequestHeader))
        timestamp = self._store.store_time(queue, queue.min_offset) if queue else -1
        return RemotingCommand.response(header=StoreTimeResponseHeader(timestamp=timestamp))

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
