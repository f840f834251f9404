"""Streams: groups with offsets but without members, such as Spark queries, and the progress of queries.

A Spark query with the option consumerGroup commits offsets for that group after each batch, without being a member.
With `watch_queries`, a query writes its progress to a topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from gantrymq.console.bodies import beginning_of
from gantrymq.console.cluster_view import ClusterView
from gantrymq.console.fan_out import Unasked
from gantrymq.console.listing import Cut, ListArguments, cut
from gantrymq.console.queries.group_state import Group, group_of
from gantrymq.console.queries.groups import connected
from gantrymq.console.queries.kinds import is_tools_group
from gantrymq.console.queries.queue_reader import QueueReader
from gantrymq.errors import NoRouteInfo, ProtocolError
from gantrymq.protocol.message import MessageExt
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX
from gantrymq.system.clock import now_ms

#: Largest number of groups whose members are queried.
MAX_ASKED = 100
#: Largest number of newest messages of the progress topic that are read.
MAX_PROGRESS = 200
#: Largest decoded message, bytes. The progress of a query has some KiB.
_MAX_PROGRESS_BYTES = 256 * 1024


class StreamsArguments(ListArguments, kw_only=True):
    """Arguments of the page. `progress` is the topic with the progress of queries."""

    progress: str = ""


class Query(msgspec.Struct):
    """The last batch of a streaming query. Rates are in rows/s."""

    id: str
    name: str
    told_ms: int
    batch: int
    rows: int
    in_rows_a_second: float
    done_rows_a_second: float
    took_ms: int


class StreamsPage(msgspec.Struct):
    #: None until the first query is complete.
    table: Cut[Group] | None
    progress: str
    queries: list[Query]
    unasked: list[Unasked]


async def streams(view: ClusterView, arguments: StreamsArguments) -> StreamsPage:
    topic = arguments.progress.strip()
    unasked: list[Unasked] = []
    queries: list[Query] = []
    if topic:
        queries, unasked = await _queries(view, topic)
    known, servers = await asyncio.gather(view.groups.get(), view.servers.get())
    if known is None or servers is None:
        return StreamsPage(None, topic, queries, unasked)
    now = now_ms()
    # Push consumers also have offsets in their group's retry topic.
    maybe = [
        group_of(name, of_topics, now)
        for name, of_topics in known.progress.items()
        if not is_tools_group(name) and not any(topic.startswith(RETRY_TOPIC_PREFIX) for topic in of_topics)
    ]
    wanted = arguments.search.strip().casefold()
    maybe = [one for one in maybe if wanted in _text(one).casefold()]
    maybe.sort(key=lambda one: (-one.lag, one.name))
    if len(maybe) > MAX_ASKED:
        unasked.append(Unasked(f"{len(maybe) - MAX_ASKED} groups", f"only {MAX_ASKED} are queried at once"))

    async def has_members(name: str) -> bool:
        for address in servers.masters.values():
            if (await connected(view, name, address)).connection_set:
                return True
        return False

    answers = await view.each([one.name for one in maybe[:MAX_ASKED]], has_members)
    columns = {
        "name": lambda g: g.name,
        "lag": lambda g: g.lag,
        "seconds": lambda g: g.seconds or 0.0,
        "tps": lambda g: g.tps,
    }
    without_members = [one for one in maybe[:MAX_ASKED] if answers.results.get(one.name) is False]
    table = cut(without_members, arguments, columns, text=_text, default="-lag")
    return StreamsPage(table, topic, queries, list(dict.fromkeys([*unasked, *known.unasked, *answers.unasked])))


def _text(group: Group) -> str:
    return f"{group.name} {' '.join(group.topics)}"


async def _queries(view: ClusterView, topic: str) -> tuple[list[Query], list[Unasked]]:
    """Returns the last report of each query among the newest messages of the topic."""
    reader = QueueReader(view, topic, _query)
    try:
        await reader.open(None, None)
    except NoRouteInfo as e:
        return [], [Unasked(topic, str(e))]
    reports = [one for one in await reader.latest(MAX_PROGRESS) if isinstance(one, Query)]
    return last_reports(reports), reader.unasked


def last_reports(reports: Iterable[Query]) -> list[Query]:
    """Returns the last report of each query, by name. Reports of two batches can have the same millisecond."""
    last: dict[str, Query] = {}
    for one in sorted(reports, key=lambda query: (query.told_ms, query.batch)):
        if one.id:
            last[one.id] = one
    return sorted(last.values(), key=lambda query: query.name)


def _query(message: MessageExt) -> Query:
    """Decodes Spark's JSON of a StreamingQueryProgress. The result of another message has no id."""
    try:
        progress = msgspec.json.decode(beginning_of(message, _MAX_PROGRESS_BYTES))
    except (ValueError, ProtocolError, RecursionError):
        # ValueError: no JSON, or text that is not UTF-8.
        progress = None
    if not isinstance(progress, dict):
        progress = {}
    duration = progress.get("durationMs")
    return Query(
        str(progress.get("id") or ""),
        str(progress.get("name") or progress.get("id") or ""),
        message.store_timestamp,
        int(_number(progress, "batchId")),
        int(_number(progress, "numInputRows")),
        _number(progress, "inputRowsPerSecond"),
        _number(progress, "processedRowsPerSecond"),
        int(_number(duration if isinstance(duration, dict) else {}, "triggerExecution")),
    )


def _number(values: Mapping[str, Any], key: str) -> float:
    value = values.get(key)
    return float(value) if isinstance(value, int | float) and abs(value) < 2**63 else 0.0
