"""What a broker tells Prometheus: RocketMQ 5's names and labels.

Sources: `BrokerMetricsConstant`, `BrokerMetricsManager`, `DefaultStoreMetricsManager`, `PopMetricsManager`. What would
have to be measured for each request isn't there, nor what belongs to Java's thread pools.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from gantrymq.background.jobs import Jobs
from gantrymq.broker.acting.acting import Acting
from gantrymq.broker.admin.runtime_info import RuntimeInfo
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.consumer_groups import Client, GroupMembers
from gantrymq.broker.consumer_lag import ConsumerLag
from gantrymq.broker.deliveries import Deliveries
from gantrymq.broker.part import Part
from gantrymq.broker.pop.service import PopService
from gantrymq.broker.replication.metrics import replication_metrics
from gantrymq.broker.replication.replicating import Replicating
from gantrymq.broker.schedule import Schedule
from gantrymq.broker.subscription_groups import SubscriptionGroupTable
from gantrymq.broker.timer.timer import Timer
from gantrymq.broker.topics import BrokerTopics
from gantrymq.broker.transaction.transactions import Transactions
from gantrymq.metrics import Kind, Metric, MetricsServer, job_metrics
from gantrymq.protocol.bodies.heartbeat import CONSUME_ACTIVELY, CONSUME_PASSIVELY, CONSUME_POP
from gantrymq.protocol.codes import LanguageCode
from gantrymq.protocol.receipt_handle import normal_topic
from gantrymq.protocol.topic_name import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, is_system_topic
from gantrymq.protocol.version_name import version_name
from gantrymq.remoting.connection import Connection
from gantrymq.remoting.loop_watch import LoopWatch
from gantrymq.store.message_store import MessageStore
from gantrymq.system import clock

#: `MixAll.CID_RMQ_SYS_PREFIX`, in lower case as `BrokerMetricsManager.isSystemGroup` compares it.
_SYSTEM_GROUP_PREFIX = "cid_rmq_sys_"
#: `ConsumeType.getTypeCN`
_CONSUME_MODES = {CONSUME_ACTIVELY: "pull", CONSUME_PASSIVELY: "push", CONSUME_POP: "pop"}
_LANGUAGES = {language.value: language.name.lower() for language in LanguageCode}

Labels = Mapping[str, str]
Samples = Iterable[tuple[Labels, float]]


class BrokerMetrics(Part):
    """Reads the tables when somebody asks at metricsPort; keeps nothing itself."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: BrokerTopics,
        groups: SubscriptionGroupTable,
        members: GroupMembers[Connection],
        deliveries: Deliveries,
        lag: ConsumerLag,
        runtime: RuntimeInfo,
        timer: Timer,
        transactions: Transactions,
        pops: PopService,
        schedule: Schedule,
        jobs: Jobs,
        loop_watch: LoopWatch,
        replicating: Replicating,
        acting: Acting,
    ) -> None:
        self._config = config
        self._labels = {
            "node_type": "broker",
            "cluster": config.broker_cluster_name,
            "node_id": config.broker_name,
        }
        self._storage_labels = self._labels | {"storage_type": "local", "storage_medium": "disk"}
        self._store = store
        self._topics = topics
        self._groups = groups
        self._members = members
        self._deliveries = deliveries
        self._lag = lag
        self._runtime = runtime
        self._timer = timer
        self._transactions = transactions
        self._pops = pops
        self._schedule = schedule
        self._jobs = jobs
        self._loop_watch = loop_watch
        self._replicating = replicating
        self._acting = acting
        self._server = MetricsServer(self.collect, host=config.bind_address, port=config.metrics_port)

    async def start(self) -> None:
        """Raises GantryError when metricsPort is taken."""
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop()

    def collect(self) -> Iterator[Metric]:
        yield from self._broker()
        yield from self._messages()
        yield from self._connections()
        yield from self._lags()
        yield from self._ends_of_transactions()
        yield from self._storage()
        if self._config.store.timer_wheel_enable:
            yield from self._timers()
        yield from self._popping()
        yield from self._skipped()
        yield from replication_metrics(self._config, self._replicating, self._acting.is_acting, self._labels)
        yield from job_metrics(self._jobs, self._labels)
        yield from self._loop_watch.metrics(self._labels)

    # -- parts --------------------------------------------------------------------------------------------------

    def _broker(self) -> Iterator[Metric]:
        groups = self._groups.table.subscription_group_table
        yield self._gauge("rocketmq_broker_permission", "4: reads, 2: writes.", self._config.broker_permission)
        yield self._gauge("rocketmq_topic_number", "Topics.", len(self._topics.table.topic_config_table))
        yield self._gauge("rocketmq_consumer_group_number", "Consumer groups.", len(groups))

    def _messages(self) -> Iterator[Metric]:
        stored = list(self._runtime.put_totals())
        yield _counter(
            "rocketmq_messages_in_total",
            "Messages ever stored, by topic.",
            [(self._of(topic=topic, is_system=is_system_topic(topic)), count) for topic, count in stored],
        )
        yield _counter(
            "rocketmq_throughput_in_total",
            "Bytes ever stored.",
            [(self._labels, self._store.max_physical_offset)],
        )
        delivered = [
            (self._of_group(group, normal_topic(topic, group), is_retry=topic.startswith(RETRY_TOPIC_PREFIX)), delivery)
            for (topic, group), delivery in self._deliveries.table.items()
        ]
        yield _counter(
            "rocketmq_messages_out_total",
            "Messages sent to consumers since the start, by topic and group.",
            _summed((labels, delivery.messages) for labels, delivery in delivered),
        )
        yield _counter(
            "rocketmq_throughput_out_total",
            "Bytes sent to consumers since the start, by topic and group.",
            _summed((labels, delivery.size) for labels, delivery in delivered),
        )
        yield _counter(
            "rocketmq_send_to_dlq_messages_total",
            "Messages ever put into dead-letter topics, by group.",
            [
                (self._of(consumer_group=group, is_system=_is_system_group(group)), count)
                for topic, count in stored
                if (group := topic.removeprefix(DLQ_TOPIC_PREFIX)) != topic
            ],
        )

    def _connections(self) -> Iterator[Metric]:
        producers = Counter(
            _kind(client) for clients in self._members.producers.values() for client in clients.values()
        )
        yield Metric(
            "rocketmq_producer_connections",
            Kind.GAUGE,
            "Live members of producer groups.",
            [
                (self._of(language=language, version=version, protocol_type="remoting"), count)
                for (language, version), count in producers.items()
            ],
        )
        yield Metric(
            "rocketmq_consumer_connections",
            Kind.GAUGE,
            "Live members of consumer groups.",
            [
                (
                    self._of(
                        consumer_group=group.name,
                        language=language,
                        version=version,
                        consume_mode=_CONSUME_MODES.get(group.consume_type, "unknown"),
                        protocol_type="remoting",
                        is_system=_is_system_group(group.name),
                    ),
                    count,
                )
                for group in self._members.consumers.values()
                for (language, version), count in Counter(map(_kind, group.clients.values())).items()
            ],
        )

    def _lags(self) -> Iterator[Metric]:
        now_ms = clock.now_ms()
        backlogs = [
            (self._of_group(backlog.group, backlog.topic, is_retry=backlog.is_retry), backlog)
            for backlog in self._lag.backlogs()
        ]
        for name, description, values in (
            ("lag_messages", "Messages that aren't acknowledged.", [one.messages for _, one in backlogs]),
            ("lag_latency", "Age of the oldest of them, ms.", [_age(one.oldest_ms, now_ms) for _, one in backlogs]),
            ("inflight_messages", "Those handed out.", [one.inflight for _, one in backlogs]),
            (
                "queueing_latency",
                "Age of the oldest that isn't handed out, ms.",
                [_age(one.oldest_ready_ms, now_ms) for _, one in backlogs],
            ),
            ("ready_messages", "Those not handed out.", [one.ready for _, one in backlogs]),
        ):
            samples = [(labels, value) for (labels, _), value in zip(backlogs, values, strict=True)]
            yield Metric(f"rocketmq_consumer_{name}", Kind.GAUGE, description, samples)

    def _ends_of_transactions(self) -> Iterator[Metric]:
        for name, counts in (("commit", self._transactions.commits), ("rollback", self._transactions.rollbacks)):
            samples = [(self._of(topic=topic), count) for topic, count in counts.items()]
            yield _counter(f"rocketmq_{name}_messages_total", "Transactions that ended so since the start.", samples)
        yield self._gauge(
            "rocketmq_half_messages",
            "Messages whose transactions haven't ended.",
            self._transactions.open_count(),
        )

    def _storage(self) -> Iterator[Metric]:
        store = self._store
        earliest_ms = self._runtime.earliest_timestamp()
        for name, description, value in (
            ("size", "Bytes of the commit log.", store.max_physical_offset - store.min_physical_offset),
            (
                "flush_behind_bytes",
                "Bytes of the commit log that are not on the disk yet.",
                store.max_physical_offset - store.flushed_offset,
            ),
            (
                "dispatch_behind_bytes",
                "Bytes of the commit log that are not in the key index yet.",
                store.keys.index_behind_bytes,
            ),
            (
                "message_reserve_time",
                "Age of the oldest message, ms.",
                _age(earliest_ms if earliest_ms > 0 else None, clock.now_ms()),
            ),
        ):
            yield self._storage_gauge(f"rocketmq_storage_{name}", description, value)
        # Java has it in its runtime info alone.
        yield Metric(
            "gantry_disk_used_ratio",
            Kind.GAUGE,
            "How much of the partition is used that has these files, 0 to 1.",
            [(self._of(files=files), ratio) for files, ratio in self._runtime.disk_used_ratios().items()],
        )

    def _timers(self) -> Iterator[Metric]:
        behind = self._timer.behind()
        yield self._storage_gauge(
            "rocketmq_timer_enqueue_lag", "Timer messages not on the wheel yet.", behind.not_taken_in
        )
        yield self._storage_gauge(
            "rocketmq_timer_dequeue_latency", "How long timer messages are overdue, ms.", behind.overdue_ms
        )
        yield Metric(
            "rocketmq_timing_messages",
            Kind.GAUGE,
            "Timer messages that wait, by topic.",
            [(self._storage_labels | {"topic": topic}, count) for topic, count in self._timer.waiting().items()],
        )
        for name, count in self._timer.totals():
            yield _counter(
                f"rocketmq_timer_{name}_total",
                "Timer messages that went onto the wheel, or on from there, since the start.",
                [(self._storage_labels, count)],
            )

    def _popping(self) -> Iterator[Metric]:
        buffer = self._pops.buffer
        yield self._gauge("rocketmq_pop_checkpoint_buffer_size", "Pops of which memory alone knows.", len(buffer))
        yield self._gauge(
            "rocketmq_pop_offset_buffer_size", "Pops that hold back a group's offset.", buffer.held_offsets
        )
        yield Metric(
            "rocketmq_pop_revive_lag",
            Kind.GAUGE,
            "Records of the revive topic that aren't read yet, by queue.",
            [(self._of(queue_id=str(id_)), lag) for id_, lag in enumerate(self._pops.revive_lags())],
        )

    def _skipped(self) -> Iterator[Metric]:
        counts = {
            "delay levels": self._schedule.skipped,
            "timer": self._timer.skipped,
            "pop": self._pops.skipped,
            "transactions": self._transactions.skipped,
        }
        yield _counter(
            "gantry_skipped_messages_total",
            "Messages on their way inside the broker that are damaged or can't be delivered: the log names each.",
            [(self._of(by=name), count) for name, count in counts.items()],
        )

    # -- labels -------------------------------------------------------------------------------------------------

    def _gauge(self, name: str, description: str, value: float) -> Metric:
        return Metric(name, Kind.GAUGE, description, [(self._labels, value)])

    def _storage_gauge(self, name: str, description: str, value: float) -> Metric:
        return Metric(name, Kind.GAUGE, description, [(self._storage_labels, value)])

    def _of(self, **labels: str | bool) -> dict[str, str]:
        return self._labels | {
            name: value if isinstance(value, str) else str(value).lower() for name, value in labels.items()
        }

    def _of_group(self, group: str, topic: str, *, is_retry: bool) -> dict[str, str]:
        is_system = is_system_topic(topic) or _is_system_group(group)
        return self._of(consumer_group=group, topic=topic, is_retry=is_retry, is_system=is_system)


def _counter(name: str, description: str, samples: Samples) -> Metric:
    return Metric(name, Kind.COUNTER, description, samples)


def _summed(samples: Samples) -> Samples:
    """Samples with the same labels as one: a group may have two retry topics for a topic."""
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    for labels, value in samples:
        key = tuple(labels.items())
        sums[key] = sums.get(key, 0) + value
    return [(dict(key), value) for key, value in sums.items()]


def _kind(client: Client[Connection]) -> tuple[str, str]:
    """(language, version)."""
    return _LANGUAGES.get(client.language, "other"), version_name(client.version).lower()


def _age(stored_ms: int | None, now_ms: int) -> int:
    return 0 if stored_ms is None else max(now_ms - stored_ms, 0)


def _is_system_group(group: str) -> bool:
    return group.lower().startswith(_SYSTEM_GROUP_PREFIX)
