"""UntakenBytes: what is kept for peers that don't take what they asked for.

HTTP/2 lets a peer keep each stream's window shut as long as it likes, and each of thousands of streams has an answer by
then. All connections share one room for such answers. When it is full the connection goes that hasn't taken anything
for the longest time: who reads takes in milliseconds what others leave lying for seconds.
"""

from __future__ import annotations

from typing import Protocol

#: Of all connections together.
MOST_BYTES = 32 * 1024 * 1024


class Peer(Protocol):
    """A connection."""

    def takes_nothing(self) -> None:
        """The room is full, and of all it has waited longest: it closes."""


class UntakenBytes:
    """Of one server; a plain table."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self.bytes = 0
        #: Who took something last stands last.
        self._peers: dict[Peer, int] = {}

    def keep(self, peer: Peer, size: int) -> None:
        """So many bytes more wait for a peer."""
        self._peers[peer] = self._peers.get(peer, 0) + size
        self.bytes += size
        while self.bytes > self._most_bytes:
            slowest = next(iter(self._peers))
            self.bytes -= self._peers.pop(slowest)
            slowest.takes_nothing()

    def taken(self, peer: Peer, size: int) -> None:
        """So many of its bytes wait no more."""
        kept = self._peers.pop(peer, None)
        if kept is None:
            # It has been closed.
            return
        left = max(kept - size, 0)
        self.bytes -= kept - left
        if left:
            self._peers[peer] = left
