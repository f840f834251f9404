"""Strategies that assign a topic's queues to the consumers of a group. Each consumer computes its own queues.

A strategy is a function of the type `AllocateStrategy`. All consumers of a group, in any language, must use the same
one. The strategies here sort their arguments and return the same queues as Java's.
Source: client/consumer/rebalance/AllocateMessageQueue*.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from hashlib import md5

from gantrymq.protocol.message import MessageQueue

#: (own client id, client ids of the whole group, all queues of a topic) -> queues of the own client id.
AllocateStrategy = Callable[[str, Iterable[str], Iterable[MessageQueue]], list[MessageQueue]]


def allocate_averagely(client_id: str, client_ids: Iterable[str], queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """Assigns consecutive queues, in equal parts. If there is a remainder, each of the first consumers gets one more.

    Args:
        client_id: Client id of this consumer.
        client_ids: Client ids of all consumers of the group.
        queues: All queues of a topic.

    Returns:
        The queues of this consumer.
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
    """Assigns queues round robin, so that each consumer gets some of every broker.

    Args:
        client_id: Client id of this consumer.
        client_ids: Client ids of all consumers of the group.
        queues: All queues of a topic.

    Returns:
        The queues of this consumer.
    """
    consumers = sorted(set(client_ids))
    if client_id not in consumers:
        return []
    return sorted(queues)[consumers.index(client_id) :: len(consumers)]


def allocate_by_config(queues: Iterable[MessageQueue]) -> AllocateStrategy:
    """Returns a strategy that always assigns these queues, independently of the other consumers."""
    mine = set(queues)

    def allocate(client_id: str, client_ids: Iterable[str], queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        return sorted(mine.intersection(queues))

    return allocate


def allocate_by_machine_room(rooms: Collection[str]) -> AllocateStrategy:
    """Returns a strategy for brokers in these machine rooms only, in equal parts. Broker names are ROOM@NAME."""

    def allocate(client_id: str, client_ids: Iterable[str], queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        consumers = sorted(set(client_ids))
        if client_id not in consumers:
            return []
        reachable = [queue for queue in sorted(queues) if _machine_room(queue.broker_name) in rooms]
        share, rest = divmod(len(reachable), len(consumers))
        index = consumers.index(client_id)
        # The first consumers get one more queue each, from the end of the list, unlike in `allocate_averagely`.
        left_over = reachable[share * len(consumers) + index :][: index < rest]
        return reachable[index * share : (index + 1) * share] + left_over

    return allocate


def _machine_room(broker_name: str) -> str | None:
    room, separator, name = broker_name.partition("@")
    return room if separator and name and "@" not in name else None


def allocate_machine_room_nearby(
    within_room: AllocateStrategy, broker_room: Callable[[MessageQueue], str], consumer_room: Callable[[str], str]
) -> AllocateStrategy:
    """Returns a strategy that assigns the queues of a machine room to the consumers in it.

    Queues of a room without consumers are assigned to all consumers.

    Args:
        within_room: Strategy for the queues of one room.
        broker_room: Returns the room of a queue's broker.
        consumer_room: Returns the room of a client id.
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
    """Returns a strategy that uses a consistent hash ring. If the group changes, few queues move.

    Args:
        virtual_nodes: Number of points of each consumer on the ring. Default: 10.
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
    """Returns `MessageQueue.toString()`, which Java hashes."""
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


def _hash(text: str) -> int:
    """Returns the first 32 bits of the MD5 hash (`ConsistentHashRouter.MD5Hash`)."""
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:4])
