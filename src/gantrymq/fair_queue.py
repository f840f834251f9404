"""FairQueue: a queue that serves the sources of its items in rotation.

A source is a connection or a client address. An item of a source with few items waits for about one item of each other
source, even if these have many items.

Decision record: docs/decisions/fair-scheduling.md.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

S = TypeVar("S", bound=Hashable)
T = TypeVar("T")


class FairQueue(Generic[S, T]):
    """Items by source. The items of one source keep their order."""

    __slots__ = ("_by_source", "_count")

    def __init__(self) -> None:
        #: The source to serve next comes first.
        self._by_source: OrderedDict[S, deque[T]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, source: S) -> bool:
        return source in self._by_source

    @property
    def source_count(self) -> int:
        """The number of sources that have items."""
        return len(self._by_source)

    def count_of(self, source: S) -> int:
        return len(self._by_source.get(source, ()))

    def add(self, source: S, item: T) -> None:
        """Adds an item as the last of its source."""
        self._items_of(source).append(item)
        self._count += 1

    def put_back(self, source: S, item: T) -> None:
        """Puts back an item from `take`, as the first of its source. All other sources are served first."""
        self._items_of(source).appendleft(item)
        self._count += 1

    def take(self) -> tuple[S, T]:
        """Removes and returns the next item and its source. Raises IndexError if the queue is empty."""
        if not self._count:
            raise IndexError("the queue is empty")
        source = next(iter(self._by_source))
        item = self.take_of(source)
        if source in self._by_source:
            self._by_source.move_to_end(source)
        return source, item

    def take_of(self, source: S) -> T:
        """Removes and returns the oldest item of a source. Raises KeyError if the source has none."""
        items = self._by_source[source]
        item = items.popleft()
        self._count -= 1
        if not items:
            del self._by_source[source]
        return item

    def _items_of(self, source: S) -> deque[T]:
        items = self._by_source.get(source)
        if items is None:
            items = self._by_source[source] = deque()
        return items
