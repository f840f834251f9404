"""FairQueue: a wait queue in which a small request does not wait for all large requests before it.

`take` alternates between the oldest request and the smallest one. It only considers the first request of each
connection, so the requests of a connection keep their order. No request starves. A small request waits for about one
other request, even if many clients send large ones.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from heapq import heappop, heappush

from gantrymq.broker.append.pending_requests import PendingRequest
from gantrymq.remoting.connection import Connection


class FairQueue:
    """A fair queue of pending requests. The first `take` returns the oldest request."""

    def __init__(self) -> None:
        #: Number -> request, the oldest first.
        self._held: OrderedDict[int, PendingRequest] = OrderedDict()
        self._of: dict[Connection, deque[PendingRequest]] = {}
        #: Heap of (size, number) of the first request of each connection. Also contains requests that have left.
        self._first: list[tuple[int, int]] = []
        self._is_turn_of_shortest = False

    def __len__(self) -> int:
        return len(self._held)

    @property
    def oldest(self) -> PendingRequest:
        """The request that arrived first."""
        return next(iter(self._held.values()))

    def begin_with_oldest(self) -> None:
        """Makes the next `take` return the oldest request."""
        self._is_turn_of_shortest = False

    def add(self, held: PendingRequest) -> None:
        """Adds a request at the end.

        Requests that have left the queue may be added again only after it is empty, the oldest first.
        """
        self._held[held.number] = held
        line = self._of.setdefault(held.connection, deque())
        line.append(held)
        if len(line) == 1:
            heappush(self._first, (held.size, held.number))

    def take(self) -> PendingRequest:
        """Removes and returns the next request: alternately the oldest and the smallest."""
        self._is_turn_of_shortest = not self._is_turn_of_shortest
        if self._is_turn_of_shortest:
            return self.take_oldest()
        while (number := heappop(self._first)[1]) not in self._held:
            pass
        return self._leaves(self._held[number])

    def take_oldest(self) -> PendingRequest:
        """Removes and returns the oldest request."""
        return self._leaves(self.oldest)

    def _leaves(self, held: PendingRequest) -> PendingRequest:
        del self._held[held.number]
        line = self._of[held.connection]
        line.popleft()
        if line:
            heappush(self._first, (line[0].size, line[0].number))
        else:
            del self._of[held.connection]
        if not self._held:
            # A request that is added again keeps its number. An old heap entry would match it.
            self._first.clear()
        return held
