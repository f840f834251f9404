"""Counters of the revive log."""

from __future__ import annotations

from gantrymq.broker.pop.revive_counts import MAX_KEYS, ReviveCounts
from gantrymq.protocol.bodies.pop import Ack


def ack(group: str) -> Ack:
    return Ack(0, group, "orders", 0, 0)


def test_a_counter_has_a_limited_number_of_keys() -> None:
    counts = ReviveCounts()
    for number in range(MAX_KEYS + 10):
        counts.add_written(ack(f"group-{number}"))
        counts.add_read(ack(f"group-{number}"), 1)
    counts.add_written(ack("group-0"))
    counts.add_read(ack("group-0"), 1)
    assert len(counts.written) == len(counts.read) == MAX_KEYS
    assert counts.written["group-0", "orders", "ACK"] == counts.read["group-0", "orders", "ACK", 1] == 2
