"""The order in which the wait queue for preallocated files is served."""

from __future__ import annotations

import random
from typing import Any, cast

from gantrymq.broker.append.fair_queue import FairQueue
from gantrymq.broker.append.pending_requests import PendingRequest


def held(number: int, connection: str, size: int) -> PendingRequest:
    nothing = cast(Any, None)
    return PendingRequest(number, cast(Any, connection), nothing, nothing, size, 0.0)


def line_of(*all_held: tuple[str, int]) -> FairQueue:
    line = FairQueue()
    for number, (connection, size) in enumerate(all_held):
        line.add(held(number, connection, size))
    return line


def taken(line: FairQueue) -> list[int]:
    return [line.take().number for _ in range(len(line))]


def test_who_asks_for_little_waits_for_one_other() -> None:
    assert taken(line_of(("a", 400), ("b", 300), ("c", 500), ("d", 1))) == [0, 3, 1, 2]


def test_long_ones_have_their_turns_among_short_ones() -> None:
    assert taken(line_of(("a", 1), ("b", 500), ("c", 2), ("d", 3), ("e", 4), ("f", 5))) == [0, 2, 1, 3, 4, 5]


def test_the_oldest_goes_on_first_where_a_round_begins() -> None:
    line = line_of(("a", 500), ("b", 500), ("c", 1))
    assert line.take().number == 0
    line.begin_with_oldest()
    assert taken(line) == [1, 2]


def test_those_who_come_back_stay_in_their_order() -> None:
    line = line_of(("a", 2), ("b", 500), ("b", 1))
    for each in [line.take_oldest() for _ in range(3)]:
        line.add(each)
    assert taken(line) == [0, 1, 2]


def test_each_connections_stay_in_their_order() -> None:
    draw = random.Random(7)
    line, waiting, served = FairQueue(), 0, []
    for number in range(2000):
        line.add(held(number, draw.choice("abcdefgh"), draw.choice((1, 10, 4_000_000))))
        waiting += 1
        if draw.random() < 0.5:
            served.append(line.take_oldest() if draw.random() < 0.2 else line.take())
            waiting -= 1
        assert len(line) == waiting
    served += [line.take() for _ in range(waiting)]
    assert not line
    assert sorted(each.number for each in served) == list(range(2000))
    for connection in "abcdefgh":
        numbers = [each.number for each in served if each.connection == cast(Any, connection)]
        assert numbers == sorted(numbers)
