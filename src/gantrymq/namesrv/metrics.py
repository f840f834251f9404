"""What a NameServer tells Prometheus: its brokers and topics, the requests it has answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from gantrymq.background.jobs import Jobs
from gantrymq.metrics import Kind, Metric, gauge, job_metrics
from gantrymq.namesrv.route_table import RouteTable
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand

#: Labels as RemotingHelper makes them; a peer can't make more of them by sending other codes.
_REQUEST_NAMES: Mapping[int, str] = {code: code.name.lower() for code in RequestCode}
_RESPONSE_NAMES: Mapping[int, str] = {code: code.name.lower() for code in ResponseCode}


class AnsweredRequests:
    """An RpcHook that counts answers by request and response code."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[int, int]] = Counter()

    def before_request(self, address: str, request: RemotingCommand) -> None:
        pass

    def after_response(self, address: str, request: RemotingCommand, response: RemotingCommand) -> None:
        code = request.code if request.code in _REQUEST_NAMES else -1
        self._counts[code, response.code] += 1

    def samples(self) -> Iterator[tuple[Mapping[str, str], float]]:
        for (request, response), count in self._counts.items():
            labels = {
                "request_code": _REQUEST_NAMES.get(request, "unknown"),
                "response_code": _RESPONSE_NAMES.get(response, "unknown"),
            }
            yield labels, count


def collect(
    table: RouteTable, answered: AnsweredRequests, jobs: Jobs, connections: int, uptime_s: float
) -> Iterator[Metric]:
    """Route queries are the requests with request_code="get_routeinfo_by_topic"."""
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
