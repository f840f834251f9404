"""TopicPublishInfo: which queue of a topic the next message goes to."""

from __future__ import annotations

import random
from collections.abc import Sequence

from gantrymq.protocol.message import MessageQueue


class TopicPublishInfo:
    """A topic's writable queues, taken in turn (client/impl/producer/TopicPublishInfo)."""

    def __init__(self, queues: Sequence[MessageQueue]) -> None:
        self.queues = queues
        self._next = random.randrange(len(queues)) if queues else 0

    def select(self, last_broker: str | None = None) -> MessageQueue:
        """The next queue; after a failure on `last_broker` the next one of another broker, if there is another.

        There must be queues.
        """
        queue = self._take()
        if last_broker is not None:
            for _ in self.queues:
                if queue.broker_name != last_broker:
                    break
                queue = self._take()
        return queue

    def _take(self) -> MessageQueue:
        self._next = (self._next + 1) % len(self.queues)
        return self.queues[self._next]
