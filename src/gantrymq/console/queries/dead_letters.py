"""Dead letters: how many each group has, how old they are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec

from gantrymq.console.asking import Unasked
from gantrymq.console.bodies import Body, body_of
from gantrymq.console.eye import Eye
from gantrymq.console.listing import Cut, ListArguments, cut
from gantrymq.console.queries.reading import Reader
from gantrymq.console.queries.servers import servers_of
from gantrymq.console.queries.topics import oldest_times
from gantrymq.errors import NoRouteInfo
from gantrymq.protocol import properties as names
from gantrymq.protocol.message import MessageExt
from gantrymq.protocol.topic_name import DLQ_TOPIC_PREFIX

#: Groups whose letters are counted. Of others it is said that they weren't.
MAX_COUNTED = 1000
#: Letters of one export.
MAX_EXPORTED = 10_000
_EXPORT_PAGE = 50


class DeadLetters(msgspec.Struct):
    """A group's; times are store times in ms. The oldest is told of the rows of one page, where brokers tell it."""

    group: str
    topic: str
    letters: int
    newest_ms: int
    oldest_ms: int | None = None


class DeadLettersPage(msgspec.Struct):
    #: None while they are being asked for.
    table: Cut[DeadLetters] | None
    letters: int
    unasked: list[Unasked]


class Letter(msgspec.Struct):
    """One line of an export."""

    group: str
    topic: str
    id: str
    died_ms: int
    born_ms: int
    reconsume_times: int
    keys: list[str]
    tags: str
    properties: dict[str, str]
    body: Body


class ExportArguments(msgspec.Struct):
    group: str


async def dead_letters(eye: Eye, arguments: ListArguments) -> DeadLettersPage:
    topics = await eye.topics.get()
    if topics is None:
        return DeadLettersPage(None, 0, [])
    found = sorted(name for name in topics.seen if name.startswith(DLQ_TOPIC_PREFIX))
    stats = await eye.each(found[:MAX_COUNTED], eye.admin.topic_stats)
    unasked = [*topics.unasked, *stats.unasked]
    if len(found) > MAX_COUNTED:
        unasked.append(Unasked(f"{len(found) - MAX_COUNTED} groups", f"only {MAX_COUNTED} are counted"))
    rows = []
    for topic, answer in stats.answers.items():
        queues = answer.offset_table.values()
        letters = sum(queue.max_offset - queue.min_offset for queue in queues)
        newest = max((queue.last_update_timestamp for queue in queues), default=0)
        rows.append(DeadLetters(topic.removeprefix(DLQ_TOPIC_PREFIX), topic, letters, newest))
    columns = {"group": lambda r: r.group, "letters": lambda r: r.letters, "newest": lambda r: r.newest_ms}
    table = cut(rows, arguments, columns, text=lambda r: r.group, default="-letters")
    stored = {
        row.topic: [queue for queue, one in stats.answers[row.topic].offset_table.items() if one.max_offset]
        for row in table.rows
    }
    addresses = (await servers_of(eye)).masters
    oldest = await oldest_times(eye, addresses, [queue for row in table.rows for queue in stored[row.topic]])
    for row in table.rows:
        row.oldest_ms = min((oldest[queue] for queue in stored[row.topic] if queue in oldest), default=None)
    return DeadLettersPage(table, sum(row.letters for row in rows), unasked)


async def export(eye: Eye, arguments: ExportArguments) -> AsyncIterator[bytes]:
    """A group's dead letters as lines of JSON, the earliest first, up to MAX_EXPORTED."""

    def letter(message: MessageExt) -> Letter:
        return Letter(
            arguments.group,
            message.properties.get(names.RETRY_TOPIC, ""),
            message.msg_id,
            message.store_timestamp,
            message.born_timestamp,
            message.reconsume_times,
            message.keys,
            message.tags or "",
            message.properties,
            body_of(message),
        )

    reader = Reader(eye, DLQ_TOPIC_PREFIX + arguments.group, letter)
    try:
        await reader.look(None, None)
    except NoRouteInfo:
        return
    for _ in range(MAX_EXPORTED // _EXPORT_PAGE):
        rows = await reader.next_ones(_EXPORT_PAGE)
        if not rows:
            return
        for row in rows:
            yield msgspec.json.encode(row) + b"\n"
        await asyncio.sleep(0)
