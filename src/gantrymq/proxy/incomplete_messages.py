"""Memory limit for incomplete messages.

In HTTP/2, a server limits how many bytes a client may send on each stream: its window. A message that fits into the
first window needs no permission. The rest of a longer message needs a *grant*. The call gets its grant when there is
capacity for the whole rest; until then the window stays closed. Waiting calls get their grants in the order of their
requests. If other calls wait, a slow call loses its grant.

`remoting/incomplete_frames.py` limits incomplete frames of the remoting protocol in the same way. There, a server can
only stop reading.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gantrymq.limits import PROXY_INCOMPLETE_MESSAGES_BYTES, PROXY_LONG_MESSAGES_BYTES

#: Validity of a grant, s, and slowest accepted rate, bytes/s. More bytes extend the validity.
GRACE_S = 5.0
SLOWEST_BYTES_PER_S = 256 * 1024


class Call(Protocol):
    """A call whose message is incomplete."""

    @property
    def connection(self) -> object: ...

    def granted(self, size: int) -> None:
        """Lets the client send `size` more bytes."""

    def revoked(self) -> None:
        """Rejects the call, because the client is too slow."""


@dataclass(slots=True, eq=False)
class _Grant:
    call: Call
    size: int
    #: Time from which the grant can be revoked, s.
    until: float = 0.0


class IncompleteMessages:
    """The incomplete messages of one server. The caller passes the time, s."""

    def __init__(self, capacity_bytes: int = PROXY_LONG_MESSAGES_BYTES) -> None:
        self._capacity_bytes = capacity_bytes
        self._granted_bytes = 0
        self._connections: dict[object, int] = {}
        self._grants: dict[Call, _Grant] = {}
        #: Requested bytes of waiting calls, oldest request first.
        self._waiting: dict[Call, int] = {}
        #: Bytes in the buffers of all calls.
        self.buffered_bytes = 0

    @property
    def is_full(self) -> bool:
        """True if the buffers exceed their limit. Calls that receive more of a message must then be rejected."""
        return self.buffered_bytes > PROXY_INCOMPLETE_MESSAGES_BYTES + max(
            0, self._granted_bytes - self._capacity_bytes
        )

    def request(self, call: Call, size: int, now: float) -> None:
        """Requests a grant for `size` bytes beyond the window. Calls `granted` now or later."""
        if call in self._waiting:
            return
        if self._fits(call, size):
            self._grant(call, size, now)
        else:
            self._waiting[call] = size

    def done(self, call: Call, now: float) -> None:
        """Releases the grant of a complete message or an ended call. A second call does nothing."""
        self._waiting.pop(call, None)
        grant = self._grants.pop(call, None)
        if grant is None:
            return
        self._granted_bytes -= grant.size
        connection = call.connection
        left = self._connections.pop(connection) - grant.size
        if left:
            self._connections[connection] = left
        self._grant_waiting(now)

    def revoke_slow(self, now: float) -> None:
        """Revokes the grants of slow calls if other calls wait."""
        if not self._waiting:
            return
        for grant in [grant for grant in self._grants.values() if grant.until < now]:
            grant.call.revoked()

    def _grant_waiting(self, now: float) -> None:
        """Grants the waiting requests in their order, while there is capacity."""
        for call, size in list(self._waiting.items()):
            # A call that exceeds only the limit of its connection does not block the calls of other connections.
            if self._fits(call, size):
                del self._waiting[call]
                self._grant(call, size, now)
            elif self._connections.get(call.connection, 0) + size <= self._capacity_bytes // 2:
                return

    def _fits(self, call: Call, size: int) -> bool:
        if not self._granted_bytes:
            return True
        # One connection gets at most half of the capacity.
        of_connection = self._connections.get(call.connection, 0)
        return self._granted_bytes + size <= self._capacity_bytes and of_connection + size <= self._capacity_bytes // 2

    def _grant(self, call: Call, size: int, now: float) -> None:
        grant = self._grants.get(call)
        if grant is None:
            grant = self._grants[call] = _Grant(call, 0)
        grant.size += size
        grant.until = now + GRACE_S + grant.size / SLOWEST_BYTES_PER_S
        self._granted_bytes += size
        self._connections[call.connection] = self._connections.get(call.connection, 0) + size
        call.granted(size)
