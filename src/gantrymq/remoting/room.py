"""Room: how many requests may wait in a server, and how many bytes of them, so that nobody takes all of it.

One room is for all, in it one for each host, and in that one for each connection. What a connection asks for is taken
of all three; each of them takes no more of the one that it is part of than is still left there afterwards. So one host
gets half of all, the next half of the rest, and whoever has asked for little finds room for that however many others
ask for as much as they get.

The alternative that lost: a fixed share for each connection, of which a few are all.
"""

from __future__ import annotations

#: Of more hosts those are forgotten that ask for nothing.
_MOST_HOSTS = 1_000


class Room:
    """Of requests and bytes. What is taken here is taken of `shared`, too."""

    __slots__ = ("_max_bytes", "_max_requests", "bytes", "requests", "shared")

    def __init__(self, max_requests: int, max_bytes: int, shared: Room | None = None) -> None:
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self.shared = shared
        self.requests = 0
        self.bytes = 0

    def take(self, size: int) -> bool:
        """Room for one more request of so many bytes; False when there is none."""
        room: Room | None = self
        while room is not None:
            if not room._has(size):
                return False
            room = room.shared
        room = self
        while room is not None:
            room.requests += 1
            room.bytes += size
            room = room.shared
        return True

    def give_back(self, size: int) -> None:
        """One request of so many bytes doesn't wait any more."""
        room: Room | None = self
        while room is not None:
            room.requests -= 1
            room.bytes -= size
            room = room.shared

    def _has(self, size: int) -> bool:
        requests, size_here = self.requests + 1, self.bytes + size
        shared = self.shared
        if self.requests and (requests > self._max_requests or size_here > self._max_bytes):
            return False
        if shared is None or not shared.requests:
            return True
        return (
            requests < shared._max_requests - shared.requests and size_here <= shared._max_bytes - shared.bytes - size
        )


class Rooms:
    """Of one server: `max_requests` and `max_bytes` for all, and less of both for one connection."""

    def __init__(self, max_requests: int, max_bytes: int, max_requests_of_one: int, max_bytes_of_one: int) -> None:
        self.all = Room(max_requests, max_bytes)
        self._of_host = (max_requests // 2, max_bytes // 2)
        self._of_one = (max_requests_of_one, max_bytes_of_one)
        self._hosts: dict[str, Room] = {}

    def of(self, address: str) -> Room:
        """The room of a new connection with host:port."""
        host = address.rpartition(":")[0]
        room = self._hosts.get(host)
        if room is None:
            if len(self._hosts) >= _MOST_HOSTS:
                self._hosts = {host: room for host, room in self._hosts.items() if room.requests}
            room = self._hosts[host] = Room(*self._of_host, self.all)
        return Room(*self._of_one, room)
