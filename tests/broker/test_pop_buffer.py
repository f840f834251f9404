"""The checkpoints in memory, tested as plain tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from broker_support import config
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.background.jobs import Jobs
from gantrymq.broker.pop.buffer import PopBuffer
from gantrymq.broker.tables.consumer_offsets import ConsumerOffsets
from gantrymq.broker.tables.persistence import TablePersistence
from gantrymq.errors import StoreBusy, StoreFull
from gantrymq.protocol.bodies.pop import Checkpoint, PopKey

QUEUE = ("t", "g", 0)


def checkpoint(start: int, count: int = 1, *, pop_time: int = 0, invisible_time: int = 60_000) -> Checkpoint:
    return Checkpoint(
        start_offset=start,
        pop_time=pop_time,
        invisible_time=invisible_time,
        count=count,
        queue_id=0,
        topic="t",
        group="g",
        diffs=list(range(count)),
        broker_name="b",
    )


class Stored:
    """The checkpoints written to the log. If `full` is set, the log refuses them."""

    def __init__(self) -> None:
        self.checkpoints: list[Checkpoint] = []
        self.full = False

    def __call__(self, checkpoint: Checkpoint, revive_queue_id: int) -> None:
        if self.full:
            raise StoreFull("no room")
        self.checkpoints.append(checkpoint)


def buffer(max_size: int = 100) -> tuple[PopBuffer, Stored, ConsumerOffsets]:
    persistence = TablePersistence(config(Path("unused")), Jobs())
    stored, offsets = Stored(), ConsumerOffsets(Path("unused"), persistence=persistence)
    offsets.commit("g", "t", 0, 0)
    return PopBuffer(offsets, stored, stay_ms=10_000, leave_before_ms=3_000, max_size=max_size), stored, offsets


def test_a_pop_leaves_when_it_stayed_long_enough_or_is_about_to_come_back() -> None:
    pops, stored, offsets = buffer()
    pops.add(checkpoint(0, 3), 0, 3, 0)
    pops.add(checkpoint(3, invisible_time=9000), 0, 4, 0)
    assert pops.ack(checkpoint(0, 3).key, [1, 77])
    pops.expire(5999)
    assert (stored.checkpoints, pops.next_due) == ([], 6000)
    pops.expire(6000)
    assert [one.start_offset for one in stored.checkpoints] == [3]
    assert offsets.query("g", "t", 0) == 0
    pops.expire(10_000)
    assert [(one.start_offset, one.bit_map) for one in stored.checkpoints] == [(3, 0), (0, 0b10)]
    assert offsets.query("g", "t", 0) == 4
    assert not pops.ack(checkpoint(0, 3).key, [0])
    assert (pops.next_offset(QUEUE), pops.next_due, len(pops)) == (None, None, 0)


def test_the_bit_map_of_32_messages_is_javas_int() -> None:
    pops, stored, _ = buffer()
    pops.add(checkpoint(0, 32), 0, 32, 0)
    pops.ack(checkpoint(0, 32).key, [31])
    pops.expire(10_000)
    assert stored.checkpoints[0].bit_map == -(2**31)


@pytest.mark.parametrize("max_size", [0, 100])
def test_what_comes_back_too_soon_or_has_no_room_is_stored_at_once(max_size: int) -> None:
    pops, stored, offsets = buffer(max_size)
    pops.add(checkpoint(0, invisible_time=60_000 if max_size == 0 else 4000), 0, 1, 0)
    assert len(stored.checkpoints) == 1
    assert offsets.query("g", "t", 0) == 1


def test_nothing_is_handed_out_that_cannot_be_stored() -> None:
    pops, stored, offsets = buffer()
    pops.add(checkpoint(0), 0, 1, 0)
    stored.full = True
    with pytest.raises(StoreFull):
        pops.add(checkpoint(1, invisible_time=100), 0, 2, 0)
    assert pops.next_offset(QUEUE) == 1
    with pytest.raises(StoreFull):
        pops.expire(10_000)
    assert (len(pops), offsets.query("g", "t", 0)) == (1, 0)
    stored.full = False
    pops.expire(10_000)
    assert (len(pops), offsets.query("g", "t", 0)) == (0, 1)


def test_anothers_commit_wins() -> None:
    pops, _, offsets = buffer()
    pops.add(checkpoint(0), 0, 1, 0)
    pops.add(checkpoint(1), 0, 2, 0)
    offsets.commit("g", "t", 0, 50)
    assert pops.next_offset(QUEUE) is None
    pops.add(checkpoint(50), 0, 51, 0)
    for start in (0, 1):
        pops.ack(checkpoint(start).key, [start])
    assert offsets.query("g", "t", 0) == 50
    pops.ack(checkpoint(50).key, [50])
    assert offsets.query("g", "t", 0) == 51


@given(st.lists(st.tuples(st.sampled_from(["pop", "skip", "ack", "expire"]), st.integers(0, 40)), max_size=80))
def test_the_offset_never_passes_what_is_neither_acknowledged_nor_stored(steps: list[tuple[str, int]]) -> None:
    pops, stored, offsets = buffer()
    now = end = 0
    out: set[int] = set()
    keys: list[PopKey] = []
    for step, number in steps:
        if step == "pop":
            one = checkpoint(end, 1 + number % 3, pop_time=now)
            pops.add(one, 0, end + 1 + number % 3, now)
            keys.append(one.key)
            out |= set(range(end, end + 1 + number % 3))
            end += 1 + number % 3
        elif step == "skip":
            pops.skip(QUEUE, end + number)
            end += number
        elif step == "ack":
            for key in keys:
                if key[3] <= number and pops.ack(key, [key[3]]):
                    out.discard(key[3])
        else:
            now += number * 1000
            pops.expire(now)
        in_log = {offset for one in stored.checkpoints for offset in one.offsets}
        committed = offsets.query("g", "t", 0)
        assert committed is not None
        assert committed <= end
        assert committed <= min(out - in_log, default=end)
        assert (pops.next_offset(QUEUE) or committed) == end


def test_many_leave_in_slices() -> None:
    pops, stored, offsets = buffer()
    for start in range(5):
        pops.add(checkpoint(start), 0, start + 1, 0)
    assert pops.expire(10_000, 2)
    assert (len(stored.checkpoints), offsets.query("g", "t", 0)) == (2, 2)
    assert pops.expire(10_000, 2)
    assert not pops.expire(10_000, 2)
    assert offsets.query("g", "t", 0) == 5


def test_what_is_passed_over_moves_no_offset_over_what_is_out() -> None:
    pops, _, offsets = buffer()
    pops.add(checkpoint(0, 3), 0, 3, 0)
    pops.skip(QUEUE, 100)
    assert (pops.next_offset(QUEUE), offsets.query("g", "t", 0)) == (100, 0)
    pops.ack(checkpoint(0, 3).key, [0, 1, 2])
    assert offsets.query("g", "t", 0) == 100


def test_what_is_passed_over_takes_one_place() -> None:
    pops, _, offsets = buffer()
    pops.add(checkpoint(0), 0, 1, 0)
    for offset in range(2, 1000):
        pops.skip(QUEUE, offset)
    pops.add(checkpoint(999), 0, 1000, 0)
    pops.skip(QUEUE, 1500)
    assert pops.in_flight_offsets == 4
    pops.ack(checkpoint(0).key, [0])
    assert offsets.query("g", "t", 0) == 999
    pops.ack(checkpoint(999).key, [999])
    assert (offsets.query("g", "t", 0), pops.in_flight_offsets) == (1500, 0)


def test_all_stays_until_it_comes_back_where_no_log_can_be_written() -> None:
    pops, stored, offsets = buffer(max_size=3)
    pops.keep_all(True)
    pops.add(checkpoint(0, 2, invisible_time=500), 0, 2, 0)
    pops.add(checkpoint(2, invisible_time=20_000), 0, 3, 0)
    assert not pops.expire(499)
    assert (stored.checkpoints, offsets.query("g", "t", 0)) == ([], 0)
    assert pops.ack(checkpoint(0, 2).key, [0])
    # If a redelivery fails, it is tried again, with the acknowledgements that arrived meanwhile.
    stored.full = True
    with pytest.raises(StoreFull):
        pops.expire(500)
    stored.full = False
    pops.expire(10_001)
    assert [(each.start_offset, each.bit_map) for each in stored.checkpoints] == [(0, 1)]
    assert offsets.query("g", "t", 0) == 2
    for start in (3, 4):
        pops.add(checkpoint(start), 0, start + 1, 0)
    with pytest.raises(StoreBusy):
        pops.add(checkpoint(5), 0, 6, 0)
    assert pops.next_offset(QUEUE) == 5
    pops.forget()
    assert (len(pops), pops.in_flight_offsets, pops.next_due, pops.next_offset(QUEUE)) == (0, 0, None, None)


def test_a_message_that_is_to_come_back_at_another_time_holds_the_offset() -> None:
    pops, stored, offsets = buffer()
    pops.keep_all(True)
    pops.add(checkpoint(0), 0, 1, 0)
    pops.add(checkpoint(1, 2), 0, 3, 0)
    later = checkpoint(2, pop_time=100, invisible_time=90_000)
    assert pops.prolong(checkpoint(1, 2).key, later, 0)
    assert not pops.prolong(checkpoint(7).key, checkpoint(7, pop_time=100), 0)
    assert pops.ack(checkpoint(0).key, [0])
    assert pops.ack(checkpoint(1, 2).key, [1])
    assert offsets.query("g", "t", 0) == 1
    assert pops.ack(later.key, [2])
    assert (offsets.query("g", "t", 0), len(pops), stored.checkpoints) == (3, 0, [])
