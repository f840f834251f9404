"""Prometheus metrics of a broker, with RocketMQ 5's names and labels.

Sources: `BrokerMetricsConstant`, `BrokerMetricsManager`, `DefaultStoreMetricsManager`, `PopMetricsManager`. Metrics of
Java's thread pools are missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from gantrymq.broker.acting import ActingMaster
from gantrymq.broker.admin import RuntimeInfo
from gantrymq.broker.append import Appender
from gantrymq.broker.context import BrokerContext
from gantrymq.broker.delay import Delays
from gantrymq.broker.feature import Feature
from gantrymq.broker.metrics.consumer_lag import Backlog, ConsumerLag
from gantrymq.broker.metrics.replication_metrics import replication_metrics
from gantrymq.broker.metrics.tier_metrics import tier_metrics
from gantrymq.broker.metrics.timer_snapshot import SNAPSHOT_BOUNDS_S, TimerSnapshot
from gantrymq.broker.pop import PopService
from gantrymq.broker.replication import Replication
from gantrymq.broker.send import Deduplication
from gantrymq.broker.tables import Client
from gantrymq.broker.transaction import Transactions
from gantrymq.metrics import Kind, Metric, job_metrics
from gantrymq.metrics_export import MetricsOutput
from gantrymq.protocol.bodies.heartbeat import CONSUME_ACTIVELY, CONSUME_PASSIVELY, CONSUME_POP
from gantrymq.protocol.codes import LanguageCode
from gantrymq.protocol.receipt_handle import normal_topic
from gantrymq.protocol.topic_name import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, SYSTEM_GROUP_PREFIX, is_system_topic
from gantrymq.protocol.version_name import version_name
from gantrymq.remoting.connection import Connection
from gantrymq.remoting.loop_watch import LoopWatch
from gantrymq.store.log_paths import PathState
from gantrymq.system import clock

#: Consume modes, as in `ConsumeType.getTypeCN`.
_CONSUME_MODES = {CONSUME_ACTIVELY: "pull", CONSUME_PASSIVELY: "push", CONSUME_POP: "pop"}
#: Java's name of a successful write (`PutMessageStatus`). The counters omit failed writes, because these are repeated.
_PUT_OK = "PUT_OK"
_LANGUAGES = {language.value: language.name.lower() for language in LanguageCode}

#: Time limit to create the samples of one `Metric`, in seconds. The broker can serve requests between two metrics.
_STEP_S = 0.002

T = TypeVar("T")
Labels = Mapping[str, str]
Samples = Iterable[tuple[Labels, float]]


class BrokerMetrics(Feature):
    """Reads the broker's tables for each request of Prometheus and for each export.

    Only `TimerSnapshot`, `ReceivedMessages` and `RpcLatency` store values for it.
    """

    def __init__(
        self,
        context: BrokerContext,
        *,
        appender: Appender,
        runtime: RuntimeInfo,
        delays: Delays,
        deduplication: Deduplication,
        transactions: Transactions,
        pops: PopService,
        replication: Replication,
        acting: ActingMaster,
        loop_watch: LoopWatch,
    ) -> None:
        config = context.config
        self._config = config
        # As in Java, the labels of the configuration do not replace the broker's own labels.
        self._labels = config.metrics_labels | {
            "node_type": "broker",
            "cluster": config.broker_cluster_name,
            "node_id": config.broker_name,
        }
        self._storage_labels = self._labels | {"storage_type": "local", "storage_medium": "disk"}
        self._store = context.store
        self._tier = context.tier
        self._topics = context.topics
        self._groups = context.groups
        self._members = context.members
        self._deliveries = context.deliveries
        self._lag = ConsumerLag(context, pop_queues=pops.queues)
        self._runtime = runtime
        self._timer = delays.timer
        self._timer_snapshot = TimerSnapshot(delays.timer.number_due, context.jobs)
        self._deduplication = deduplication
        self._transactions = transactions
        self._pops = pops
        self._schedule = delays.schedule
        self._jobs = context.jobs
        self._stats = context.stats
        self._received = appender.received
        self._rate_limits = context.rate_limits
        self._loop_watch = loop_watch
        loop_watch.measure_requests()
        self._replication = replication
        self._acting = acting
        self._output = MetricsOutput(config, config.metrics_page, self.collect, context.jobs, meter="broker-meter")

    @property
    def page_port(self) -> int:
        """The port of the page for Prometheus; 0 without a page."""
        return self._output.page_port

    async def start(self) -> None:
        """Starts the output, as `MetricsOutput.start` does."""
        await self._output.start()
        if self._config.store.timer_wheel_enable:
            self._timer_snapshot.start()

    async def stop(self) -> None:
        self._timer_snapshot.stop()
        await self._output.stop()

    def collect(self) -> Iterator[Metric]:
        """Yields all metrics of the broker."""
        yield from self._broker()
        yield from self._messages()
        yield from self._connections()
        yield from self._lags()
        yield from self._ends_of_transactions()
        yield self._rate_limited()
        yield from self._deduplicated()
        yield from self._storage()
        if self._config.store.timer_wheel_enable:
            yield from self._timers()
        yield from self._popping()
        yield from self._skipped()
        yield from replication_metrics(self._config, self._replication, self._acting.is_acting, self._labels)
        if self._tier is not None:
            yield from tier_metrics(self._tier, self._store, self._labels)
        yield from job_metrics(self._jobs, self._labels)
        yield from self._loop_watch.metrics(self._labels)

    # -- metrics by subject -------------------------------------------------------------------------------------

    def _broker(self) -> Iterator[Metric]:
        groups = self._groups.table.subscription_group_table
        yield self._gauge(
            "rocketmq_broker_permission",
            "Permission of the broker: 4 is read, 2 is write.",
            self._config.broker_permission,
        )
        yield self._gauge("rocketmq_topic_number", "Number of topics.", len(self._topics.table.topic_config_table))
        yield self._gauge("rocketmq_consumer_group_number", "Number of consumer groups.", len(groups))
        yield Metric(
            "rocketmq_topic_create_execution_time_milliseconds",
            Kind.HISTOGRAM,
            "Durations of the requests that create or change topics, in milliseconds.",
            [
                (self._of(invocation_status=status, is_system=is_system), times)
                for (status, is_system), times in self._stats.topic_creation.by_result.items()
            ],
        )
        yield Metric(
            "rocketmq_consumer_group_create_execution_time_milliseconds",
            Kind.HISTOGRAM,
            "Durations of the requests that create or change consumer groups, in milliseconds.",
            [
                (self._of(invocation_status=status), times)
                for (status, _), times in self._stats.group_creation.by_result.items()
            ],
        )

    def _messages(self) -> Iterator[Metric]:
        received = [
            (self._of(topic=topic, message_type=kind, is_system=is_system_topic(topic)), sizes)
            for (topic, kind), sizes in (self._received.sizes().items() if self._received is not None else ())
            if not topic.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX))
        ]
        yield _counter(
            "rocketmq_messages_in_total",
            "Messages received since the start, by topic and type.",
            [(labels, sizes.count) for labels, sizes in received],
        )
        yield _counter(
            "rocketmq_throughput_in_total",
            "Bytes received since the start, by topic and type.",
            [(labels, sizes.sum) for labels, sizes in received],
        )
        yield Metric(
            "rocketmq_message_size",
            Kind.HISTOGRAM,
            "Sizes of received messages as records, in bytes, by topic and type.",
            received,
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
            "Messages stored in dead-letter topics since the start, by topic and group.",
            [
                (
                    self._of(
                        consumer_group=group,
                        topic=topic,
                        is_system=is_system_topic(topic) or _is_system_group(group),
                    ),
                    count,
                )
                for (topic, group), count in self._stats.dead_letters.items()
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
        samples = (
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
            for group in list(self._members.consumers.values())
            for (language, version), count in Counter(map(_kind, group.clients.values())).items()
        )
        for some in _in_steps(samples):
            yield Metric("rocketmq_consumer_connections", Kind.GAUGE, "Live members of consumer groups.", some)

    def _lags(self) -> Iterator[Metric]:
        for some in _in_steps(self._lag.backlogs()):
            yield from self._lags_of(some)

    def _lags_of(self, some: Iterable[Backlog]) -> Iterator[Metric]:
        now_ms = clock.now_ms()
        backlogs = [
            (self._of_group(backlog.group, backlog.topic, is_retry=backlog.is_retry), backlog) for backlog in some
        ]
        for name, description, values in (
            ("lag_messages", "Messages that are not acknowledged.", [one.messages for _, one in backlogs]),
            (
                "lag_latency_milliseconds",
                "Age of the oldest message in the lag, in milliseconds.",
                [_age(one.oldest_ms, now_ms) for _, one in backlogs],
            ),
            (
                "inflight_messages",
                "Messages in flight: delivered and not acknowledged.",
                [one.inflight for _, one in backlogs],
            ),
            (
                "queueing_latency_milliseconds",
                "Age of the oldest message that no consumer has received, in milliseconds.",
                [_age(one.oldest_ready_ms, now_ms) for _, one in backlogs],
            ),
            ("ready_messages", "Messages that no consumer has received.", [one.ready for _, one in backlogs]),
        ):
            samples = [(labels, value) for (labels, _), value in zip(backlogs, values, strict=True)]
            yield Metric(f"rocketmq_consumer_{name}", Kind.GAUGE, description, samples)

    def _rate_limited(self) -> Metric:
        return _counter(
            "gantry_rate_limited_requests_total",
            "Sends, pulls and pops refused because of a rate limit, by the topic or group with the limit. The hosts of "
            "clients have one counter without a name.",
            [(self._of(limit=kind, name=name), count) for kind, name, count in self._rate_limits.refused()],
        )

    def _deduplicated(self) -> Iterator[Metric]:
        repeated = [(self._of(topic=topic), count) for topic, count in self._deduplication.repeated.items()]
        description = "Messages that were not stored again because of their deduplication ids, by topic."
        yield _counter("gantry_deduplicated_messages_total", description, repeated)
        ids = [(self._of(topic=topic), count) for topic, count in self._deduplication.topics()]
        description = "Deduplication ids that the broker keeps, by topic."
        yield Metric("gantry_deduplication_ids", Kind.GAUGE, description, ids)

    def _ends_of_transactions(self) -> Iterator[Metric]:
        for name, description, counts in (
            ("commit", "Half messages committed since the start, by topic.", self._transactions.counts.commits),
            ("rollback", "Half messages rolled back since the start, by topic.", self._transactions.counts.rollbacks),
        ):
            samples = [(self._of(topic=topic), count) for topic, count in counts.items()]
            yield _counter(f"rocketmq_{name}_messages_total", description, samples)
        yield Metric(
            "rocketmq_half_messages",
            Kind.GAUGE,
            "Half messages whose transactions are open, by topic.",
            [(self._of(topic=topic), count) for topic, count in self._transactions.counts.open.items()],
        )
        yield Metric(
            "rocketmq_finish_message_latency_milliseconds",
            Kind.HISTOGRAM,
            "Time from the birth of a half message to its commit, by topic. In seconds, in spite of the name.",
            [(self._of(topic=topic), times) for topic, times in self._transactions.counts.latencies_s.items()],
        )

    def _storage(self) -> Iterator[Metric]:
        store = self._store
        earliest_ms = self._runtime.earliest_timestamp()
        for name, description, value in (
            ("size_bytes", "Used space of the partition with the store.", self._runtime.disk_used_bytes()),
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
                "message_reserve_time_milliseconds",
                "Age of the oldest message, in milliseconds.",
                _age(earliest_ms if earliest_ms > 0 else None, clock.now_ms()),
            ),
        ):
            yield self._storage_gauge(f"rocketmq_storage_{name}", description, value)
        yield self._gauge(
            "gantry_commit_log_bytes", "Size of the commit log.", store.max_physical_offset - store.min_physical_offset
        )
        states = Counter(state for state, _ in store.log_paths.states().values())
        yield Metric(
            "gantry_commit_log_directories",
            Kind.GAUGE,
            "Directories of the commit log, by state: writable, read-only, full or failed.",
            [(self._of(state=state), states[state]) for state in PathState],
        )
        # In Java this value is in the runtime info only.
        yield Metric(
            "gantry_disk_used_ratio",
            Kind.GAUGE,
            "Used share of the partition with these files, 0 to 1.",
            [(self._of(files=files), ratio) for files, ratio in self._runtime.disk_used_ratios().items()],
        )

    def _timers(self) -> Iterator[Metric]:
        behind = self._timer.behind()
        yield self._storage_gauge(
            "rocketmq_timer_enqueue_lag", "Timer messages that are not on the wheel yet.", behind.not_taken_in
        )
        yield self._storage_gauge(
            "rocketmq_timer_enqueue_latency_milliseconds",
            "Age of the oldest timer message that is not on the wheel yet, in milliseconds.",
            self._timer.enqueue_latency_ms(),
        )
        yield self._storage_gauge("rocketmq_timer_dequeue_lag", "Timer messages on the wheel.", behind.waiting)
        yield self._storage_gauge(
            "rocketmq_timer_dequeue_latency_milliseconds",
            "Time since the first slot of the wheel was due, in milliseconds.",
            behind.overdue_ms,
        )
        bounds = zip(SNAPSHOT_BOUNDS_S, self._timer_snapshot.counts, strict=True)
        yield Metric(
            "rocketmq_timer_message_snapshot",
            Kind.GAUGE,
            "Timer messages that are due within this time, and not within the next smaller bound.",
            [(self._storage_labels | {"timer_bound_s": str(bound)}, count) for bound, count in bounds],
        )
        yield Metric(
            "rocketmq_timing_messages",
            Kind.GAUGE,
            "Waiting timer messages, by topic.",
            [(self._storage_labels | {"topic": topic}, count) for topic, count in self._timer.waiting().items()],
        )
        for name, description, counts in (
            ("enqueue", "Timer messages put onto the wheel since the start.", self._timer.enqueued),
            ("dequeue", "Timer messages delivered from the wheel since the start.", self._timer.dequeued),
        ):
            samples = [(self._storage_labels | {"topic": topic}, count) for topic, count in counts.items()]
            yield _counter(f"rocketmq_timer_{name}_total", description, samples)
        yield Metric(
            "rocketmq_delay_message_latency_seconds",
            Kind.HISTOGRAM,
            "Time from the birth of a timer message to its delivery time, in seconds, by topic.",
            [(self._storage_labels | {"topic": topic}, delays) for topic, delays in self._timer.delays_s.items()],
        )

    def _popping(self) -> Iterator[Metric]:
        buffer = self._pops.buffer
        yield self._gauge("rocketmq_pop_checkpoint_buffer_size", "Pops that are only in memory.", len(buffer))
        yield self._gauge(
            "rocketmq_pop_offset_buffer_size",
            "Pops that the offset of their group has not passed.",
            buffer.in_flight_offsets,
        )
        yield Metric(
            "rocketmq_pop_revive_lag_milliseconds",
            Kind.GAUGE,
            "Records of the revive topic that are not read yet, by queue. A number, not a duration.",
            [(self._of(queue_id=str(id_)), lag) for id_, lag in enumerate(self._pops.revive_lags())],
        )
        yield Metric(
            "rocketmq_pop_revive_latency_milliseconds",
            Kind.GAUGE,
            "Age of the oldest record of the revive topic that is not read yet, in milliseconds, by queue.",
            [(self._of(queue_id=str(id_)), age) for id_, age in enumerate(self._pops.revive_latencies_ms())],
        )
        counts = self._pops.revive_counts
        yield _counter(
            "rocketmq_pop_revive_in_message_total",
            "Records written to the revive topic since the start.",
            [
                (
                    self._of(consumer_group=group, topic=topic, revive_message_type=kind, put_status=_PUT_OK),
                    count,
                )
                for (group, topic, kind), count in counts.written.items()
            ],
        )
        yield _counter(
            "rocketmq_pop_revive_out_message_total",
            "Records read from the revive topic since the start.",
            [
                (self._of(consumer_group=group, topic=topic, revive_message_type=kind, queue_id=str(queue_id)), count)
                for (group, topic, kind, queue_id), count in counts.read.items()
            ],
        )
        yield _counter(
            "rocketmq_pop_revive_retry_messages_total",
            "Popped messages that were stored again since the start.",
            [
                (self._of(consumer_group=group, topic=topic, put_status=_PUT_OK), count)
                for (group, topic), count in counts.redelivered.items()
            ],
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
            "Damaged or undeliverable messages. The log contains the position of each one.",
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


def _in_steps(items: Iterable[T]) -> Iterator[list[T]]:
    """Yields the items in lists, each of which takes about `_STEP_S` to create; an empty list if there are no items."""
    some: list[T] = []
    deadline = clock.monotonic() + _STEP_S
    for item in items:
        some.append(item)
        if clock.monotonic() >= deadline:
            yield some
            some, deadline = [], clock.monotonic() + _STEP_S
    yield some


def _counter(name: str, description: str, samples: Samples) -> Metric:
    return Metric(name, Kind.COUNTER, description, samples)


def _summed(samples: Samples) -> Samples:
    """Adds up samples with the same labels. A group may have two retry topics for a topic."""
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    for labels, value in samples:
        key = tuple(labels.items())
        sums[key] = sums.get(key, 0) + value
    return [(dict(key), value) for key, value in sums.items()]


def _kind(client: Client[Connection]) -> tuple[str, str]:
    """Returns the language and the version of a client."""
    return _LANGUAGES.get(client.language, "other"), version_name(client.version).lower()


def _age(stored_ms: int | None, now_ms: int) -> int:
    return 0 if stored_ms is None else max(now_ms - stored_ms, 0)


def _is_system_group(group: str) -> bool:
    # Compared in lower case, as in `BrokerMetricsManager.isSystemGroup`.
    return group.lower().startswith(SYSTEM_GROUP_PREFIX.lower())
