from __future__ import annotations

from typing import Any

import pytest
from facts import FACTS

from gantrymq.client.producing.latency_fault import DETECT_INTERVAL_MS, LatencyFaults, not_available_duration
from gantrymq.client.producing.publish_info import TopicPublishInfo
from gantrymq.protocol.message import MessageQueue

QUEUES = [MessageQueue("topic", broker, n) for broker in "abc" for n in range(2)]


@pytest.mark.parametrize(("latency_ms", "duration_ms"), FACTS["not_available_duration"])
def test_durations_are_those_of_java(latency_ms: int, duration_ms: int) -> None:
    assert not_available_duration(latency_ms) == duration_ms


def test_the_table_is_that_of_java() -> None:
    """The same sends in the same order give the same available, reachable and selected brokers as in Java."""
    faults, info = LatencyFaults(), TopicPublishInfo(QUEUES)
    for step in FACTS["faults"]:
        broker, latency_ms, isolate, reachable = step["update"]
        faults.update(broker, latency_ms, 1000, isolate=isolate, reachable=reachable)
        state: dict[str, Any] = {
            "update": step["update"],
            "available": {name: faults.is_available(name, 1000) for name in "abc"},
            "reachable": {name: faults.is_reachable(name) for name in "abc"},
            "selected": {
                last: sorted({faults.select(info, last or None, 1000).broker_name for _ in range(300)})
                for last in ("", "a", "b", "c")
            },
        }
        assert state == step


def test_a_broker_is_available_again_when_its_time_is_over() -> None:
    faults = LatencyFaults()
    faults.update("a", 600, 1000)
    assert not faults.is_available("a", 2999)
    assert faults.is_available("a", 3000)
    # A fast send does not shorten an earlier penalty.
    faults.update("a", 5000, 4000)
    faults.update("a", 1, 4001)
    assert not faults.is_available("a", 13_999)
    assert faults.is_available("a", 14_000)


def test_a_detector_finds_brokers_again() -> None:
    faults = LatencyFaults()
    faults.update("a", 1, 0, isolate=True, reachable=False)
    faults.update("b", 1, 0)
    assert faults.due(0) == ["a", "b"]
    assert faults.due(DETECT_INTERVAL_MS - 1) == []
    assert faults.due(DETECT_INTERVAL_MS) == ["a", "b"]
    faults.detected("a")
    assert faults.is_reachable("a")
    faults.forget("a")
    faults.detected("a")
    assert faults.due(10 * DETECT_INTERVAL_MS) == ["b"]
