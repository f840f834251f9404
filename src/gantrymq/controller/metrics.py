"""The Prometheus metrics of a controller: broker sets, live brokers, elections and requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from gantrymq.background.jobs import Jobs
from gantrymq.controller.live_brokers import LiveBrokers
from gantrymq.controller.replicas import Replicas
from gantrymq.metrics import Kind, Metric, gauge, job_metrics
from gantrymq.remoting.request_counts import RequestCounts


def collect(
    replicas: Replicas,
    live_brokers: LiveBrokers,
    elections: Mapping[str, int],
    answered: RequestCounts,
    jobs: Jobs,
    *,
    is_leader: bool,
    now_ms: int,
    connections: int,
    uptime_s: float,
) -> Iterator[Metric]:
    """Yields the metrics. `elections` are counted by result. Only a leading controller reports broker sets."""
    yield gauge("rocketmq_controller_is_leader", "1 for the controller that leads.", int(is_leader))
    active: Counter[tuple[str, str]] = Counter()
    for cluster, broker_set, _ in live_brokers.all_active(now_ms):
        active[cluster, broker_set] += 1
    yield Metric(
        "rocketmq_controller_active_broker_num",
        Kind.GAUGE,
        "Brokers that have sent a heartbeat of late.",
        [({"cluster": cluster, "broker_set": name}, count) for (cluster, name), count in sorted(active.items())],
    )
    sets = [({"cluster": each.cluster_name, "broker_set": each.broker_name}, each) for each in replicas if is_leader]
    yield Metric(
        "rocketmq_controller_master_broker_id",
        Kind.GAUGE,
        "The id of a broker set's master, -1 while it has none.",
        [(labels, -1 if each.master is None else each.master) for labels, each in sets],
    )
    yield Metric(
        "rocketmq_controller_master_epoch",
        Kind.GAUGE,
        "How often a broker set's master has changed.",
        [(labels, each.master_epoch) for labels, each in sets],
    )
    yield Metric(
        "rocketmq_controller_sync_state_set_size",
        Kind.GAUGE,
        "Brokers of a set that have all that is acknowledged, its master among them.",
        [(labels, len(each.sync_state_set)) for labels, each in sets],
    )
    yield Metric(
        "rocketmq_controller_election_total",
        Kind.COUNTER,
        "Elections that this controller held, by result.",
        [({"election_result": result}, count) for result, count in sorted(elections.items())],
    )
    yield gauge("rocketmq_controller_connections", "Connections of brokers and administrators.", connections)
    yield gauge("rocketmq_controller_uptime_seconds", "Time since the start.", uptime_s)
    yield Metric(
        "rocketmq_controller_requests_total",
        Kind.COUNTER,
        "Requests that were answered, by code and outcome.",
        answered.samples(),
    )
    yield from job_metrics(jobs)
