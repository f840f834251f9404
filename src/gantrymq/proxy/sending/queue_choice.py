"""Which queue a message goes to: its group's, or the next in turn.

Sources: proxy/service/route/MessageQueueSelector, com.google.common.hash.Hashing (consistentHash).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from gantrymq.client.routes import write_queues
from gantrymq.protocol.bodies.route import TopicRouteData
from gantrymq.protocol.java import string_hash_code
from gantrymq.protocol.message import MessageQueue
from gantrymq.system import randomness

_MULTIPLIER = 2862933555777941757
_U64 = (1 << 64) - 1
#: Topics whose queues are remembered.
_MOST_TOPICS = 20_000


def consistent_hash(value: int, buckets: int) -> int:
    """One of 0 .. buckets-1, which seldom changes as the number of buckets does. Java's proxy chooses by it, too: a
    message group has one queue, whichever proxy its messages come through."""
    state = value & _U64
    candidate = 0
    while True:
        state = (state * _MULTIPLIER + 1) & _U64
        following = int((candidate + 1) / (((state >> 33) + 1) / (1 << 31)))
        if following >= buckets:
            return candidate
        candidate = following


class QueueChoice:
    """The queues of topics that take messages, in turn."""

    def __init__(self) -> None:
        #: The first asked for first.
        self._topics: dict[str, tuple[TopicRouteData, list[MessageQueue], Iterator[int]]] = {}

    def choose(self, topic: str, route: TopicRouteData, message_group: str) -> MessageQueue | None:
        """None when there is none. Raises ClientError for an order configuration that can't be read."""
        known = self._topics.get(topic)
        # A changed route is another object.
        if known is None or known[0] is not route:
            queues = sorted(write_queues(topic, route))
            known = route, queues, itertools.count(randomness.randrange(len(queues) or 1))
            self._topics[topic] = known
            if len(self._topics) > _MOST_TOPICS:
                del self._topics[next(iter(self._topics))]
        _, queues, turns = known
        if not queues:
            return None
        if message_group:
            return queues[consistent_hash(string_hash_code(message_group), len(queues))]
        return queues[next(turns) % len(queues)]
