"""Who waits until so many replicas have the log up to some place (`GroupTransferService`).

Told what the slaves have and what time it is; no task, timer or future for each that waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class SlaveWaits(Generic[T]):
    """Those who wait, in the order of the log; `replicated(count)` is the physical offset that `count` replicas have.

    All normally wait for equally many replicas. When that number is changed, who comes later may have to wait for who
    came before, as in Java.
    """

    def __init__(self, replicated: Callable[[int], int]) -> None:
        self._replicated = replicated
        #: (item, end, replicas, deadline).
        self._waiting: deque[tuple[T, int, int, float]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, item: T, end: int, replicas: int, deadline: float) -> bool:
        """Has `item` wait for the log up to `end`; False when as many replicas have it already."""
        if self._replicated(replicas) >= end:
            return False
        self._waiting.append((item, end, replicas, deadline))
        return True

    def reached(self) -> Iterator[T]:
        """Takes out those whose place in the log enough replicas have by now."""
        offsets: dict[int, int] = {}
        while self._waiting:
            item, end, replicas, _ = self._waiting[0]
            offset = offsets.get(replicas)
            if offset is None:
                offset = offsets[replicas] = self._replicated(replicas)
            if offset < end:
                return
            self._waiting.popleft()
            yield item

    def late(self, now: float) -> Iterator[T]:
        """Takes out those whose time is up."""
        while self._waiting and self._waiting[0][3] <= now:
            yield self._waiting.popleft()[0]

    def all(self) -> Iterator[T]:
        """Takes out everybody."""
        while self._waiting:
            yield self._waiting.popleft()[0]

    @property
    def next_deadline(self) -> float | None:
        """When the time of the first is up; None when nobody waits."""
        return self._waiting[0][3] if self._waiting else None
