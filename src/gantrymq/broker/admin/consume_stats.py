"""Consumer lag of groups: GET_CONSUME_STATS and GET_BROKER_CONSUME_STATS (`AdminBrokerProcessor`)."""

from __future__ import annotations

from collections.abc import Generator, Iterable

from gantrymq.broker.admin.runtime_info import RuntimeInfo
from gantrymq.broker.context import BrokerContext
from gantrymq.broker.feature import Feature
from gantrymq.protocol.bodies.stats import ConsumeStats, ConsumeStatsListEncoder, OffsetWrapper
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.stats import GetConsumeStatsInBrokerHeader, GetConsumeStatsRequestHeader
from gantrymq.protocol.message import MessageQueue
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.remoting.long_requests import Steps

#: Maximum number of queues, and of groups, that one step of a request reads. A step takes about 1 ms.
_LOOKED_AT = 50
_GROUPS_AT_ONCE = 100


class ConsumeProgress(Feature):
    """Computes lag from the offsets that groups have committed, and messages in flight from those that they read.

    For pops, Java's PopMessageProcessor records no read offset, and PopConsumerService none of pops in order.
    """

    def __init__(self, context: BrokerContext, *, runtime: RuntimeInfo) -> None:
        self._long_requests = context.long_requests
        self._broker_name = context.config.broker_name
        self._address = context.address
        self._store = context.store
        self._min_offset = context.min_offset
        self._topics = context.topics
        self._groups = context.groups
        self._members = context.members
        self._offsets = context.offsets
        self._deliveries = context.deliveries
        self._runtime = runtime
        self._looked_at = 0

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.GET_CONSUME_STATS: self.consume_stats,
            RequestCode.GET_BROKER_CONSUME_STATS: self.all_consume_stats,
        }

    def consume_stats(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns a group's offsets and the ends of its queues. The result is empty for an unknown group or topic."""
        return self._long_requests.run(connection, request, self._stats_in_steps(request))

    def _stats_in_steps(self, request: RemotingCommand) -> Steps:
        header = request.read_header(GetConsumeStatsRequestHeader)
        group = header.consumer_group
        listed = [name for name in (header.topic_list or "").split(";") if name.strip()]
        if listed:
            names: Iterable[str] = dict.fromkeys(listed)
        else:
            asked = [header.topic] if header.topic and header.topic.strip() else sorted(self._offsets.topics_of(group))
            names = [name for name in asked if not self._members.has_left(group, name)]
        stats = ConsumeStats()
        for name in names:
            topic = self._topics.get(name)
            if topic is not None:
                stats.offset_table.update((yield from self._progress(group, topic)))
                stats.consume_tps += self._runtime.get_tps(group, name)
        return RemotingCommand.response(body=(yield from stats.encode_in_steps()))

    def all_consume_stats(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns the offsets of every group, in one table per topic."""
        return self._long_requests.run(connection, request, self._all_stats_in_steps(request))

    def _all_stats_in_steps(self, request: RemotingCommand) -> Steps:
        order_only = request.read_header(GetConsumeStatsInBrokerHeader).is_order
        answer = ConsumeStatsListEncoder(self._address)
        for number, group in enumerate(list(self._groups.table.subscription_group_table), 1):
            if not number % _GROUPS_AT_ONCE:
                yield
            stats = []
            for name in sorted(self._offsets.topics_of(group)):
                topic = self._topics.get(name)
                if topic is None or self._members.has_left(group, name) or (order_only and not topic.order):
                    continue
                progress = yield from self._progress(group, topic)
                stats.append(ConsumeStats(self._runtime.get_tps(group, name), progress))
            yield from answer.add(group, stats)
        return RemotingCommand.response(body=answer.end())

    def _progress(self, group: str, topic: TopicConfig) -> Generator[None, None, dict[MessageQueue, OffsetWrapper]]:
        name = topic.topic_name
        table = {}
        for queue_id in range(topic.read_queue_nums):
            queue = self._store.find_queue(name, queue_id)
            consumed = self._offsets.query(group, name, queue_id) or 0
            offsets = OffsetWrapper(0, consumed, consumed)
            if queue is not None:
                offsets.broker_offset = self._store.confirmed_end(queue)
                offsets.pull_offset = max(consumed, self._deliveries.read_to(queue, group) or 0)
                offsets.last_timestamp = max(0, self._store.store_time(queue, consumed - 1))
                offsets.min_offset = self._min_offset(queue)
            table[MessageQueue(name, self._broker_name, queue_id)] = offsets
            self._looked_at += 1
            if not self._looked_at % _LOOKED_AT:
                yield
        return table
