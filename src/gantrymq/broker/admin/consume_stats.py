"""How far groups are behind: GET_CONSUME_STATS and GET_BROKER_CONSUME_STATS (`AdminBrokerProcessor`)."""

from __future__ import annotations

from collections.abc import Iterable

from gantrymq.broker.admin.runtime_info import RuntimeInfo
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.consumer_groups import GroupMembers
from gantrymq.broker.consumer_offsets import ConsumerOffsets
from gantrymq.broker.part import Part
from gantrymq.broker.subscription_groups import SubscriptionGroupTable
from gantrymq.broker.topics import BrokerTopics
from gantrymq.protocol.bodies.stats import ConsumeStats, ConsumeStatsList, OffsetWrapper
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.stats import GetConsumeStatsInBrokerHeader, GetConsumeStatsRequestHeader
from gantrymq.protocol.message import MessageQueue
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.store.message_store import MessageStore


class ConsumeProgress(Part):
    """Answers from the offsets that groups have committed."""

    def __init__(
        self,
        config: BrokerConfig,
        address: str,
        store: MessageStore,
        topics: BrokerTopics,
        groups: SubscriptionGroupTable,
        members: GroupMembers[Connection],
        offsets: ConsumerOffsets,
        runtime: RuntimeInfo,
    ) -> None:
        self._broker_name = config.broker_name
        self._address = address
        self._store = store
        self._topics = topics
        self._groups = groups
        self._members = members
        self._offsets = offsets
        self._runtime = runtime

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.GET_CONSUME_STATS: self.consume_stats,
            RequestCode.GET_BROKER_CONSUME_STATS: self.all_consume_stats,
        }

    def consume_stats(self, connection: Connection, request: RemotingCommand) -> Reply:
        """A group's offsets beside the queues' ends; a group or topic that isn't known has none."""
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
                stats.offset_table.update(self._progress(group, topic))
                stats.consume_tps += self._runtime.get_tps(group, name)
        return RemotingCommand.response(body=stats.encode())

    def all_consume_stats(self, connection: Connection, request: RemotingCommand) -> Reply:
        """The same of every group, a table for each topic."""
        order_only = request.read_header(GetConsumeStatsInBrokerHeader).is_order
        answer = ConsumeStatsList(broker_addr=self._address)
        topics = self._offsets.topics_by_group()
        for group in self._groups.table.subscription_group_table:
            stats = []
            for name in sorted(topics.get(group, ())):
                topic = self._topics.get(name)
                if topic is None or self._members.has_left(group, name) or (order_only and not topic.order):
                    continue
                stats.append(ConsumeStats(self._runtime.get_tps(group, name), self._progress(group, topic)))
            answer.by_group[group] = stats
        return RemotingCommand.response(body=answer.encode())

    def _progress(self, group: str, topic: TopicConfig) -> dict[MessageQueue, OffsetWrapper]:
        name = topic.topic_name
        table = {}
        for queue_id in range(topic.read_queue_nums):
            queue = self._store.find_queue(name, queue_id)
            consumed = self._offsets.query(group, name, queue_id) or 0
            offsets = OffsetWrapper(queue.max_offset if queue else 0, consumed, consumed)
            if queue is not None:
                offsets.last_timestamp = max(0, self._store.store_time(queue, consumed - 1))
            table[MessageQueue(name, self._broker_name, queue_id)] = offsets
        return table
