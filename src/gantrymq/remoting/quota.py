"""Quota: shares a `Limit` among hosts and their connections, so that no peer takes all of it.

A connection's share is part of its host's share, which is part of the whole. An item counts in all three. A part may
use at most as much as remains free in the share that contains it. One host therefore gets at most half of the limit,
and the next host half of the rest. A peer with few items finds capacity, even if many others use up their shares.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol
from weakref import WeakValueDictionary

from gantrymq.errors import RequestRefused
from gantrymq.limits import Limit
from gantrymq.protocol.codes import ResponseCode


class Peer(Protocol):
    """A Connection."""

    attributes: dict[Any, Any]

    @property
    def address(self) -> str: ...


class Share:
    """The items of one peer, and their size in bytes. They also count in the share `whole`."""

    __slots__ = ("__weakref__", "_max_items", "_max_size", "items", "size", "whole")

    def __init__(self, max_items: int, max_size: int, whole: Share | None = None) -> None:
        self._max_items = max_items
        self._max_size = max_size
        self.whole = whole
        self.items = 0
        self.size = 0

    def take(self, size: int) -> bool:
        """Counts one more item of `size` bytes. Returns False if it exceeds a limit."""
        share: Share | None = self
        while share is not None:
            if not share._has(size):
                return False
            share = share.whole
        self.add(size)
        return True

    def add(self, size: int) -> None:
        """Works like `take`, regardless of the limits."""
        share: Share | None = self
        while share is not None:
            share.items += 1
            share.size += size
            share = share.whole

    def release(self, size: int) -> None:
        """Ends the count of one item of `size` bytes."""
        share: Share | None = self
        while share is not None:
            share.items -= 1
            share.size -= size
            share = share.whole

    def _has(self, size: int) -> bool:
        items, size_here = self.items + 1, self.size + size
        whole = self.whole
        if self.items and (items > self._max_items or size_here > self._max_size):
            return False
        if whole is None or not whole.items:
            return True
        return items < whole._max_items - whole.items and size_here <= whole._max_size - whole.size - size


class Quota:
    """The shares of one limit in one server."""

    def __init__(self, limit: Limit) -> None:
        self._limit = limit
        self.all = Share(limit.items, limit.size)
        #: The shares of hosts. The shares of a host's connections refer to the host's share.
        self._hosts: WeakValueDictionary[str, Share] = WeakValueDictionary()

    def share(self, connection: Peer) -> Share:
        """Returns the share of a connection, which stores it."""
        found: Share | None = connection.attributes.get(self)
        if found is None:
            found = connection.attributes[self] = self.of(connection.address)
        return found

    def of(self, address: str) -> Share:
        """Returns the share of a new connection with the peer host:port."""
        host = address.rpartition(":")[0]
        share = self._hosts.get(host)
        if share is None:
            share = self._hosts[host] = Share(self._limit.items // 2, self._limit.size // 2, self.all)
        return Share(self._limit.items_of_one, self._limit.size_of_one, share)

    @contextmanager
    def reserved(self, connection: Peer, size: int) -> Iterator[None]:
        """Counts an item of `size` bytes of this connection. Raises RequestRefused if it exceeds a limit."""
        share = self.share(connection)
        if not share.take(size):
            raise self.refusal()
        try:
            yield
        finally:
            share.release(size)

    def refusal(self) -> RequestRefused:
        """Returns the error for an item that exceeds the limit."""
        return RequestRefused(
            ResponseCode.SYSTEM_BUSY,
            f"[REJECTREQUEST]system busy, start flow control for a while: {self.all.items} {self._limit.name} have "
            f"{self.all.size} bytes",
        )
