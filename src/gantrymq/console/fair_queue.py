"""A queue that is fair to the sources of its items."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """A queue that serves sources in turn. The items of one source keep their order."""

    def __init__(self) -> None:
        self._by_source: OrderedDict[str, deque[T]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, item: T, source: str) -> None:
        self._by_source.setdefault(source, deque()).append(item)
        self._count += 1

    def count_of(self, source: str) -> int:
        return len(self._by_source.get(source, ()))

    def take(self) -> tuple[T, str]:
        """Removes and returns the next item and its source. Raises IndexError if the queue is empty."""
        if not self._count:
            raise IndexError("the queue is empty")
        source = next(iter(self._by_source))
        item = self.take_of(source)
        if source in self._by_source:
            self._by_source.move_to_end(source)
        return item, source

    def take_of(self, source: str) -> T:
        """Removes and returns the oldest item of a source. The source must have one."""
        of_source = self._by_source[source]
        item = of_source.popleft()
        self._count -= 1
        if not of_source:
            del self._by_source[source]
        return item
