"""Selection of the queue for a message: by its message group or deduplication id, or round robin.

Source: proxy/service/route/MessageQueueSelector.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterator

from gantrymq.client.producing.queue_selector import consistent_hash
from gantrymq.client.routes import write_queues
from gantrymq.protocol.bodies.route import TopicRouteData
from gantrymq.protocol.java import string_hash_code
from gantrymq.protocol.message import MessageQueue
from gantrymq.system import randomness

#: Largest number of topics whose queues are cached.
_MOST_TOPICS = 20_000


class MessageQueueSelector:
    """Selects one of the writable queues of a topic."""

    def __init__(self) -> None:
        #: Topic -> (route, its writable queues, round-robin counter), oldest route first.
        self._topics: OrderedDict[str, tuple[TopicRouteData, list[MessageQueue], Iterator[int]]] = OrderedDict()

    def choose(self, topic: str, route: TopicRouteData, key: str) -> MessageQueue | None:
        """Returns the queue for a message with a message group or a deduplication id `key`.

        Returns None if no queue is writable.

        Raises ClientError for an invalid order configuration.
        """
        known = self._topics.get(topic)
        # Each change of a route creates a new object.
        if known is None or known[0] is not route:
            queues = sorted(write_queues(topic, route))
            known = route, queues, itertools.count(randomness.randrange(len(queues) or 1))
            self._topics[topic] = known
            if len(self._topics) > _MOST_TOPICS:
                self._topics.popitem(last=False)
        _, queues, turns = known
        if not queues:
            return None
        if key:
            return queues[consistent_hash(string_hash_code(key), len(queues))]
        return queues[next(turns) % len(queues)]
