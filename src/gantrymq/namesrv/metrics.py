"""The Prometheus metrics of a NameServer: brokers, topics and requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gantrymq.background.jobs import Jobs
from gantrymq.metrics import Kind, Metric, gauge, job_metrics
from gantrymq.namesrv.route_table import RouteTable
from gantrymq.remoting.request_counts import RequestCounts


def collect(
    table: RouteTable, answered: RequestCounts, jobs: Jobs, connections: int, uptime_s: float
) -> Iterator[Metric]:
    """Yields the metrics. Route queries have the label request_code="get_routeinfo_by_topic"."""
    brokers: Counter[tuple[str, str]] = Counter()
    for broker in table.cluster_info().broker_addr_table.values():
        for broker_id in broker.broker_addrs:
            brokers[broker.cluster, "slave" if broker_id else "master"] += 1
    yield Metric(
        "rocketmq_namesrv_brokers",
        Kind.GAUGE,
        "Brokers that are registered.",
        [({"cluster": cluster, "role": role}, count) for (cluster, role), count in sorted(brokers.items())],
    )
    yield gauge("rocketmq_topic_number", "Topics of all brokers.", table.topic_count)
    yield gauge("rocketmq_namesrv_connections", "Connections of brokers and clients.", connections)
    yield gauge("rocketmq_namesrv_uptime_seconds", "Time since the start.", uptime_s)
    yield Metric(
        "rocketmq_namesrv_requests_total",
        Kind.COUNTER,
        "Requests that were answered, by code and outcome.",
        answered.samples(),
    )
    yield from job_metrics(jobs)
