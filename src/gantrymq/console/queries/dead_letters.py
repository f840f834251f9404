"""Dead letters: how many each group has, how old they are."""

from __future__ import annotations

import msgspec

from gantrymq.console.asking import Unasked
from gantrymq.console.eye import Eye
from gantrymq.console.listing import Cut, ListArguments, cut
from gantrymq.console.queries.servers import servers_of
from gantrymq.console.queries.topics import oldest_times
from gantrymq.protocol.topic_name import DLQ_TOPIC_PREFIX

#: Groups whose letters are counted. Of others it is said that they weren't.
MAX_COUNTED = 1000


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
