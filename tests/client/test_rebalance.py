from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gantrymq.client.rebalance import allocate_averagely
from gantrymq.protocol.message import MessageQueue


@given(queue_count=st.integers(0, 60), consumers=st.sets(st.text(min_size=1, max_size=5), min_size=1, max_size=20))
def test_every_queue_has_one_reader_and_the_parts_are_equal(queue_count: int, consumers: set[str]) -> None:
    queues = [MessageQueue("t", "a", n) for n in range(queue_count)]
    parts = [allocate_averagely(consumer, consumers, queues) for consumer in consumers]
    assert sorted(queue for part in parts for queue in part) == queues
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_parts_are_consecutive_and_the_first_get_more() -> None:
    queues = [MessageQueue("t", "a", n) for n in range(8)]
    parts = [[queue.queue_id for queue in allocate_averagely(who, ["c", "b", "a"], queues)] for who in "abc"]
    assert parts == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_who_is_not_in_the_group_gets_nothing() -> None:
    assert allocate_averagely("x", ["a", "b"], [MessageQueue("t", "a", 0)]) == []
