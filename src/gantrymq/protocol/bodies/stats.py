"""Bodies with statistics of a broker's topics and groups (remoting/protocol/admin/*, body/*).

Bodies with a table by MessageQueue are plain classes with `encode` and `decode`. See `bodies/queue_map.py`. Times are
in ms since the epoch, rates in messages per second.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass, field

import msgspec

from gantrymq.protocol.bodies.heartbeat import SubscriptionData
from gantrymq.protocol.bodies.queue_map import QueueObject, by_queue, decode_with_queue_maps, encode_queue_map_in_steps
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.steps import finish


class OffsetWrapper(msgspec.Struct, rename="camel"):
    """A group's progress in a queue. `last_timestamp` is the store time of the last consumed message, or 0.

    Java's brokers do not send `min_offset`, the offset of the oldest message.
    """

    broker_offset: int = 0
    consumer_offset: int = 0
    pull_offset: int = 0
    last_timestamp: int = 0
    min_offset: int = 0

    @property
    def lag(self) -> int:
        """The lag in messages, without deleted and expired ones. 0 if the group's offset is after the queue's end."""
        return max(self.broker_offset - max(self.consumer_offset, self.min_offset), 0)

    @property
    def inflight(self) -> int:
        """The number of messages in flight: delivered to the group but not acknowledged."""
        return max(self.pull_offset - self.consumer_offset, 0)


class TopicOffset(msgspec.Struct, rename="camel"):
    """The offsets of a queue. `last_update_timestamp` is the store time of its last message; 0 for an empty queue."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


class _ConsumeStats(msgspec.Struct, rename="camel"):
    consume_tps: float = 0.0
    offset_table: dict[str, OffsetWrapper] = {}


class _ConsumeStatsOut(msgspec.Struct, rename="camel"):
    consume_tps: float
    offset_table: msgspec.Raw


@dataclass(slots=True)
class ConsumeStats:
    """The response to GET_CONSUME_STATS (208)."""

    consume_tps: float = 0.0
    offset_table: dict[MessageQueue, OffsetWrapper] = field(default_factory=dict)

    @property
    def total_diff(self) -> int:
        """The group's lag in messages."""
        # Calling `lag` for each of 65,536 queues takes several times as long.
        total = 0
        for o in self.offset_table.values():
            first = o.consumer_offset if o.consumer_offset > o.min_offset else o.min_offset
            if o.broker_offset > first:
                total += o.broker_offset - first
        return total

    @property
    def inflight_total_diff(self) -> int:
        """The number of messages in flight."""
        table = self.offset_table.values()
        return sum(o.pull_offset - o.consumer_offset for o in table if o.pull_offset > o.consumer_offset)

    def encode(self) -> bytes:
        return finish(self.encode_in_steps())

    def encode_in_steps(self) -> Generator[None, None, bytes]:
        table = yield from encode_queue_map_in_steps(self.offset_table)
        return encode_json(_ConsumeStatsOut(self.consume_tps, table))

    @classmethod
    def decode(cls, data: bytes) -> ConsumeStats:
        """Parses the body. Raises BodyError."""
        return cls._of(decode_with_queue_maps(data, _ConsumeStats))

    @classmethod
    def _of(cls, body: _ConsumeStats) -> ConsumeStats:
        return cls(body.consume_tps, by_queue(body.offset_table))


class _TopicStats(msgspec.Struct, rename="camel"):
    topic_put_tps: float = 0.0
    offset_table: dict[str, TopicOffset] = {}


class _TopicStatsOut(msgspec.Struct, rename="camel"):
    offset_table: msgspec.Raw
    topic_put_tps: float


@dataclass(slots=True)
class TopicStatsTable:
    """The response to GET_TOPIC_STATS_INFO (202)."""

    offset_table: dict[MessageQueue, TopicOffset] = field(default_factory=dict)
    topic_put_tps: float = 0.0

    @property
    def message_count(self) -> int:
        """The number of messages in all queues."""
        return sum(max(queue.max_offset - queue.min_offset, 0) for queue in self.offset_table.values())

    def encode(self) -> bytes:
        return finish(self.encode_in_steps())

    def encode_in_steps(self) -> Generator[None, None, bytes]:
        table = yield from encode_queue_map_in_steps(self.offset_table)
        return encode_json(_TopicStatsOut(table, self.topic_put_tps))

    @classmethod
    def decode(cls, data: bytes) -> TopicStatsTable:
        """Parses the body. Raises BodyError."""
        body = decode_with_queue_maps(data, _TopicStats)
        return cls(by_queue(body.offset_table), body.topic_put_tps)


def max_offsets(data: bytes) -> dict[int, int]:
    """Returns {queue id: max offset} of a one-topic TopicStatsTable, 40 times as fast as `decode`. Raises BodyError."""
    found = _MAX_OFFSETS.findall(data)
    if len(found) == data.count(b'"queueId"'):
        return {int(queue_id): int(offset) for queue_id, offset in found}
    # The name of a topic or broker contains brackets.
    return {queue.queue_id: offsets.max_offset for queue, offsets in TopicStatsTable.decode(data).offset_table.items()}


#: Matches queue id and max offset of one queue. The fields of each object can have any order.
_MAX_OFFSETS = re.compile(rb'"queueId":([0-9]{1,10})[^{}]*\}:\{[^{}]*?"maxOffset":([0-9]{1,19})')


class _ConsumeStatsList(msgspec.Struct, rename="camel"):
    consume_stats_list: list[dict[str, list[_ConsumeStats]]] = []
    broker_addr: str = ""
    total_diff: int = 0
    total_inflight_diff: int = 0


@dataclass(slots=True)
class ConsumeStatsList:
    """The response to GET_BROKER_CONSUME_STATS (317): one ConsumeStats per group and topic."""

    by_group: dict[str, list[ConsumeStats]] = field(default_factory=dict)
    broker_addr: str = ""

    @classmethod
    def decode(cls, data: bytes) -> ConsumeStatsList:
        """Parses the body. Raises BodyError."""
        body = decode_with_queue_maps(data, _ConsumeStatsList)
        groups = {group: topics for table in body.consume_stats_list for group, topics in table.items()}
        return cls({group: [ConsumeStats._of(s) for s in topics] for group, topics in groups.items()}, body.broker_addr)


class ConsumeStatsListEncoder:
    """Encodes a ConsumeStatsList group by group, because there may be thousands of groups."""

    def __init__(self, broker_addr: str) -> None:
        self._broker_addr = broker_addr
        self._groups: list[bytes] = []
        self._diff = self._inflight_diff = 0

    def add(self, group: str, topics: list[ConsumeStats]) -> Generator[None, None, None]:
        """Adds a group, in steps."""
        encoded = []
        for stats in topics:
            encoded.append((yield from stats.encode_in_steps()))
        self._groups.append(b"{%b:[%b]}" % (encode_json(group), b",".join(encoded)))
        self._diff += sum(stats.total_diff for stats in topics)
        self._inflight_diff += sum(stats.inflight_total_diff for stats in topics)

    def end(self) -> bytes:
        """Returns the body."""
        return b'{"consumeStatsList":[%b],"brokerAddr":%b,"totalDiff":%d,"totalInflightDiff":%d}' % (
            b",".join(self._groups),
            encode_json(self._broker_addr),
            self._diff,
            self._inflight_diff,
        )


class QueueTimeSpan(msgspec.Struct, rename="camel"):
    """Store times of a queue's first, last and last consumed message. `delay_time` is the lag in ms, or 0."""

    message_queue: QueueObject
    min_time_stamp: int = 0
    max_time_stamp: int = 0
    consume_time_stamp: int = 0
    delay_time: int = 0


class QueryConsumeTimeSpanBody(msgspec.Struct, rename="camel"):
    """The response to QUERY_CONSUME_TIME_SPAN (303)."""

    consume_time_span_set: list[QueueTimeSpan] = []


class ConsumeQueueData(msgspec.Struct, rename="camel"):
    """One entry of a consume queue."""

    physic_offset: int = 0
    physic_size: int = 0
    tags_code: int = 0
    eval: bool = False
    msg: str | None = None


class QueryConsumeQueueResponseBody(msgspec.Struct, rename="camel"):
    """The response to QUERY_CONSUME_QUEUE (321). It has no subscription if the request has no group."""

    queue_data: list[ConsumeQueueData] = []
    max_queue_index: int = 0
    min_queue_index: int = 0
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None


class BrokerStatsItem(msgspec.Struct):
    """The number of messages in a period, their rate, and their average number per call."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


class BrokerStatsData(msgspec.Struct, rename="camel"):
    """The response to VIEW_BROKER_STATS_DATA (315)."""

    stats_minute: BrokerStatsItem = msgspec.field(default_factory=BrokerStatsItem)
    stats_hour: BrokerStatsItem = msgspec.field(default_factory=BrokerStatsItem)
    stats_day: BrokerStatsItem = msgspec.field(default_factory=BrokerStatsItem)
