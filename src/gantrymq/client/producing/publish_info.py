"""TopicPublishInfo: which queue of a topic the next message goes to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gantrymq.protocol.message import MessageQueue
from gantrymq.system import randomness


class TopicPublishInfo:
    """A topic's writable queues, taken in turn (client/impl/producer/TopicPublishInfo)."""

    def __init__(self, queues: Sequence[MessageQueue]) -> None:
        self.queues = queues
        self.has_several_brokers = len({queue.broker_name for queue in queues}) > 1
        self._next = randomness.randrange(len(queues)) if queues else 0

    def select(self, last_broker: str | None = None) -> MessageQueue:
        """The next queue; after a failure on `last_broker` the next one of another broker, if there is another.

        There must be queues.
        """
        if last_broker is not None:
            queue = self.next_where(lambda broker: broker != last_broker)
            if queue is not None:
                return queue
        return self._take()

    def next_where(self, usable: Callable[[str], bool]) -> MessageQueue | None:
        """The next queue on a broker whose name is `usable`; None when there is none."""
        for _ in self.queues:
            queue = self._take()
            if usable(queue.broker_name):
                return queue
        return None

    def reset(self) -> None:
        """Goes on at any queue, so that producers that lost one broker don't all go on to the same."""
        self._next = randomness.randrange(len(self.queues))

    def _take(self) -> MessageQueue:
        self._next = (self._next + 1) % len(self.queues)
        return self.queues[self._next]
