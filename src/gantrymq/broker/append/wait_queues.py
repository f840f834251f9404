"""Wait queues whose items have deadlines.

Each duration has its own queue, so the items of a queue are in the order of their deadlines. This needs neither a heap
nor timers. Callers keep the number of different durations small (`late_responses.answer_within_ms`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class WaitQueues(Generic[T]):
    """The wait queues by duration. Times are seconds of the event loop's clock."""

    def __init__(self) -> None:
        #: By duration: (deadline, item).
        self._queues: dict[float, deque[tuple[float, T]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def add(self, item: T, now: float, timeout_s: float) -> bool:
        """Adds `item`. Returns True if it is the only one of its duration: the caller may need to set a timer."""
        queue = self._queues.get(timeout_s)
        if queue is None:
            queue = self._queues[timeout_s] = deque()
        queue.append((now + timeout_s, item))
        return len(queue) == 1

    def take_while(self, condition: Callable[[T], bool]) -> Iterator[T]:
        """Removes and yields items from the front of each queue while the condition holds."""
        for queue in list(self._queues.values()):
            while queue and condition(queue[0][1]):
                yield queue.popleft()[1]

    def drop_while(self, condition: Callable[[T], bool]) -> None:
        """Like `take_while`, but yields nothing, which costs less. `condition` must not add items."""
        for queue in self._queues.values():
            while queue and condition(queue[0][1]):
                queue.popleft()

    def late(self, now: float) -> Iterator[T]:
        """Removes and yields the items whose deadline has passed. Also removes empty queues.

        Before that, an empty queue stays: most durations are soon used again.
        """
        for timeout_s, queue in list(self._queues.items()):
            while queue and queue[0][0] <= now:
                yield queue.popleft()[1]
            if not queue and self._queues.get(timeout_s) is queue:
                del self._queues[timeout_s]

    def all(self) -> Iterator[T]:
        """Removes and yields all items."""
        return self.take_while(lambda item: True)

    @property
    def next_deadline(self) -> float | None:
        """The earliest deadline; None if nothing waits."""
        return min((queue[0][0] for queue in self._queues.values() if queue), default=None)
