"""The dead-letter messages of each group: their number and age."""

from __future__ import annotations

import asyncio

import msgspec

from gantrymq.console.cluster_view import ClusterView, DeadLetterStats
from gantrymq.console.fan_out import Unasked
from gantrymq.console.listing import Cut, ListArguments, cut
from gantrymq.console.queries.topics import oldest_times
from gantrymq.protocol.topic_name import DLQ_TOPIC_PREFIX


class DeadLetterQueue(msgspec.Struct):
    """The dead-letter messages of a group. Times are store times, ms. Only rows of the page have `oldest_ms`."""

    group: str
    topic: str
    letters: int
    newest_ms: int
    oldest_ms: int | None = None


class DeadLetterQueuesPage(msgspec.Struct):
    #: The value is None until the first query is complete.
    table: Cut[DeadLetterQueue] | None
    letters: int
    unasked: list[Unasked]


async def dead_letter_queues(view: ClusterView, arguments: ListArguments) -> DeadLetterQueuesPage:
    dead_letters, servers = await asyncio.gather(view.dead_letters.get(), view.servers.get())
    if dead_letters is None:
        return DeadLetterQueuesPage(None, 0, [])
    rows = queues_of(dead_letters)
    columns = {"group": lambda r: r.group, "letters": lambda r: r.letters, "newest": lambda r: r.newest_ms}
    table = cut(rows, arguments, columns, text=lambda r: r.group, default="-letters")
    stored = {
        row.group: [queue for queue, one in dead_letters.stats[row.group].offset_table.items() if one.max_offset]
        for row in table.rows
    }
    addresses = servers.masters if servers is not None else {}
    oldest = await oldest_times(view, addresses, [queue for row in table.rows for queue in stored[row.group]])
    for row in table.rows:
        row.oldest_ms = min((oldest[queue] for queue in stored[row.group] if queue in oldest), default=None)
    return DeadLetterQueuesPage(table, sum(row.letters for row in rows), dead_letters.unasked)


def queues_of(dead_letters: DeadLetterStats) -> list[DeadLetterQueue]:
    """Returns a row for each group, without `oldest_ms`."""
    return [
        DeadLetterQueue(
            group,
            DLQ_TOPIC_PREFIX + group,
            stats.message_count,
            max((queue.last_update_timestamp for queue in stats.offset_table.values()), default=0),
        )
        for group, stats in dead_letters.stats.items()
    ]
