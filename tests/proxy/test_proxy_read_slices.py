"""Time that the frames of connections use in an event-loop iteration."""

from __future__ import annotations

import asyncio

from wait_until import until

from gantrymq.proxy.http2.read_slices import LEAST_SLICE_S, ROUND_S, SLICE_S, ReadSlices


class Paused:
    """A paused connection that counts its continuations."""

    def __init__(self, slices: ReadSlices, last_slice_s: float = 0.0) -> None:
        self._slices = slices
        self.last_slice_s = last_slice_s
        self.count = 0
        self.share_s = 0.0

    def go_on(self) -> None:
        self.count += 1
        self.share_s = self._slices.begin(0.0)


async def test_a_slice_is_shorter_when_the_round_is_used_up() -> None:
    slices = ReadSlices()
    assert slices.begin(1.0) == 1.0 + SLICE_S
    slices.ended(ROUND_S - SLICE_S / 2)
    assert SLICE_S / 4 < slices.begin(0.0) < SLICE_S
    slices.ended(SLICE_S)
    assert slices.is_used_up
    assert slices.begin(0.0) == LEAST_SLICE_S
    await asyncio.sleep(0)
    assert not slices.is_used_up
    assert slices.begin(0.0) == SLICE_S


async def test_connections_whose_frames_wait_share_a_round_equally() -> None:
    slices = ReadSlices()
    many = [Paused(slices) for _ in range(10)]
    for connection in many:
        slices.wait(connection, has_frames=True)
    await asyncio.sleep(0)
    assert [connection.count for connection in many] == [1] * 10
    assert {connection.share_s for connection in many} == {ROUND_S / 10}


async def test_connections_that_filled_their_buffer_are_read_in_turn() -> None:
    slices = ReadSlices()
    many = [Paused(slices, last_slice_s=ROUND_S / 3.5) for _ in range(10)]
    for connection in many:
        slices.wait(connection, has_frames=False)
    await asyncio.sleep(0)
    assert [connection.count for connection in many] == [1] * 4 + [0] * 6
    await asyncio.sleep(0)
    assert [connection.count for connection in many] == [1] * 8 + [0] * 2
    await until(lambda: all(connection.count == 1 for connection in many))
