"""Unread responses: the rules for closing connections whose peers do not read.

The tests use a simulated clock.
"""

from __future__ import annotations

from gantrymq.remoting.unread_responses import STALLED_S, UnreadResponses

MIB = 1024 * 1024
LIMIT = 16 * MIB


class Peer:
    """A connection with `unwritten_bytes` in its write buffer."""

    def __init__(self, world: World, name: str) -> None:
        self.address = name
        self.unwritten_bytes = 0
        self.is_open = True
        self._world = world

    def owe(self, size: int) -> Peer:
        self.unwritten_bytes += size
        self._world.answers.full(self)
        return self

    def abort(self) -> None:
        self.is_open = False
        self._world.answers.taken(self)


class World:
    def __init__(self) -> None:
        self.now = 0.0
        self.answers = UnreadResponses(limit=LIMIT, clock=lambda: self.now)
        self.answers.start()
        self.peers: list[Peer] = []

    def peer(self) -> Peer:
        self.peers.append(Peer(self, f"peer-{len(self.peers)}"))
        return self.peers[-1]

    def peers_owe(self, count: int, size: int) -> list[Peer]:
        return [self.peer().owe(size) for _ in range(count)]

    def closed(self) -> list[Peer]:
        self.answers.look()
        return [peer for peer in self.peers if not peer.is_open]


async def test_up_to_the_limit_nobody_is_closed() -> None:
    world = World()
    world.peers_owe(16, MIB)
    world.now += 60
    assert world.closed() == []
    assert world.answers.look() is None


async def test_whoever_takes_nothing_is_closed_until_the_rest_fits() -> None:
    world = World()
    old = world.peers_owe(4, 3 * MIB)
    world.now += STALLED_S / 2
    world.peers_owe(4, 3 * MIB)
    assert world.closed() == []
    assert world.answers.look() is not None
    world.now += STALLED_S / 2
    assert world.closed() == old[:3]
    assert world.answers.held == 15 * MIB
    assert world.answers.look() is None


async def test_whoever_takes_something_now_and_then_is_not() -> None:
    world = World()
    slow = world.peer().owe(8 * MIB)
    for _ in range(4):
        world.now += STALLED_S / 2
        slow.unwritten_bytes -= 1024
        world.answers.look()
    stalled = world.peer().owe(9 * MIB)
    for _ in range(2):
        world.now += STALLED_S / 2
        slow.unwritten_bytes -= 1024
        world.answers.look()
    assert world.closed() == [stalled]


async def test_with_twice_the_limit_it_is_closed_at_once_who_has_taken_nothing_for_longest() -> None:
    world = World()
    slow, *others = world.peers_owe(17, 2 * MIB)
    world.now += STALLED_S / 4
    slow.unwritten_bytes -= 1024
    assert world.closed() == others[:1]
    assert world.answers.held <= 2 * LIMIT


async def test_answers_that_come_later_count() -> None:
    """Responses to requests that were paused count as well."""
    world = World()
    peer = world.peer().owe(MIB)
    peer.owe(LIMIT)
    assert world.answers.held == 17 * MIB
    world.now += STALLED_S
    assert world.closed() == [peer]


async def test_what_is_taken_counts_no_more() -> None:
    world = World()
    first, *_ = world.peers_owe(3, 3 * MIB)
    assert world.answers.is_much
    world.answers.taken(first)
    world.answers.taken(first)
    assert world.answers.held == 6 * MIB
    assert not world.answers.is_much
