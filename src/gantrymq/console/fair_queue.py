"""FairQueue: items of several sources, which take turns."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """The items of one source keep their order. After each item, the source waits behind all others."""

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
        """The next item and its source. Raises IndexError if there is none."""
        if not self._count:
            raise IndexError("the queue is empty")
        source = next(iter(self._by_source))
        item = self.take_of(source)
        if source in self._by_source:
            self._by_source.move_to_end(source)
        return item, source

    def take_of(self, source: str) -> T:
        """The oldest item of a source that has one."""
        of_source = self._by_source[source]
        item = of_source.popleft()
        self._count -= 1
        if not of_source:
            del self._by_source[source]
        return item
