"""TopicPublishInfo: picks the queue for the next message of a topic."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gantrymq.protocol.message import MessageQueue
from gantrymq.system import randomness


class TopicPublishInfo:
    """The writable queues of a topic, used round robin (`TopicPublishInfo`)."""

    def __init__(self, queues: Sequence[MessageQueue]) -> None:
        self.queues = queues
        self.has_several_brokers = len({queue.broker_name for queue in queues}) > 1
        self._next = randomness.randrange(len(queues)) if queues else 0

    def select(self, last_broker: str | None = None) -> MessageQueue:
        """Returns the next queue, preferably of a broker other than `last_broker`. There must be queues."""
        if last_broker is not None:
            queue = self.next_where(lambda broker: broker != last_broker)
            if queue is not None:
                return queue
        return self._take()

    def put_back(self) -> None:
        """Makes the selected queue the next one again, because nothing was sent to it."""
        self._next = (self._next - 1) % len(self.queues)

    def next_where(self, usable: Callable[[str], bool]) -> MessageQueue | None:
        """Returns the next queue for whose broker name `usable` returns true, or None."""
        for _ in self.queues:
            queue = self._take()
            if usable(queue.broker_name):
                return queue
        return None

    def reset(self) -> None:
        """Continues at a random queue, so that producers do not all move to the same broker after a failure."""
        self._next = randomness.randrange(len(self.queues))

    def _take(self) -> MessageQueue:
        self._next = (self._next + 1) % len(self.queues)
        return self.queues[self._next]
