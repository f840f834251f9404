"""Memory limit of requests in flight. `message_size.py` calculates the memory of a request.

If a broker hangs, each SendMessage stays in memory for seconds, and ReceiveMessage waits for messages. The memory of
such requests is limited for each connection and for all connections together. Small requests have a separate capacity,
so that clients with large requests cannot block the others.
"""

from __future__ import annotations

from gantrymq.limits import PROXY_REQUESTS_BYTES, PROXY_REQUESTS_BYTES_OF_ONE, PROXY_SMALL_REQUEST_BYTES


class RequestMemory:
    """The reserved memory of one server's requests."""

    def __init__(self) -> None:
        self.bytes = 0
        self._connections: dict[object, int] = {}

    def reserve(self, connection: object, size: int) -> bool:
        """Reserves memory. Returns False if too little is free. The only request in flight always gets memory."""
        of_connection = self._connections.get(connection, 0)
        after = self.bytes + size
        is_much = after > PROXY_REQUESTS_BYTES or (of_connection and of_connection + size > PROXY_REQUESTS_BYTES_OF_ONE)
        if is_much and self.bytes and (size > PROXY_SMALL_REQUEST_BYTES or after > 2 * PROXY_REQUESTS_BYTES):
            return False
        self.bytes = after
        self._connections[connection] = of_connection + size
        return True

    def has_plenty(self, connection: object, size: int) -> bool:
        """Returns True if a request of this size would leave at least half of each limit free."""
        of_connection = self._connections.get(connection, 0)
        return (
            self.bytes + size <= PROXY_REQUESTS_BYTES // 2 and of_connection + size <= PROXY_REQUESTS_BYTES_OF_ONE // 2
        )

    def release(self, connection: object, size: int) -> None:
        """Releases memory after the response, or after the client has disconnected."""
        self.bytes -= size
        left = self._connections.pop(connection) - size
        if left:
            self._connections[connection] = left
