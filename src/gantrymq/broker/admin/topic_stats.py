"""Reads the contents of a topic's queues: GET_TOPIC_STATS_INFO, QUERY_CONSUME_TIME_SPAN, QUERY_CONSUME_QUEUE."""

from __future__ import annotations

from gantrymq.broker.admin.runtime_info import RuntimeInfo
from gantrymq.broker.context import BrokerContext
from gantrymq.broker.feature import Feature
from gantrymq.errors import RequestRefused
from gantrymq.protocol.bodies.queue_map import QueueObject
from gantrymq.protocol.bodies.stats import (
    ConsumeQueueData,
    QueryConsumeQueueResponseBody,
    QueryConsumeTimeSpanBody,
    QueueTimeSpan,
    TopicOffset,
    TopicStatsTable,
)
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.headers.query import QueryConsumeQueueRequestHeader
from gantrymq.protocol.headers.stats import QueryConsumeTimeSpanRequestHeader
from gantrymq.protocol.headers.topic import TopicRequestHeader
from gantrymq.protocol.message import MessageQueue
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.remoting.long_requests import Steps
from gantrymq.store.consume_queue import UNIT
from gantrymq.system import clock

#: Maximum number of queue units in a response.
MAX_UNITS = 10_000
#: Maximum number of queues that one step of a request reads. A step takes about 1 ms.
_LOOKED_AT = 50


class TopicStats(Feature):
    """Handles these requests. A queue without any message counts as empty."""

    def __init__(self, context: BrokerContext, *, runtime: RuntimeInfo) -> None:
        self._long_requests = context.long_requests
        self._broker_name = context.config.broker_name
        self._store = context.store
        self._min_offset = context.min_offset
        self._topics = context.topics
        self._members = context.members
        self._offsets = context.offsets
        self._runtime = runtime

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.GET_TOPIC_STATS_INFO: self.topic_stats,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.time_span,
            RequestCode.QUERY_CONSUME_QUEUE: self.consume_queue,
        }

    def topic_stats(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns the first and last offset of each queue, and the store time of its last message."""
        return self._long_requests.run(connection, request, self._stats_in_steps(request))

    def _stats_in_steps(self, request: RemotingCommand) -> Steps:
        topic = self._topic(request.read_header(TopicRequestHeader).topic)
        name = topic.topic_name
        stats = TopicStatsTable(topic_put_tps=self._runtime.put_tps(name))
        for queue_id in range(max(topic.read_queue_nums, topic.write_queue_nums)):
            queue = self._store.find_queue(name, queue_id)
            offsets = TopicOffset()
            if queue is not None:
                end = self._store.confirmed_end(queue)
                offsets = TopicOffset(self._min_offset(queue), end, max(0, self._store.store_time(queue, end - 1)))
            stats.offset_table[MessageQueue(name, self._broker_name, queue_id)] = offsets
            if not (queue_id + 1) % _LOOKED_AT:
                yield
        return RemotingCommand.response(body=(yield from stats.encode_in_steps()))

    def time_span(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns the store times of each queue's first, last and last consumed message."""
        return self._long_requests.run(connection, request, self._span_in_steps(request))

    def _span_in_steps(self, request: RemotingCommand) -> Steps:
        header = request.read_header(QueryConsumeTimeSpanRequestHeader)
        topic = self._topic(header.topic)
        now_ms = clock.now_ms()
        spans = []
        for queue_id in range(topic.write_queue_nums):
            span = QueueTimeSpan(QueueObject(self._broker_name, queue_id, header.topic), -1, -1, -1)
            queue = self._store.find_queue(header.topic, queue_id)
            end = self._store.confirmed_end(queue) if queue is not None else 0
            if queue is not None and end > 0:
                span.min_time_stamp = self._store.store_time(queue, queue.min_offset)
                span.max_time_stamp = self._store.store_time(queue, end - 1)
                consumed = self._offsets.query(header.group, header.topic, queue_id) or 0
                before = self._store.store_time(queue, consumed - 1)
                span.consume_time_stamp = span.min_time_stamp if before < 0 else before
                waiting = max(consumed, queue.min_offset)
                if waiting < end:
                    waiting_since = self._store.store_time(queue, waiting)
                    span.delay_time = max(0, now_ms - waiting_since)
            spans.append(span)
            if not (queue_id + 1) % _LOOKED_AT:
                yield
        return RemotingCommand.response(body=encode_json(QueryConsumeTimeSpanBody(spans)))

    def consume_queue(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns the units of a queue, unchanged from its files."""
        header = request.read_header(QueryConsumeQueueRequestHeader)
        queue = self._store.find_queue(header.topic, header.queue_id)
        if queue is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{header.queue_id}@{header.topic} is not exist!")
        body = QueryConsumeQueueResponseBody(max_queue_index=queue.max_offset, min_queue_index=queue.min_offset)
        if header.consumer_group:
            body.subscription_data = self._members.subscription(header.consumer_group, header.topic)
            if body.subscription_data is None:
                body.filter_data = f"{header.consumer_group}@{header.topic} is not online!"
        units = queue.units(header.index, min(header.count, MAX_UNITS))
        body.queue_data = [ConsumeQueueData(*unit) for unit in UNIT.iter_unpack(units)]
        remark = None
        if not queue.min_offset <= header.index < queue.max_offset:
            remark = f"Index {header.index} of {header.queue_id}@{header.topic} is not exist!"
        return RemotingCommand.response(remark=remark, body=encode_json(body))

    def _topic(self, name: str) -> TopicConfig:
        topic = self._topics.get(name)
        if topic is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
        return topic
