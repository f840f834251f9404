"""Memory limit of requests in flight. `message_size.py` calculates the memory of a request.

If a broker hangs, each SendMessage stays in memory for seconds, and ReceiveMessage waits for messages. The memory of
such requests is limited for each connection and for all connections together. Small requests have a separate capacity,
so that clients with large requests cannot block the others.
"""

from __future__ import annotations

#: Limit of all clients together, bytes. The body of a request is copied two or three times before it reaches a broker.
MAX_BYTES = 32 * 1024 * 1024
#: Limit of one connection if other connections have requests in flight, bytes.
MAX_CONNECTION_BYTES = MAX_BYTES // 4
#: Largest size of a small request, bytes. Small requests are accepted up to twice MAX_BYTES.
SMALL = 8 * 1024


class RequestMemory:
    """The reserved memory of one server's requests."""

    def __init__(self) -> None:
        self.bytes = 0
        self._connections: dict[object, int] = {}

    def reserve(self, connection: object, size: int) -> bool:
        """Reserves memory. Returns False if there is too little capacity. A single request always gets its memory."""
        of_connection = self._connections.get(connection, 0)
        after = self.bytes + size
        is_much = after > MAX_BYTES or (of_connection and of_connection + size > MAX_CONNECTION_BYTES)
        if is_much and self.bytes and (size > SMALL or after > 2 * MAX_BYTES):
            return False
        self.bytes = after
        self._connections[connection] = of_connection + size
        return True

    def has_plenty(self, connection: object, size: int) -> bool:
        """Returns True if a request of that size would leave at least half of each limit free."""
        of_connection = self._connections.get(connection, 0)
        return self.bytes + size <= MAX_BYTES // 2 and of_connection + size <= MAX_CONNECTION_BYTES // 2

    def release(self, connection: object, size: int) -> None:
        """Releases memory after the response, or after the client has disconnected."""
        self.bytes -= size
        left = self._connections.pop(connection) - size
        if left:
            self._connections[connection] = left
