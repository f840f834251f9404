"""Who of a group reads which queue. Every consumer computes it alone, from the same sorted lists.

Source: client/consumer/rebalance/AllocateMessageQueueAveragely.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gantrymq.protocol.message import MessageQueue

#: (client id of the one who asks, ids of all consumers of the group, all queues of a topic) -> that one's queues.
AllocateStrategy = Callable[[str, Iterable[str], Iterable[MessageQueue]], list[MessageQueue]]


def allocate_averagely(client_id: str, client_ids: Iterable[str], queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """Consecutive queues in equal parts; the first consumers get one more each where it doesn't come out even."""
    consumers = sorted(set(client_ids))
    if client_id not in consumers:
        return []
    ordered = sorted(queues)
    share, rest = divmod(len(ordered), len(consumers))
    index = consumers.index(client_id)
    start = index * share + min(index, rest)
    return ordered[start : start + share + (index < rest)]
