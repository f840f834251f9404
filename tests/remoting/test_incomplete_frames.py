"""Incomplete frames: the rules for reading, pausing and dropping them.

The first tests use a simulated clock, and the last ones use sockets.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from constants import change_constant
from hypothesis import given
from hypothesis import strategies as st
from remoting_support import ECHO, address, calling, frame, peer_of, serving
from wait_until import until

from gantrymq.limits import INCOMPLETE_FRAMES_BYTES as LIMIT_OF_SERVER
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.incomplete_frames import GIVEN_UP_S, LEAST_PACE, MOST_STALLS, SMALL, IncompleteFrames

KIB = 1024
MIB = 1024 * KIB
#: Three quarters of it are for frames that are being read.
LIMIT = 16 * MIB
READ_SIZE = 256 * KIB


class Peer:
    """A connection that sends a frame in several reads while it is not paused."""

    def __init__(self, world: World, name: str) -> None:
        self.address = name
        self.world = world
        self.is_read = True
        self.is_open = True
        self._number = 0
        self.length = 0
        self.held = 0

    def __repr__(self) -> str:
        return self.address

    def begin(self, length: int, size: int = READ_SIZE) -> Peer:
        """Sends the first part of a frame."""
        self._number += 1
        self.length, self.held = length, 0
        self.send(size)
        return self

    def send(self, size: int = READ_SIZE) -> bool:
        """Sends one more part, and returns true if the frame is complete."""
        assert self.is_open
        assert self.is_read
        self.held += size
        if self.held >= self.length:
            self.length = self.held = 0
        self.world.frames.received(self, self._number, self.length, self.held)
        return not self.length

    def send_rest(self) -> None:
        while not self.send():
            pass

    def stop_reading(self) -> None:
        self.is_read = False

    def go_on_reading(self) -> None:
        self.is_read = True

    def abort(self) -> None:
        self.is_open = False
        self.held = 0


class World:
    def __init__(self, limit: int = LIMIT) -> None:
        self.now = 1000.0
        self.frames = IncompleteFrames(limit=limit, clock=lambda: self.now)
        self._peers = 0

    def peer(self) -> Peer:
        self._peers += 1
        return Peer(self, f"peer {self._peers}")

    def pass_seconds(self, seconds: float) -> None:
        """Runs the periodic checks for this number of seconds."""
        for _ in range(int(seconds)):
            self.now += 1.0
            self.frames.look()


@pytest.fixture
def world() -> World:
    return World()


def test_frames_that_have_room_are_read(world: World) -> None:
    peers = [world.peer().begin(4 * MIB) for _ in range(3)]
    assert world.frames.held == 3 * READ_SIZE
    for peer in peers:
        peer.send_rest()
    assert world.frames.held == 0
    assert all(peer not in world.frames for peer in peers)


def test_a_frame_without_room_waits_until_another_has_arrived(world: World) -> None:
    first, second, third = (world.peer().begin(6 * MIB) for _ in range(3))
    assert (first.is_read, second.is_read, third.is_read) == (True, True, False)
    world.frames.look()
    assert not third.is_read
    first.send_rest()
    world.frames.look()
    assert third.is_read
    third.send_rest()
    second.send_rest()
    assert world.frames.held == 0
    assert world.frames.look() is None


def test_small_frames_are_always_read(world: World) -> None:
    large = [world.peer().begin(12 * MIB) for _ in range(5)]
    small = [world.peer().begin(SMALL - 1, 100) for _ in range(50)]
    assert not any(peer.is_read for peer in large[1:])
    assert all(peer.is_read for peer in small)


def test_the_shortest_and_the_oldest_go_on_in_turn(world: World) -> None:
    busy = world.peer().begin(12 * MIB)
    waiting = []
    for length in (7, 5, 2, 3):
        waiting.append(world.peer().begin(length * MIB))
        world.now += 0.1
    busy.send_rest()
    world.frames.look()
    # The shortest frame would be next again, but it does not fit.
    assert [peer.is_read for peer in waiting] == [True, False, True, False]
    waiting[0].send_rest()
    world.frames.look()
    assert [peer.is_read for peer in waiting] == [True, True, True, True]


def test_a_stream_of_short_ones_keeps_no_long_one_waiting_for_ever(world: World) -> None:
    busy = [world.peer().begin(4 * MIB) for _ in range(3)]
    long = world.peer().begin(10 * MIB)
    began = world.now
    while not long.is_read:
        assert world.now < began + 10
        # The space of each completed frame goes to the next short one, and the long one does not fit.
        for _ in range(3):
            busy.append(world.peer().begin(4 * MIB))
            if busy[0].is_read:
                busy.pop(0).send_rest()
            world.frames.look()
        world.pass_seconds(1)


def test_a_frame_that_does_not_go_on_loses_its_place_when_others_wait(world: World) -> None:
    stalled = world.peer().begin(12 * MIB)
    world.pass_seconds(1000)
    assert stalled.is_read
    waiting = world.peer().begin(5 * MIB)
    world.frames.look()
    assert (stalled.is_read, waiting.is_read) == (False, True)
    waiting.send_rest()
    world.frames.look()
    # It is read again and continues.
    assert stalled.is_read
    stalled.send_rest()
    assert world.frames.held == 0


def test_a_frame_that_never_goes_on_is_given_up_when_others_wait(world: World) -> None:
    stalled = [world.peer().begin(12 * MIB) for _ in range(2)]
    seconds = 0
    while all(peer.is_open for peer in stalled):
        world.pass_seconds(1)
        seconds += 1
    assert GIVEN_UP_S <= seconds <= 3 * MOST_STALLS


def test_what_stalled_frames_hold_is_given_up_for_one_that_goes_on(world: World) -> None:
    """Stalled frames are dropped in favour of one that makes progress, even if they lack only their last bytes."""
    stalled = [world.peer().begin(4 * MIB) for _ in range(3)]
    for peer in stalled:
        peer.send(4 * MIB - READ_SIZE - 1)
    honest = world.peer().begin(3 * MIB)
    world.pass_seconds(2)
    assert honest.is_read
    # Only as many of them are dropped as needed.
    assert sum(not peer.is_open for peer in stalled) == 1
    honest.send_rest()


def test_a_slow_frame_that_goes_on_arrives(world: World) -> None:
    slow = world.peer().begin(10 * MIB, LEAST_PACE)
    waiting = world.peer().begin(5 * MIB)
    seconds = 0
    while not slow.send(LEAST_PACE):
        assert slow.is_open
        world.pass_seconds(1)
        seconds += 1
    world.frames.look()
    assert waiting.is_read
    assert seconds > 100


def test_everybody_s_turn_comes(world: World) -> None:
    """Sixty peers never complete their frames, and one honest peer would."""
    hostile = [world.peer().begin(12 * MIB, 1000) for _ in range(60)]

    def pass_second() -> None:
        world.pass_seconds(1)
        # The dropped peers reconnect at once.
        hostile[:] = [peer if peer.is_open else world.peer().begin(12 * MIB, 1000) for peer in hostile]

    for _ in range(60):
        pass_second()
    honest = world.peer().begin(4 * MIB)
    began = world.now
    while not honest.is_read:
        pass_second()
        assert world.now - began <= GIVEN_UP_S
    honest.send_rest()


def test_what_is_held_is_never_more_than_the_limit(world: World) -> None:
    large = world.peer().begin(5 * MIB)
    waiting = [world.peer().begin(9 * MIB) for _ in range(200)]
    assert world.frames.held <= LIMIT
    assert sum(peer.held for peer in [large, *waiting]) == world.frames.held
    # Paused peers are dropped first.
    assert large.is_open
    assert 0 < sum(not peer.is_open for peer in waiting) < 200
    # Then the large frames are dropped, and at last the small ones, largest first.
    small = [world.peer().begin(SMALL - 1, 50 * KIB) for _ in range(100)]
    tiny = [world.peer().begin(SMALL - 1, 100) for _ in range(100)]
    small += [world.peer().begin(SMALL - 1, 50 * KIB) for _ in range(400)]
    assert world.frames.held <= LIMIT
    assert not any(peer.is_open for peer in [large, *waiting])
    assert sum(not peer.is_open for peer in small) > 50
    assert all(peer.is_open for peer in tiny)


def test_a_peer_that_leaves_makes_room(world: World) -> None:
    busy = world.peer().begin(10 * MIB)
    waiting, other = world.peer().begin(8 * MIB), world.peer().begin(9 * MIB)
    world.frames.forget(busy)
    world.frames.look()
    assert waiting.is_read
    world.frames.forget(other)
    world.frames.forget(other)
    world.frames.forget(waiting)
    assert world.frames.held == 0
    assert world.frames.look() is None


@given(
    st.lists(
        st.tuples(
            st.integers(0, 9), st.sampled_from(["begin", "send", "leave", "look"]), st.integers(1, 20), st.booleans()
        ),
        max_size=200,
    )
)
def test_the_sums_are_right_whatever_happens(steps: list[tuple[int, str, int, bool]]) -> None:
    world = World(limit=1 * MIB)
    peers = [world.peer() for _ in range(10)]
    for index, step, number, is_small in steps:
        peer = peers[index]
        if step == "look":
            world.pass_seconds(number)
        elif step == "leave":
            world.frames.forget(peer)
            peers[index] = world.peer()
        elif not peer.is_open:
            peers[index] = world.peer()
        elif peer.is_read:
            length = SMALL - 1 if is_small else SMALL * number
            if step == "begin":
                peer.begin(length, 10 * KIB * number)
            else:
                peer.send(10 * KIB * number)
        open_peers = [peer for peer in peers if peer in world.frames]
        assert world.frames.held == sum(peer.held for peer in open_peers) <= 1 * MIB
        read = sum(peer.length for peer in open_peers if peer.is_read and peer.length >= SMALL)
        others = sum(peer.held for peer in open_peers if not peer.is_read or peer.length < SMALL)
        assert world.frames.counted == read + others
    for peer in peers:
        world.frames.forget(peer)
    assert (world.frames.held, world.frames.counted, world.frames.look()) == (0, 0, None)


# -- with sockets ---------------------------------------------------------------------------------------------------


async def test_sixty_unfinished_frames_and_a_client_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    change_constant(monkeypatch, "incomplete_frames.PACE_S", 0.5)
    async with serving() as server, AsyncExitStack() as stack:
        frames = server.incomplete_frames
        # Each peer sends a frame of 15 MiB except its last byte.
        begun = memoryview(frame(ECHO, bytes(15 * MIB)))[:-1]
        peers = [await stack.enter_async_context(peer_of(server)) for _ in range(60)]
        sending = [asyncio.ensure_future(peer.send(bytes(begun))) for peer in peers]
        try:
            async with calling() as client:
                while frames.held < LIMIT_OF_SERVER // 2:
                    answer = await client.call(address(server), RemotingCommand.request(ECHO, body=b"small"))
                    assert answer.body == b"small"
                # The frame that was read lacks only its last byte. After that byte, the next one is read.
                whole = [peer for peer, sent in zip(peers, sending, strict=True) if sent.done()]
                for peer in whole:
                    await peer.send(bytes(frame(ECHO, bytes(15 * MIB))[-1:]))
                    assert len((await peer.commands(1))[0].body) == 15 * MIB
                await until(lambda: sum(sent.done() for sent in sending) > len(whole))
                assert frames.held <= LIMIT_OF_SERVER
                # A long message that is shorter than theirs is read next, although they stall.
                answer = await client.call(address(server), RemotingCommand.request(ECHO, body=bytes(4 * MIB)), 20_000)
                assert len(answer.body) == 4 * MIB
        finally:
            for task in sending:
                task.cancel()
            await asyncio.gather(*sending, return_exceptions=True)
    await until(lambda: not server.connections)
    assert frames.held == 0
