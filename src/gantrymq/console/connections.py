"""Limits of browser connections, and the order in which the console closes connections.

A connection is in one of four states. The right column is the timeout after which the console always closes it:

    incomplete  its TLS handshake or its request is incomplete  HEAD_WITHIN_S; REQUEST_WITHIN_S with a body
    unread      the client does not read its response           UNREAD_WITHIN_S without progress
    idle        all its requests have responses                 uvicorn's keep-alive time, 5 s
    working     the console creates its response                no limit

If one address or all addresses have too many connections, the console closes the first connection in this order. Within
a state, it closes the connection that entered the state first.

New incomplete and idle connections are fresh for FRESH_S. The console closes them after all others that are not
working. Otherwise each connection of a flood would close the previous connection, which can be a browser's whose
request has not arrived yet.

The caller passes the time, s. The classes do no I/O.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from enum import IntEnum

MAX_CONNECTIONS = 500
MAX_PER_ADDRESS = 100
#: Timeouts, s: for a TLS handshake and the head of a request, and for a request with its body.
HEAD_WITHIN_S = 10.0
REQUEST_WITHIN_S = 30.0
#: Timeout in which a client must read 48 KiB, or the rest of a response, s.
UNREAD_WITHIN_S = 10.0
#: Time after the connection or the last response in which a browser usually sends a request, s.
FRESH_S = 1.0
#: Largest size of the unread responses of all connections, bytes. Above it, the connection with most is closed.
MAX_UNREAD_BYTES = 64 * 1024 * 1024
#: Prefix length of an IPv6 network, bits. All addresses of such a network count as one source.
_IPV6_PREFIX = 64


class State(IntEnum):
    """The states in the order in which connections are closed."""

    INCOMPLETE = 0
    UNREAD = 1
    IDLE = 2
    WORKING = 3


class Peer:
    """The state of one connection and its start time. `abort` closes the connection at once."""

    __slots__ = ("_abort", "_incomplete_since", "_unread_since", "has_head", "is_working", "progress_at", "source")

    def __init__(self, source: str, abort: Callable[[], None], now: float) -> None:
        self.source = source
        self._abort = abort
        self._incomplete_since: float | None = now
        self._unread_since: float | None = None
        #: True if only the body of an incomplete request is missing.
        self.has_head = False
        self.is_working = False
        #: Time of the last complete request or response, s.
        self.progress_at = now

    def connected(self, abort: Callable[[], None]) -> None:
        """Sets a new `abort` after the TLS handshake. The timeout of the first request continues."""
        self._abort = abort

    def abort(self) -> None:
        self._abort()

    def incomplete(self, now: float, *, has_head: bool) -> None:
        """Records that a request has arrived in part."""
        self.has_head = has_head
        if self._incomplete_since is None:
            self._incomplete_since = now

    def complete(self, now: float, *, is_working: bool) -> None:
        """Records that no request is incomplete. If `is_working`, a request has no response yet."""
        self._incomplete_since = None
        self.is_working = is_working
        self.progress_at = now

    def unread(self, now: float) -> None:
        """Records that the client has not read a part of its response."""
        if self._unread_since is None:
            self._unread_since = now

    def read(self) -> None:
        """Records that the client has read its response, or most of it."""
        self._unread_since = None

    @property
    def state(self) -> State:
        return self._state_since()[0]

    def rank(self, now: float) -> tuple[bool, State, float]:
        """Returns the sort key for closing: the connection with the lowest rank is closed first."""
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
        """Returns True if the timeout of the connection's state has elapsed."""
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
        """Returns True if the source has its maximum. Its next connection then closes an older one."""
        return len(self._by_source.get(source, ())) >= MAX_PER_ADDRESS

    def add(self, peer: Peer) -> None:
        """Adds a new connection. Closes another connection if there are too many."""
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
        """Removes a connection. A second call has no effect."""
        of_source = self._by_source.get(peer.source)
        if of_source is None or peer not in of_source:
            return
        del of_source[peer]
        self._count -= 1
        if not of_source:
            del self._by_source[peer.source]

    def check(self, now: float, unread_bytes: Callable[[Peer], int]) -> None:
        """Closes overdue connections and, above the limit, those with most unread bytes. Called every second."""
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
        """Closes incomplete and unread connections, so that a stopping server does not wait for them."""
        for peer in [one for peers in self._by_source.values() for one in peers]:
            if peer.state in (State.INCOMPLETE, State.UNREAD):
                self._close(peer)

    def _close(self, peer: Peer) -> None:
        self.remove(peer)
        peer.abort()


def source_of(address: str) -> str:
    """Returns the source of a connection: an IPv4 address, or the network of an IPv6 address."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv4Address):
        return address
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ipaddress.ip_network((ip, _IPV6_PREFIX), strict=False))
