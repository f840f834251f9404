"""Tests of Quota: capacity is left for hosts and connections when others have used up their shares."""

from __future__ import annotations

import weakref
from contextlib import ExitStack

import pytest

from gantrymq.errors import RequestRefused
from gantrymq.limits import Limit
from gantrymq.protocol.codes import ResponseCode
from gantrymq.remoting.connection import Connection
from gantrymq.remoting.quota import Quota, Share

MB = 1 << 20


def limit(items: int, size: int, items_of_one: int, size_of_one: int) -> Limit:
    return Limit("requests", ("broker",), items, size, items_of_one, size_of_one, "a test")


def new_quota() -> Quota:
    return Quota(limit(1000, 64 * MB, 100, 16 * MB))


def shares(quota: Quota, host: str, count: int) -> list[Share]:
    """Returns the shares of connections, which the caller keeps as connections do."""
    return [quota.of(f"{host}:{port}") for port in range(count)]


def fill(share: Share, size: int) -> int:
    """Takes items of this size until the share is used up. Returns how many."""
    taken = 0
    while share.take(size):
        taken += 1
    return taken


def test_what_is_given_back_can_be_taken_again() -> None:
    quota = new_quota()
    share = quota.of("10.0.0.1:1")
    taken = fill(share, 1000)
    assert taken == 100
    assert (quota.all.items, quota.all.size) == (100, 100_000)
    for _ in range(taken):
        share.release(1000)
    assert (quota.all.items, quota.all.size) == (0, 0)
    assert fill(share, 1000) == taken


def test_one_connection_has_its_own_bound() -> None:
    assert fill(new_quota().of("10.0.0.1:1"), 4 * MB) == 4


def test_one_request_is_taken_however_long_it_is_where_nothing_waits() -> None:
    assert new_quota().of("10.0.0.1:1").take(16 * MB + 4096)


def test_four_connections_leave_room_for_others() -> None:
    quota = new_quota()
    first = shares(quota, "10.0.0.1", 4)
    for share in first:
        fill(share, 4 * MB)
    assert quota.of("10.0.0.1:5").take(MB)
    assert quota.of("10.0.0.2:1").take(4 * MB)


def test_a_crowd_of_one_host_leaves_half_to_others() -> None:
    quota = new_quota()
    crowd = shares(quota, "10.0.0.1", 500)
    for share in crowd:
        fill(share, 100_000)
    assert quota.all.size <= 32 * MB
    assert quota.all.items <= 500
    assert quota.of("10.0.0.2:1").take(10 * MB)


def test_a_crowd_of_many_hosts_leaves_room_for_small_requests() -> None:
    quota = new_quota()
    crowd = [share for host in range(200) for share in shares(quota, f"10.0.0.{host}", 10)]
    for share in crowd:
        fill(share, MB)
    assert quota.all.size < 64 * MB
    assert quota.of("10.0.1.1:1").take(100_000)


def test_hosts_that_ask_for_nothing_are_forgotten() -> None:
    quota = new_quota()
    busy = quota.of("10.0.0.1:1")
    assert busy.take(1000)
    idle = [weakref.ref(quota.of(f"10.1.{number}:1").whole) for number in range(5000)]
    assert sum(share() is not None for share in idle) <= 1000
    assert quota.of("10.0.0.1:2").whole is busy.whole


async def test_reserved() -> None:
    quota = Quota(limit(8, 800, 2, 200))
    connections = [Connection({}) for _ in range(6)]
    with ExitStack() as reserved:
        for _ in range(2):
            reserved.enter_context(quota.reserved(connections[0], 10))
        with pytest.raises(RequestRefused, match="2 requests have 20 bytes") as refused:
            reserved.enter_context(quota.reserved(connections[0], 10))
        assert refused.value.code == ResponseCode.SYSTEM_BUSY
        reserved.enter_context(quota.reserved(connections[1], 10))
    assert (quota.all.items, quota.all.size) == (0, 0)
    # A large item is served alone.
    with quota.reserved(connections[0], 1000), pytest.raises(RequestRefused), quota.reserved(connections[0], 1):
        pass
