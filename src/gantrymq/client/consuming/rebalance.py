"""Who of a group reads which queue. Every consumer computes it alone, from the same sorted lists.

A strategy is any function of the type `AllocateStrategy`. All consumers of a group, in whatever language, must use the
same one: these give what Java's give. Source: client/consumer/rebalance/AllocateMessageQueue*.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from hashlib import md5

from gantrymq.protocol.message import MessageQueue

#: (client id of the one who asks, ids of all consumers of the group, all queues of a topic) -> that one's queues.
AllocateStrategy = Callable[[str, Iterable[str], Iterable[MessageQueue]], list[MessageQueue]]


def allocate_averagely(client_id: str, client_ids: Iterable[str], queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """The share of `client_id`, one of the group's `client_ids`: consecutive queues, in equal parts.

    The first consumers get one more each where it doesn't come out even.
    """
    consumers = sorted(set(client_ids))
    if client_id not in consumers:
        return []
    ordered = sorted(queues)
    share, rest = divmod(len(ordered), len(consumers))
    index = consumers.index(client_id)
    start = index * share + min(index, rest)
    return ordered[start : start + share + (index < rest)]


def allocate_by_circle(client_id: str, client_ids: Iterable[str], queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """The share of `client_id`, one of the group's `client_ids`: queues dealt out in turn, some of every broker."""
    consumers = sorted(set(client_ids))
    if client_id not in consumers:
        return []
    return sorted(queues)[consumers.index(client_id) :: len(consumers)]


def allocate_by_config(queues: Iterable[MessageQueue]) -> AllocateStrategy:
    """These queues and no others, whoever else is in the group; for each topic those that are of it."""
    mine = set(queues)

    def allocate(client_id: str, client_ids: Iterable[str], queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        return sorted(mine.intersection(queues))

    return allocate


def allocate_by_machine_room(rooms: Collection[str]) -> AllocateStrategy:
    """Only queues of brokers in these machine rooms, whose names are ROOM@NAME, in equal parts."""

    def allocate(client_id: str, client_ids: Iterable[str], queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        consumers = sorted(set(client_ids))
        if client_id not in consumers:
            return []
        reachable = [queue for queue in sorted(queues) if _room(queue.broker_name) in rooms]
        share, rest = divmod(len(reachable), len(consumers))
        index = consumers.index(client_id)
        # The rest goes one each to the first consumers, from the end of the list: not as in `allocate_averagely`.
        left_over = reachable[share * len(consumers) + index :][: index < rest]
        return reachable[index * share : (index + 1) * share] + left_over

    return allocate


def _room(broker_name: str) -> str | None:
    room, separator, name = broker_name.partition("@")
    return room if separator and name and "@" not in name else None


def allocate_machine_room_nearby(
    within_room: AllocateStrategy, broker_room: Callable[[MessageQueue], str], consumer_room: Callable[[str], str]
) -> AllocateStrategy:
    """Each machine room's queues to the consumers in it, those of a room without consumers to all.

    `broker_room` and `consumer_room` say in which room a queue's broker and a client id are; `within_room` shares out.
    """

    def allocate(client_id: str, client_ids: Iterable[str], queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        consumers = sorted(set(client_ids))
        if client_id not in consumers:
            return []
        queues_of: defaultdict[str, list[MessageQueue]] = defaultdict(list)
        for queue in sorted(queues):
            queues_of[broker_room(queue)].append(queue)
        consumers_of: defaultdict[str, list[str]] = defaultdict(list)
        for consumer in consumers:
            consumers_of[consumer_room(consumer)].append(consumer)
        here = consumer_room(client_id)
        mine = within_room(client_id, consumers_of[here], queues_of.pop(here, []))
        for room, room_queues in sorted(queues_of.items()):
            if room not in consumers_of:
                mine += within_room(client_id, consumers, room_queues)
        return mine

    return allocate


def allocate_by_consistent_hash(virtual_nodes: int = 10) -> AllocateStrategy:
    """Each queue to the consumer that follows it on a ring of hash values: few queues move when the group changes.

    Each consumer is on the ring `virtual_nodes` times.
    """

    def allocate(client_id: str, client_ids: Iterable[str], queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        consumers = sorted(set(client_ids))
        ring = {_hash(f"{consumer}-{n}"): consumer for consumer in consumers for n in range(virtual_nodes)}
        points = sorted(ring)
        if not points:
            return []
        return [queue for queue in sorted(queues) if ring[points[_next(points, _java_text(queue))]] == client_id]

    return allocate


def _next(points: list[int], key: str) -> int:
    return bisect_left(points, _hash(key)) % len(points)


def _java_text(queue: MessageQueue) -> str:
    """`MessageQueue.toString()`, which is what Java hashes."""
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


def _hash(text: str) -> int:
    """The first 32 bits of the MD5 (`ConsistentHashRouter.MD5Hash`)."""
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:4])
