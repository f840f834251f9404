"""The overview: the health of the cluster, and the groups that need attention."""

from __future__ import annotations

import asyncio
import heapq

import msgspec

from gantrymq.client.doctor.finding import Finding, Severity
from gantrymq.console.cluster_view import ClusterView
from gantrymq.console.fan_out import Unasked
from gantrymq.console.queries.dead_letter_queues import DeadLetterQueue, queues_of
from gantrymq.console.queries.group_state import Group, group_of
from gantrymq.console.queries.kinds import is_tools_group, topic_kind
from gantrymq.console.queries.servers import Broker, Nothing, all_brokers, servers_of
from gantrymq.system.clock import now_ms

#: Longest wait for each part of the data, s. Without this part, the page shows the other data and reloads itself.
_WAIT_S = 0.3
#: Largest number of groups with lag, and of groups with dead letters.
MAX_WORST_GROUPS = 5


class Overview(msgspec.Struct):
    name_servers: list[str]
    brokers: list[Broker]
    #: None until the first query is complete.
    topics: int | None
    groups: int | None
    #: Lag of all consumer groups, messages.
    lag: int | None
    in_tps: float
    out_tps: float
    #: Problems and warnings of `gantry doctor`; None until the first check is complete.
    findings: list[Finding] | None
    unasked: list[Unasked]
    #: The groups with the largest lag. Groups without lag are omitted.
    worst_groups: list[Group]
    #: Dead letters of all groups; None until the first query is complete.
    dead_letters: int | None
    #: The groups with the most dead letters, without `oldest_ms`.
    dead_letter_queues: list[DeadLetterQueue]


async def overview(view: ClusterView, arguments: Nothing) -> Overview:
    servers, topics, groups, dead_letters, findings = await asyncio.gather(
        servers_of(view),
        view.topics.get(_WAIT_S),
        view.groups.get(_WAIT_S),
        view.dead_letters.get(_WAIT_S),
        view.findings.get(_WAIT_S),
    )
    brokers = all_brokers(servers)
    if findings is not None:
        findings = [finding for finding in findings if finding.severity is not Severity.OK]
    unasked = [one for part in (servers, topics, groups, dead_letters) if part is not None for one in part.unasked]
    now = now_ms()
    rows = [
        group_of(name, of_topics, now)
        for name, of_topics in (groups.progress.items() if groups is not None else ())
        if not is_tools_group(name)
    ]
    queues = queues_of(dead_letters) if dead_letters is not None else []
    return Overview(
        view.admin.name_servers,
        brokers,
        None if topics is None else sum(topic_kind(name, servers) == "topic" for name in topics.seen),
        None if groups is None else len(rows),
        None if groups is None else sum(row.lag for row in rows),
        sum(broker.in_tps or 0.0 for broker in brokers),
        sum(broker.out_tps or 0.0 for broker in brokers),
        findings,
        list(dict.fromkeys(unasked)),
        heapq.nlargest(MAX_WORST_GROUPS, (row for row in rows if row.lag), key=lambda row: row.lag),
        None if dead_letters is None else sum(queue.letters for queue in queues),
        heapq.nlargest(MAX_WORST_GROUPS, (queue for queue in queues if queue.letters), key=lambda queue: queue.letters),
    )
