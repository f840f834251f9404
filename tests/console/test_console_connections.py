"""Connections that the console closes. The time of the table is a parameter."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gantrymq.console.connections import (
    HEAD_WITHIN_S,
    MAX_CONNECTIONS,
    MAX_PER_ADDRESS,
    MAX_UNREAD_BYTES,
    REQUEST_WITHIN_S,
    UNREAD_WITHIN_S,
    Connections,
    Peer,
    source_of,
)


class Browsers:
    """Connections, and the names of the closed ones."""

    def __init__(self) -> None:
        self.connections = Connections()
        self.closed: list[str] = []
        self.unread: dict[Peer, int] = {}

    def open(self, name: str, now: float = 0.0, source: str = "10.0.0.1") -> Peer:
        peer = Peer(source, lambda: self.closed.append(name), now)
        self.connections.add(peer)
        return peer

    def check(self, now: float) -> None:
        self.connections.check(now, lambda peer: self.unread.get(peer, 0))


@pytest.fixture
def browsers() -> Browsers:
    return Browsers()


def idle(peer: Peer) -> None:
    peer.complete(2.0, is_working=False)


def working(peer: Peer) -> None:
    peer.complete(1.0, is_working=True)


def unread(peer: Peer) -> None:
    peer.complete(1.0, is_working=True)
    peer.unread(1.0)


@pytest.mark.parametrize(
    ("states", "first"),
    [
        ({"working": working, "idle": idle, "unread": unread, "new": lambda peer: None}, "new"),
        ({"working": working, "idle": idle, "unread": unread}, "unread"),
        ({"working": working, "idle": idle}, "idle"),
        ({"working": working}, "working"),
    ],
)
def test_which_is_closed_first(browsers: Browsers, states: dict[str, Callable[[Peer], None]], first: str) -> None:
    for name, change in states.items():
        change(browsers.open(name))
    for n in range(MAX_PER_ADDRESS - len(states)):
        browsers.open(f"other {n}").complete(3.0, is_working=True)
    assert browsers.closed == []
    browsers.open("one too many", 4.0)
    assert browsers.closed == [first]
    assert len(browsers.connections) == MAX_PER_ADDRESS


@pytest.mark.parametrize("change", [unread, idle])
def test_a_flood_does_not_close_a_connection_that_has_just_come(
    browsers: Browsers, change: Callable[[Peer], None]
) -> None:
    for n in range(MAX_PER_ADDRESS):
        change(browsers.open(f"attacker {n}"))
    for n in range(MAX_PER_ADDRESS - 1):
        browsers.open(f"new {n}", 4.0 + n / 1000)
    assert all(name.startswith("attacker") for name in browsers.closed)


def test_a_flood_closes_the_oldest_of_those_that_have_just_come(browsers: Browsers) -> None:
    """A connection whose response was read a moment ago can send its next request."""
    idle(browsers.open("innocent"))
    for n in range(2 * MAX_PER_ADDRESS):
        browsers.open(f"attacker {n}", 2.1 + n / 1000)
    assert "innocent" not in browsers.closed
    assert browsers.closed[:2] == ["attacker 0", "attacker 1"]


def test_an_address_closes_its_own_connections(browsers: Browsers) -> None:
    """Connections of other addresses stay open in any state."""
    browsers.open("innocent", source="10.0.0.2")
    for n in range(3 * MAX_PER_ADDRESS):
        browsers.open(f"attacker {n}", float(n))
    assert "innocent" not in browsers.closed
    assert browsers.closed[:2] == ["attacker 0", "attacker 1"]


def test_many_addresses(browsers: Browsers) -> None:
    for n in range(MAX_CONNECTIONS + 2):
        browsers.open(f"{n}", float(n), source=f"10.0.{n % 256}.{n // 256}")
    assert browsers.closed == ["0", "1"]
    assert len(browsers.connections) == MAX_CONNECTIONS


def test_time_limits(browsers: Browsers) -> None:
    browsers.open("silent")
    browsers.open("body").incomplete(0.0, has_head=True)
    dribbling = browsers.open("next head")
    dribbling.complete(5.0, is_working=False)
    dribbling.incomplete(6.0, has_head=False)
    dribbling.incomplete(9.0, has_head=False)
    working(browsers.open("working"))
    browsers.check(HEAD_WITHIN_S)
    assert browsers.closed == []
    browsers.check(HEAD_WITHIN_S + 1)
    assert browsers.closed == ["silent"]
    browsers.check(6 + HEAD_WITHIN_S + 1)
    assert browsers.closed == ["silent", "next head"]
    browsers.check(REQUEST_WITHIN_S + 1)
    assert browsers.closed == ["silent", "next head", "body"]
    browsers.check(1e6)
    assert len(browsers.connections) == 1


def test_readers(browsers: Browsers) -> None:
    """A connection that reads a part from time to time stays open. The last bytes of a response count, too."""
    slow, stopped = browsers.open("slow"), browsers.open("stopped")
    for peer in (slow, stopped):
        peer.complete(0.0, is_working=True)
        peer.unread(0.0)
    slow.read()
    browsers.unread = {slow: 1, stopped: 1}
    browsers.check(5.0)
    browsers.check(UNREAD_WITHIN_S + 1)
    assert browsers.closed == ["stopped"]
    browsers.check(5.0 + UNREAD_WITHIN_S + 1)
    assert browsers.closed == ["stopped", "slow"]


def test_a_server_that_ends_waits_for_responses_only(browsers: Browsers) -> None:
    browsers.open("incomplete")
    for name, change in {"unread": unread, "idle": idle, "working": working}.items():
        change(browsers.open(name))
    browsers.connections.close_stalled()
    assert browsers.closed == ["incomplete", "unread"]


def test_unread_responses_of_all(browsers: Browsers) -> None:
    peers = [browsers.open(f"{n}") for n in range(3)]
    for peer in peers:
        peer.complete(0.0, is_working=True)
    browsers.unread = dict(zip(peers, (10, MAX_UNREAD_BYTES, 20), strict=True))
    browsers.check(1.0)
    assert browsers.closed == ["1"]


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("?", "?"),
    ],
)
def test_who_has_an_address(address: str, source: str) -> None:
    assert source_of(address) == source
