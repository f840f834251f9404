"""A line of requests in which short ones don't wait for all the long ones before them.

In turn the oldest goes on and the shortest, of those that are the first of their connection: one connection's stay in
their order, nobody waits for ever, and who asks for little waits for one other, however many ask for much.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from heapq import heappop, heappush

from gantrymq.broker.held_requests import Held
from gantrymq.remoting.connection import Connection


class FairLine:
    """Empty at first; the oldest is the first to go on."""

    def __init__(self) -> None:
        #: By their numbers, the oldest first.
        self._held: OrderedDict[int, Held] = OrderedDict()
        self._of: dict[Connection, deque[Held]] = {}
        #: Size and number of the first of each connection, a heap; of some that have gone on, too.
        self._first: list[tuple[int, int]] = []
        self._is_turn_of_shortest = False

    def __len__(self) -> int:
        return len(self._held)

    @property
    def oldest(self) -> Held:
        """The one that came before all others."""
        return next(iter(self._held.values()))

    def begin_with_oldest(self) -> None:
        """It goes on next."""
        self._is_turn_of_shortest = False

    def add(self, held: Held) -> None:
        """Puts a request behind all that are there; one that was there before comes back into an empty line only."""
        self._held[held.number] = held
        line = self._of.setdefault(held.connection, deque())
        line.append(held)
        if len(line) == 1:
            heappush(self._first, (held.size, held.number))

    def take(self) -> Held:
        """The one whose turn it is, which leaves the line."""
        self._is_turn_of_shortest = not self._is_turn_of_shortest
        if self._is_turn_of_shortest:
            return self.take_oldest()
        while (number := heappop(self._first)[1]) not in self._held:
            pass
        return self._leaves(self._held[number])

    def take_oldest(self) -> Held:
        """The oldest, which leaves the line."""
        return self._leaves(self.oldest)

    def _leaves(self, held: Held) -> Held:
        del self._held[held.number]
        line = self._of[held.connection]
        line.popleft()
        if line:
            heappush(self._first, (line[0].size, line[0].number))
        else:
            del self._of[held.connection]
        if not self._held:
            # Whoever comes back has the number that he had.
            self._first.clear()
        return held
