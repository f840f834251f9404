"""RequestsInHand: the memory of requests in flight, as `message_size.py` calculates it.

A broker that hangs keeps each SendMessage for seconds, and receives wait for messages. What clients may bring meanwhile
is bounded: by connection, and over all. Small requests have a room of their own, so that who brings large ones can't
keep others from asking.
"""

from __future__ import annotations

#: Of all clients together. The body of a request is copied twice or thrice on its way to a broker.
MOST_BYTES = 32 * 1024 * 1024
#: Of one connection, if others have some in hand, too.
MOST_OF_CONNECTION = MOST_BYTES // 4
#: Such requests are taken until there is twice as much in hand.
SMALL = 8 * 1024


class RequestsInHand:
    """Of one server; a plain table."""

    def __init__(self) -> None:
        self.bytes = 0
        self._connections: dict[object, int] = {}

    def take(self, connection: object, size: int) -> bool:
        """Whether there is room for a request; `done` makes it free again. A request by itself always has room."""
        of_connection = self._connections.get(connection, 0)
        after = self.bytes + size
        is_much = after > MOST_BYTES or (of_connection and of_connection + size > MOST_OF_CONNECTION)
        if is_much and self.bytes and (size > SMALL or after > 2 * MOST_BYTES):
            return False
        self.bytes = after
        self._connections[connection] = of_connection + size
        return True

    def has_plenty(self, connection: object, size: int) -> bool:
        """Whether less than half of each limit is in use with a request of that size."""
        of_connection = self._connections.get(connection, 0)
        return self.bytes + size <= MOST_BYTES // 2 and of_connection + size <= MOST_OF_CONNECTION // 2

    def done(self, connection: object, size: int) -> None:
        """It was answered, or its client is gone."""
        self.bytes -= size
        left = self._connections.pop(connection) - size
        if left:
            self._connections[connection] = left
