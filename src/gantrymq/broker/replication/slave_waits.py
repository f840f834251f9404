"""Who waits until so many replicas have the log up to some place (`GroupTransferService`).

Told what the slaves have and what time it is; no task, timer or future for each that waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from gantrymq.broker.wait_queues import WaitQueues

T = TypeVar("T")


class SlaveWaits(Generic[T]):
    """Those who wait; `replicated(count)` is the physical offset that `count` replicas have.

    All that wait for the same duration are in one queue, in the order of the log. They normally wait for equally many
    replicas. When that number is changed, who comes later may have to wait for who came before, as in Java.
    """

    def __init__(self, replicated: Callable[[int], int]) -> None:
        self._replicated = replicated
        #: (item, end, replicas).
        self._waiting: WaitQueues[tuple[T, int, int]] = WaitQueues()

    def __len__(self) -> int:
        return len(self._waiting)

    def is_reached(self, end: int, replicas: int) -> bool:
        """Whether so many replicas have the log up to `end`."""
        return self._replicated(replicas) >= end

    def add(self, item: T, end: int, replicas: int, now: float, timeout_s: float) -> bool:
        """Has `item` wait for the log up to `end`; True if no other one waits for the same duration."""
        return self._waiting.add((item, end, replicas), now, timeout_s)

    def reached(self) -> Iterator[T]:
        """Takes out those whose place in the log enough replicas have by now."""
        offsets: dict[int, int] = {}

        def is_reached(waiting: tuple[T, int, int]) -> bool:
            _, end, replicas = waiting
            offset = offsets.get(replicas)
            if offset is None:
                offset = offsets[replicas] = self._replicated(replicas)
            return offset >= end

        return (item for item, _, _ in self._waiting.take_while(is_reached))

    def late(self, now: float) -> Iterator[T]:
        """Takes out those whose time is up."""
        return (item for item, _, _ in self._waiting.late(now))

    def all(self) -> Iterator[T]:
        """Takes out everybody."""
        return (item for item, _, _ in self._waiting.all())

    @property
    def next_deadline(self) -> float | None:
        """When the time of the first is up; None when nobody waits."""
        return self._waiting.next_deadline
