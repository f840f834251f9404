"""Streams: groups that commit offsets without being there, as Spark's queries do, and what queries tell of themselves.

A query with the option consumerGroup commits for that group after each batch; no broker knows a member of it. What a
query tells (`watch_queries`) is in a topic that its owner names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from gantrymq.console.asking import Unasked
from gantrymq.console.bodies import beginning_of
from gantrymq.console.eye import Eye
from gantrymq.console.listing import Cut, ListArguments, cut
from gantrymq.console.queries.groups import Group, connected, group_of
from gantrymq.console.queries.kinds import is_tools_group
from gantrymq.console.queries.reading import Reader
from gantrymq.console.queries.servers import servers_of
from gantrymq.errors import NoRouteInfo, ProtocolError
from gantrymq.protocol.message import MessageExt
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX
from gantrymq.system.clock import now_ms

#: Groups of which it is asked whether anybody is there.
MAX_ASKED = 100
#: Messages of the topic of progress that are read: the newest ones.
MAX_PROGRESS = 200
#: A query's progress is some KiB; what is longer is something else.
_MAX_PROGRESS_BYTES = 256 * 1024


class StreamsArguments(ListArguments, kw_only=True):
    """`progress` is the topic to which queries tell how they get on."""

    progress: str = ""


class Query(msgspec.Struct):
    """A streaming query as it told of its last batch; rates are rows a second."""

    id: str
    name: str
    told_ms: int
    batch: int
    rows: int
    in_rows_a_second: float
    done_rows_a_second: float
    took_ms: int


class StreamsPage(msgspec.Struct):
    #: None while they are being asked for.
    table: Cut[Group] | None
    progress: str
    queries: list[Query]
    unasked: list[Unasked]


async def streams(eye: Eye, arguments: StreamsArguments) -> StreamsPage:
    topic = arguments.progress.strip()
    unasked: list[Unasked] = []
    queries: list[Query] = []
    if topic:
        queries, unasked = await _queries(eye, topic)
    known = await eye.groups.get()
    if known is None:
        return StreamsPage(None, topic, queries, unasked)
    servers = await servers_of(eye)
    now = now_ms()
    # Push consumers read their group's retry topic, too; what only commits has no offsets there.
    maybe = [
        group_of(name, of_topics, now)
        for name, of_topics in known.progress.items()
        if not is_tools_group(name) and not any(topic.startswith(RETRY_TOPIC_PREFIX) for topic in of_topics)
    ]
    wanted = arguments.search.strip().casefold()
    maybe = [one for one in maybe if wanted in _text(one).casefold()]
    maybe.sort(key=lambda one: (-one.behind, one.name))
    if len(maybe) > MAX_ASKED:
        unasked.append(Unasked(f"{len(maybe) - MAX_ASKED} groups", f"only {MAX_ASKED} are asked about at once"))

    async def has_members(name: str) -> bool:
        for address in servers.masters.values():
            if (await connected(eye, name, address)).connection_set:
                return True
        return False

    answers = await eye.each([one.name for one in maybe[:MAX_ASKED]], has_members)
    columns = {
        "name": lambda g: g.name,
        "behind": lambda g: g.behind,
        "seconds": lambda g: g.seconds or 0.0,
        "tps": lambda g: g.tps,
    }
    alone = [one for one in maybe[:MAX_ASKED] if answers.answers.get(one.name) is False]
    table = cut(alone, arguments, columns, text=_text, default="-behind")
    return StreamsPage(table, topic, queries, list(dict.fromkeys([*unasked, *known.unasked, *answers.unasked])))


def _text(group: Group) -> str:
    return f"{group.name} {' '.join(group.topics)}"


async def _queries(eye: Eye, topic: str) -> tuple[list[Query], list[Unasked]]:
    """The last word of each query among the newest messages of the topic."""
    reader = Reader(eye, topic, _query)
    try:
        await reader.look(None, None)
    except NoRouteInfo as e:
        return [], [Unasked(topic, str(e))]
    told = [one for one in await reader.latest(MAX_PROGRESS) if isinstance(one, Query)]
    return last_words(told), reader.unasked


def last_words(told: Iterable[Query]) -> list[Query]:
    """What each query told last, by its name. In one millisecond it may tell two brokers of two batches."""
    last: dict[str, Query] = {}
    for one in sorted(told, key=lambda query: (query.told_ms, query.batch)):
        if one.id:
            last[one.id] = one
    return sorted(last.values(), key=lambda query: query.name)


def _query(message: MessageExt) -> Query:
    """Of Spark's JSON of a StreamingQueryProgress; without an id where it is something else."""
    try:
        told = msgspec.json.decode(beginning_of(message, _MAX_PROGRESS_BYTES))
    except (msgspec.DecodeError, ProtocolError, RecursionError):
        told = None
    if not isinstance(told, dict):
        told = {}
    duration = told.get("durationMs")
    return Query(
        str(told.get("id") or ""),
        str(told.get("name") or told.get("id") or ""),
        message.store_timestamp,
        int(_number(told, "batchId")),
        int(_number(told, "numInputRows")),
        _number(told, "inputRowsPerSecond"),
        _number(told, "processedRowsPerSecond"),
        int(_number(duration if isinstance(duration, dict) else {}, "triggerExecution")),
    )


def _number(values: Mapping[str, Any], key: str) -> float:
    value = values.get(key)
    return float(value) if isinstance(value, int | float) and abs(value) < 2**63 else 0.0
