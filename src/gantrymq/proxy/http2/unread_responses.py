"""Memory limit for responses that peers do not read.

In HTTP/2, a peer can keep the window of each stream closed, and thousands of streams can have a response. All
connections share one limit for such responses. Above the limit, the server closes the connection that has read nothing
for the longest time. An honest peer reads within milliseconds, so the oldest entry belongs to an attacker.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from gantrymq.limits import PROXY_UNREAD_RESPONSES_BYTES


class Peer(Protocol):
    """A connection with unread responses."""

    def reads_nothing(self) -> None:
        """Disconnects the peer. Above the limit, called for the peer that has read nothing for longest."""


class UnreadResponses:
    """The unread responses of one server."""

    def __init__(self, max_bytes: int = PROXY_UNREAD_RESPONSES_BYTES) -> None:
        self._max_bytes = max_bytes
        self.bytes = 0
        #: Unread bytes by peer. The peer that read last is the last entry.
        self._peers: OrderedDict[Peer, int] = OrderedDict()

    def add(self, peer: Peer, size: int) -> None:
        """Counts `size` more unread bytes of a peer. If the limit is exceeded, disconnects the slowest peers."""
        self._peers[peer] = self._peers.get(peer, 0) + size
        self.bytes += size
        while self.bytes > self._max_bytes:
            slowest = next(iter(self._peers))
            self.bytes -= self._peers.pop(slowest)
            slowest.reads_nothing()

    def remove(self, peer: Peer, size: int) -> None:
        """Removes `size` bytes that the peer has read, or that the server has discarded."""
        waiting = self._peers.pop(peer, None)
        if waiting is None:
            # The peer was disconnected before.
            return
        left = max(waiting - size, 0)
        self.bytes -= waiting - left
        if left:
            self._peers[peer] = left
