"""Connections of browsers: how many there may be, and when the console closes one.

A connection is in one of four states. When there are too many, of one address or in all, the first one in this order
is closed, within a state the one that has been in it for longest:

    incomplete  its TLS handshake or its request is incomplete  HEAD_WITHIN_S; REQUEST_WITHIN_S with a body
    unread      it doesn't read its response                    UNREAD_WITHIN_S without progress
    idle        all its requests have been answered             uvicorn's keep-alive time, 5 s
    working     the console works on its response               no limit

On the right is the time after which the console closes it in any case.

Incomplete and idle connections are fresh for FRESH_S. The console closes them after all others that are not working:
otherwise each connection of a flood would close the one before it, and a browser's among them, before its request
arrives.

The classes here are told the time, and do no I/O.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from enum import IntEnum

MAX_CONNECTIONS = 500
MAX_PER_ADDRESS = 100
#: Time for a TLS handshake and for the head of a request, s; time for a request with its body.
HEAD_WITHIN_S = 10.0
REQUEST_WITHIN_S = 30.0
#: A client that reads has read 48 KiB, or all that there is, in this time, s.
UNREAD_WITHIN_S = 10.0
#: A request arrives in this time after its connection, and the next request after a response, s.
FRESH_S = 1.0
#: Responses of all connections that are waiting to be read, bytes. On top of it, the largest is dropped.
MAX_UNREAD_BYTES = 64 * 1024 * 1024
#: The network that one owner of IPv6 addresses has.
_IPV6_PREFIX = 64


class State(IntEnum):
    """In the order in which connections are closed."""

    INCOMPLETE = 0
    UNREAD = 1
    IDLE = 2
    WORKING = 3


class Peer:
    """What is known of one connection: its state, and since when. `abort` closes it at once."""

    __slots__ = ("_abort", "_incomplete_since", "_unread_since", "has_head", "is_working", "progress_at", "source")

    def __init__(self, source: str, abort: Callable[[], None], now: float) -> None:
        self.source = source
        self._abort = abort
        self._incomplete_since: float | None = now
        self._unread_since: float | None = None
        #: Of a request that is incomplete, only the body is missing.
        self.has_head = False
        self.is_working = False
        #: When a request was complete, or answered.
        self.progress_at = now

    def connected(self, abort: Callable[[], None]) -> None:
        """Its TLS handshake is over: `abort` closes it now. The time for its first request runs on."""
        self._abort = abort

    def abort(self) -> None:
        self._abort()

    def incomplete(self, now: float, *, has_head: bool) -> None:
        """A part of a request is here."""
        self.has_head = has_head
        if self._incomplete_since is None:
            self._incomplete_since = now

    def complete(self, now: float, *, is_working: bool) -> None:
        """No request is here in part; if `is_working`, one is here that has no response yet."""
        self._incomplete_since = None
        self.is_working = is_working
        self.progress_at = now

    def unread(self, now: float) -> None:
        """Some of its response isn't read."""
        if self._unread_since is None:
            self._unread_since = now

    def read(self) -> None:
        """It has read its response, or a good part of it."""
        self._unread_since = None

    @property
    def state(self) -> State:
        return self._state_since()[0]

    def rank(self, now: float) -> tuple[bool, State, float]:
        """The connection with the lowest rank is closed first."""
        state, since = self._state_since()
        is_fresh = state in (State.INCOMPLETE, State.IDLE) and now - since < FRESH_S
        return is_fresh or state is State.WORKING, state, since

    def _state_since(self) -> tuple[State, float]:
        if self._incomplete_since is not None:
            return State.INCOMPLETE, self._incomplete_since
        if self._unread_since is not None:
            return State.UNREAD, self._unread_since
        return State.WORKING if self.is_working else State.IDLE, self.progress_at

    def is_overdue(self, now: float) -> bool:
        """Its time is over."""
        if self._unread_since is not None and now - self._unread_since > UNREAD_WITHIN_S:
            return True
        if self._incomplete_since is None:
            return False
        return now - self._incomplete_since > (REQUEST_WITHIN_S if self.has_head else HEAD_WITHIN_S)


class Connections:
    """All connections of one server."""

    def __init__(self) -> None:
        self._by_source: dict[str, dict[Peer, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def is_full(self, source: str) -> bool:
        """Whether a new connection of the source closes another one of it."""
        return len(self._by_source.get(source, ())) >= MAX_PER_ADDRESS

    def add(self, peer: Peer) -> None:
        """Adds a new connection. Closes another one if there are too many."""
        now = peer.progress_at
        of_source = self._by_source.setdefault(peer.source, {})
        if self.is_full(peer.source):
            self._close(min(of_source, key=lambda one: one.rank(now)))
        elif self._count >= MAX_CONNECTIONS:
            everybody = (one for peers in self._by_source.values() for one in peers)
            self._close(min(everybody, key=lambda one: one.rank(now)))
        self._by_source.setdefault(peer.source, {})[peer] = None
        self._count += 1

    def remove(self, peer: Peer) -> None:
        """Once more does no harm."""
        of_source = self._by_source.get(peer.source)
        if of_source is None or peer not in of_source:
            return
        del of_source[peer]
        self._count -= 1
        if not of_source:
            del self._by_source[peer.source]

    def check(self, now: float, unread_bytes: Callable[[Peer], int]) -> None:
        """Closes those whose time is over, and the largest ones if too much is unread. Called every second."""
        sizes: dict[Peer, int] = {}
        for peer in [one for peers in self._by_source.values() for one in peers]:
            if size := unread_bytes(peer):
                peer.unread(now)
                sizes[peer] = size
            else:
                peer.read()
            if peer.is_overdue(now):
                self._close(peer)
                sizes.pop(peer, None)
        total = sum(sizes.values())
        for peer in sorted(sizes, key=lambda one: sizes[one], reverse=True):
            if total <= MAX_UNREAD_BYTES:
                break
            total -= sizes[peer]
            self._close(peer)

    def close_stalled(self) -> None:
        """Closes those that are incomplete or unread: a server that ends doesn't wait for them."""
        for peer in [one for peers in self._by_source.values() for one in peers]:
            if peer.state in (State.INCOMPLETE, State.UNREAD):
                self._close(peer)

    def _close(self, peer: Peer) -> None:
        self.remove(peer)
        peer.abort()


def source_of(address: str) -> str:
    """Those who have one address: an IPv4 address, or the network of an IPv6 address."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv4Address):
        return address
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ipaddress.ip_network((ip, _IPV6_PREFIX), strict=False))
