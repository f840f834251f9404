"""Cached encoded responses: reused while the route is the same object, within a limit of bytes."""

from __future__ import annotations

from gantrymq.limits import PROXY_CACHED_RESPONSES_BYTES
from gantrymq.protocol.bodies.route import TopicRouteData
from gantrymq.proxy.response_cache import ResponseCache

ROUTE = TopicRouteData([], [])


def test_a_response_is_encoded_once_for_a_route() -> None:
    cache, encoded = ResponseCache(), []

    def encode() -> bytes:
        encoded.append(1)
        return b"%d" % len(encoded)

    assert [cache.get(("a",), ROUTE, encode) for _ in range(3)] == [b"1"] * 3
    assert cache.get(("b",), ROUTE, encode) == b"2"
    changed = TopicRouteData([], [])
    assert [cache.get(("a",), changed, encode) for _ in range(2)] == [b"3"] * 2


def test_the_least_recently_used_response_is_dropped() -> None:
    cache, size = ResponseCache(), PROXY_CACHED_RESPONSES_BYTES // 3
    for key in ("a", "b", "c"):
        cache.get((key,), ROUTE, lambda: bytes(size))
    # A larger response for a changed route replaces the old one.
    cache.get(("a",), TopicRouteData([], []), lambda: bytes(size + 10))
    assert cache.get(("c",), ROUTE, lambda: b"anew") == bytes(size)
    assert cache.get(("b",), ROUTE, lambda: b"anew") == b"anew"
    assert cache.get(("x",), ROUTE, lambda: bytes(2 * PROXY_CACHED_RESPONSES_BYTES)) == bytes(
        2 * PROXY_CACHED_RESPONSES_BYTES
    )
    assert cache.get(("x",), ROUTE, lambda: b"anew") == b"anew"
