"""SlaveWaits: items that wait until enough replicas have the log up to an offset (`GroupTransferService`).

An item needs no task, timer or future of its own. The caller passes the current time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from gantrymq.broker.append.wait_queues import WaitQueues

T = TypeVar("T")


class SlaveWaits(Generic[T]):
    """The waiting items. `replicated(count)` returns the physical offset up to which `count` replicas have the log.

    Items with the same duration are in one queue, in the order of the log. They usually wait for the same number of
    replicas. If that number changes, a later item may have to wait for an earlier one, as in Java.
    """

    def __init__(self, replicated: Callable[[int], int]) -> None:
        self._replicated = replicated
        #: (item, end, replicas).
        self._waiting: WaitQueues[tuple[T, int, int]] = WaitQueues()

    def __len__(self) -> int:
        return len(self._waiting)

    def is_reached(self, end: int, replicas: int) -> bool:
        """Returns whether at least `replicas` replicas have the log up to the physical offset `end`."""
        return self._replicated(replicas) >= end

    def add(self, item: T, end: int, replicas: int, now: float, timeout_s: float) -> bool:
        """Adds an item that waits for the log up to `end`. Returns True if it is the only one of its duration."""
        return self._waiting.add((item, end, replicas), now, timeout_s)

    def reached(self) -> Iterator[T]:
        """Removes and yields the items whose `end` has been reached by enough replicas."""
        offsets: dict[int, int] = {}

        def is_reached(waiting: tuple[T, int, int]) -> bool:
            _, end, replicas = waiting
            offset = offsets.get(replicas)
            if offset is None:
                offset = offsets[replicas] = self._replicated(replicas)
            return offset >= end

        return (item for item, _, _ in self._waiting.take_while(is_reached))

    def late(self, now: float) -> Iterator[T]:
        """Removes and yields the items whose deadline has passed."""
        return (item for item, _, _ in self._waiting.late(now))

    def all(self) -> Iterator[T]:
        """Removes and yields all items."""
        return (item for item, _, _ in self._waiting.all())

    @property
    def next_deadline(self) -> float | None:
        """The earliest deadline; None if nothing waits."""
        return self._waiting.next_deadline
