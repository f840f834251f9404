"""The dead-letter messages of each group: their number and age."""

from __future__ import annotations

import msgspec

from gantrymq.console.cluster_view import ClusterView
from gantrymq.console.fan_out import Unasked
from gantrymq.console.listing import Cut, ListArguments, cut
from gantrymq.console.queries.servers import servers_of
from gantrymq.console.queries.topics import oldest_times
from gantrymq.protocol.topic_name import DLQ_TOPIC_PREFIX

#: Limit of the groups whose dead-letter messages are counted. The page shows the number of further groups.
MAX_COUNTED = 1000


class DeadLetterQueue(msgspec.Struct):
    """The dead-letter messages of a group. Times are store times, ms. Only rows of the shown page have `oldest_ms`."""

    group: str
    topic: str
    letters: int
    newest_ms: int
    oldest_ms: int | None = None


class DeadLetterQueuesPage(msgspec.Struct):
    #: None until the first query is complete.
    table: Cut[DeadLetterQueue] | None
    letters: int
    unasked: list[Unasked]


async def dead_letter_queues(view: ClusterView, arguments: ListArguments) -> DeadLetterQueuesPage:
    topics = await view.topics.get()
    if topics is None:
        return DeadLetterQueuesPage(None, 0, [])
    found = sorted(name for name in topics.seen if name.startswith(DLQ_TOPIC_PREFIX))
    # A request that fails ends within the timeout of one request.
    stats = await view.each(found[:MAX_COUNTED], view.topic_stats, 2 * view.settings.timeout_ms / 1000)
    unasked = [*topics.unasked, *stats.unasked, *(one for _, failed in stats.results.values() for one in failed)]
    if len(found) > MAX_COUNTED:
        unasked.append(Unasked(f"{len(found) - MAX_COUNTED} groups", f"only {MAX_COUNTED} are counted"))
    rows = []
    for topic, (table_of_topic, _) in stats.results.items():
        queues = table_of_topic.offset_table.values()
        letters = sum(queue.max_offset - queue.min_offset for queue in queues)
        newest = max((queue.last_update_timestamp for queue in queues), default=0)
        rows.append(DeadLetterQueue(topic.removeprefix(DLQ_TOPIC_PREFIX), topic, letters, newest))
    columns = {"group": lambda r: r.group, "letters": lambda r: r.letters, "newest": lambda r: r.newest_ms}
    table = cut(rows, arguments, columns, text=lambda r: r.group, default="-letters")
    stored = {
        row.topic: [queue for queue, one in stats.results[row.topic][0].offset_table.items() if one.max_offset]
        for row in table.rows
    }
    addresses = (await servers_of(view)).masters
    oldest = await oldest_times(view, addresses, [queue for row in table.rows for queue in stored[row.topic]])
    for row in table.rows:
        row.oldest_ms = min((oldest[queue] for queue in stored[row.topic] if queue in oldest), default=None)
    return DeadLetterQueuesPage(table, sum(row.letters for row in rows), list(dict.fromkeys(unasked)))
