"""A cache of encoded responses to QueryRoute. Encoding a topic with 1,024 queues takes 1 ms."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from gantrymq.limits import PROXY_CACHED_RESPONSES_BYTES
from gantrymq.protocol.bodies.route import TopicRouteData


class _Cached(NamedTuple):
    """An encoded response and its route. Each change of a route creates a new object."""

    route: TopicRouteData
    response: bytes


class ResponseCache:
    """Caches the most recently requested responses, up to PROXY_CACHED_RESPONSES_BYTES."""

    def __init__(self) -> None:
        self._cached: OrderedDict[tuple[object, ...], _Cached] = OrderedDict()
        self._bytes = 0

    def get(self, key: tuple[object, ...], route: TopicRouteData, encode: Callable[[], bytes]) -> bytes:
        """Returns the response of a key. Encodes it if it is not cached or the route has changed."""
        cached = self._cached.get(key)
        if cached is not None and cached.route is route:
            self._cached.move_to_end(key)
            return cached.response
        response = encode()
        if cached is not None:
            del self._cached[key]
            self._bytes -= len(cached.response)
        self._cached[key] = _Cached(route, response)
        self._bytes += len(response)
        while self._bytes > PROXY_CACHED_RESPONSES_BYTES:
            self._bytes -= len(self._cached.popitem(last=False)[1].response)
        return response
