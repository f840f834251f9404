"""The queue of accepted sockets that have no HTTP connection yet, fair to addresses.

A connection costs more time than an accepted socket. If one address opens connections faster than the console can
serve them, browsers of other addresses don't wait for it.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from gantrymq.console.connections import MAX_PER_ADDRESS
from gantrymq.system.network import Socket


class AcceptQueue:
    """Sockets by source, which take turns. Each source has MAX_PER_ADDRESS of them at most."""

    def __init__(self) -> None:
        self._by_source: OrderedDict[str, deque[Socket]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, sock: Socket, source: str) -> None:
        """Closes the oldest socket of the source if it has too many."""
        of_source = self._by_source.setdefault(source, deque())
        of_source.append(sock)
        if len(of_source) > MAX_PER_ADDRESS:
            of_source.popleft().close()
        else:
            self._count += 1

    def take(self) -> tuple[Socket, str]:
        """The next socket and its source. Raises IndexError if there is none."""
        if not self._count:
            raise IndexError("the accept queue is empty")
        source, of_source = next(iter(self._by_source.items()))
        sock = of_source.popleft()
        self._count -= 1
        if of_source:
            self._by_source.move_to_end(source)
        else:
            del self._by_source[source]
        return sock, source
