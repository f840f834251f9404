"""Budget: what requests that wait for another client may hold meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from gantrymq.errors import RequestRefused
from gantrymq.protocol.codes import ResponseCode
from gantrymq.remoting.connection import Connection

#: One connection gets at most this part of it, so that others are served, too.
_SHARE = 4


class Budget:
    """At most `requests` at a time, which hold at most `size` bytes, or one alone; `what` names them in a refusal."""

    def __init__(self, what: str, requests: int, size: int) -> None:
        self._what = what
        self._most = requests
        self._most_bytes = size
        self._requests = 0
        self._size = 0
        self._requests_of: Counter[Connection] = Counter()
        self._size_of: Counter[Connection] = Counter()

    @contextmanager
    def held(self, connection: Connection, size: int) -> Iterator[None]:
        """Takes a part of it for one request of this connection. Raises RequestRefused."""
        if (
            self._requests >= self._most
            or self._requests_of[connection] >= self._most // _SHARE
            or _is_over(self._size, size, self._most_bytes)
            or _is_over(self._size_of[connection], size, self._most_bytes // _SHARE)
        ):
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                f"[REJECTREQUEST]system busy, start flow control for a while: {self._requests} {self._what} of "
                f"{self._size} bytes are under way",
            )
        self._take(connection, 1, size)
        try:
            yield
        finally:
            self._take(connection, -1, -size)

    def _take(self, connection: Connection, requests: int, size: int) -> None:
        self._requests += requests
        self._size += size
        self._requests_of[connection] += requests
        self._size_of[connection] += size
        if not self._requests_of[connection]:
            del self._requests_of[connection], self._size_of[connection]


def _is_over(held: int, more: int, most: int) -> bool:
    return held > 0 and held + more > most
