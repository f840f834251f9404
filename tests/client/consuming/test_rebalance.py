from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.client.consuming.rebalance import (
    AllocateStrategy,
    allocate_averagely,
    allocate_by_circle,
    allocate_by_config,
    allocate_by_consistent_hash,
    allocate_by_machine_room,
    allocate_machine_room_nearby,
)
from gantrymq.protocol.message import MessageQueue

#: Results of Java's strategies (java/Allocations.java).
ALLOCATIONS = json.loads((Path(__file__).parents[1] / "java" / "allocations.json").read_text())


def room(name: str) -> str:
    return name.replace("-", "@").partition("@")[0]


NEARBY = allocate_machine_room_nearby(allocate_averagely, lambda queue: room(queue.broker_name), room)
STRATEGIES: dict[str, AllocateStrategy] = {
    "averagely": allocate_averagely,
    "by_circle": allocate_by_circle,
    "by_machine_room": allocate_by_machine_room({"east", "west"}),
    "machine_room_nearby": NEARBY,
    "consistent_hash": allocate_by_consistent_hash(),
    "consistent_hash_3": allocate_by_consistent_hash(3),
}


@pytest.mark.parametrize("case", ALLOCATIONS, ids=lambda case: f"{case['strategy']}-{case['queues_per_broker']}")
def test_gives_what_java_gives(case: dict[str, Any]) -> None:
    parts: dict[str, list[list[Any]]] = case["parts"]
    queues = [
        MessageQueue("topic", broker, n)
        for broker in ("west@b", "east@a", "north@c")
        for n in range(case["queues_per_broker"])
    ]
    for consumer, expected in parts.items():
        part = STRATEGIES[case["strategy"]](consumer, reversed(parts), queues)
        assert [[queue.broker_name, queue.queue_id] for queue in part] == expected


@pytest.mark.parametrize("name", ["averagely", "by_circle", "machine_room_nearby", "consistent_hash"])
@given(queue_count=st.integers(0, 60), consumers=st.sets(st.text(min_size=1, max_size=5), min_size=1, max_size=20))
def test_every_queue_has_one_reader(name: str, queue_count: int, consumers: set[str]) -> None:
    queues = [MessageQueue("t", f"room{n % 3}@a", n) for n in range(queue_count)]
    parts = [STRATEGIES[name](consumer, consumers, queues) for consumer in consumers]
    assert sorted(queue for part in parts for queue in part) == sorted(queues)
    if name in ("averagely", "by_circle"):
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_parts_are_consecutive_and_the_first_get_more() -> None:
    queues = [MessageQueue("t", "a", n) for n in range(8)]
    parts = [[queue.queue_id for queue in allocate_averagely(who, ["c", "b", "a"], queues)] for who in "abc"]
    assert parts == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_configured_queues_are_those_of_the_topic_that_exist() -> None:
    allocate = allocate_by_config([MessageQueue("t", "a", 1), MessageQueue("t", "a", 7), MessageQueue("u", "a", 0)])
    assert allocate("anyone", [], [MessageQueue("t", "a", n) for n in range(4)]) == [MessageQueue("t", "a", 1)]


@pytest.mark.parametrize("name", STRATEGIES)
def test_who_is_not_in_the_group_gets_nothing(name: str) -> None:
    assert STRATEGIES[name]("x", ["east-a", "b"], [MessageQueue("t", "east@a", 0)]) == []
