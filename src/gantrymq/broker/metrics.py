"""What a broker tells Prometheus, under RocketMQ 5's names where it has one (`BrokerMetricsConstant`)."""

from __future__ import annotations

from collections.abc import Iterator

from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.consumer_groups import GroupMembers
from gantrymq.broker.consumer_offsets import ConsumerOffsets
from gantrymq.broker.runtime_info import RuntimeInfo
from gantrymq.broker.topics import TopicTable
from gantrymq.metrics import Kind, Metric, gauge
from gantrymq.remoting.connection import Connection
from gantrymq.store.message_store import MessageStore


class BrokerMetrics:
    """Reads the tables when somebody asks; nothing is counted per message."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: TopicTable,
        members: GroupMembers[Connection],
        offsets: ConsumerOffsets,
        runtime: RuntimeInfo,
    ) -> None:
        self._labels = {
            "cluster": config.broker_cluster_name,
            "node_type": "broker",
            "node_id": config.broker_name,
        }
        self._store = store
        self._topics = topics
        self._members = members
        self._offsets = offsets
        self._runtime = runtime

    def collect(self) -> Iterator[Metric]:
        yield Metric(
            "rocketmq_messages_in_total",
            Kind.COUNTER,
            "Messages ever stored, by topic.",
            [(self._labels | {"topic": topic}, count) for topic, count in self._runtime.put_totals()],
        )
        yield Metric(
            "rocketmq_messages_out_total",
            Kind.COUNTER,
            "Messages that groups have committed as consumed, by topic and group.",
            [(self._consumed(key), count) for key, count in self._offsets.totals()],
        )
        yield gauge("rocketmq_topic_number", "Topics.", len(self._topics.table.topic_config_table))
        yield Metric(
            "rocketmq_consumer_connections",
            Kind.GAUGE,
            "Live members of consumer groups.",
            [
                (self._labels | {"consumer_group": group.name}, len(group.clients))
                for group in self._members.consumers.values()
            ],
        )
        yield gauge(
            "rocketmq_storage_flush_behind_bytes",
            "Bytes of the commit log that are not on the disk yet.",
            self._store.max_physical_offset - self._store.flushed_offset,
        )
        yield gauge(
            "rocketmq_storage_dispatch_behind_bytes",
            "Bytes of the commit log that are not in the key index yet.",
            self._store.index_behind_bytes,
        )
        yield gauge(
            "rocketmq_storage_size",
            "Bytes of the commit log.",
            self._store.max_physical_offset - self._store.min_physical_offset,
        )

    def _consumed(self, key: str) -> dict[str, str]:
        topic, _, group = key.rpartition("@")
        return self._labels | {"topic": topic, "consumer_group": group}
