"""The order in which `FairQueue` serves the sources of its items."""

from __future__ import annotations

import random

import pytest

from gantrymq.fair_queue import FairQueue


def queue_of(*items: tuple[str, int]) -> FairQueue[str, int]:
    queue: FairQueue[str, int] = FairQueue()
    for source, item in items:
        queue.add(source, item)
    return queue


def taken(queue: FairQueue[str, int]) -> list[int]:
    return [queue.take()[1] for _ in range(len(queue))]


def test_sources_take_turns() -> None:
    assert taken(queue_of(("a", 0), ("a", 1), ("a", 2), ("b", 3), ("c", 4), ("c", 5))) == [0, 3, 4, 1, 5, 2]


def test_a_source_with_one_item_waits_for_one_item_of_each_other_source() -> None:
    queue = queue_of(*(("busy", number) for number in range(100)), ("other", 100))
    assert queue.take() == ("busy", 0)
    queue.add("small", 101)
    assert taken(queue)[:3] == [100, 1, 101]


def test_an_item_that_is_put_back_comes_before_the_others_of_its_source() -> None:
    queue = queue_of(("a", 0), ("a", 1), ("b", 2))
    queue.put_back(*queue.take())
    assert taken(queue) == [2, 0, 1]


def test_the_last_item_of_a_source_is_put_back() -> None:
    queue = queue_of(("a", 0), ("b", 1))
    queue.put_back(*queue.take())
    assert "a" in queue
    assert taken(queue) == [1, 0]


def test_counts() -> None:
    queue = queue_of(("a", 0), ("a", 1), ("b", 2))
    assert (len(queue), queue.source_count, queue.count_of("a"), queue.count_of("c")) == (3, 2, 2, 0)
    assert queue.take_of("a") == 0
    assert (len(queue), queue.source_count, queue.count_of("a")) == (2, 2, 1)
    queue.take_of("a")
    assert "a" not in queue
    with pytest.raises(KeyError):
        queue.take_of("a")
    assert taken(queue) == [2]
    assert not queue
    with pytest.raises(IndexError):
        queue.take()


def test_the_items_of_a_source_keep_their_order() -> None:
    draw = random.Random(7)
    queue: FairQueue[str, int] = FairQueue()
    served: list[tuple[str, int]] = []
    for number in range(2000):
        queue.add(draw.choice("abcdefgh"), number)
        if draw.random() < 0.5:
            source, item = queue.take()
            if draw.random() < 0.3:
                queue.put_back(source, item)
            else:
                served.append((source, item))
    served += [queue.take() for _ in range(len(queue))]
    assert sorted(item for _, item in served) == list(range(2000))
    for source in "abcdefgh":
        items = [item for of, item in served if of == source]
        assert items == sorted(items)
