"""Tests that the counters of half messages are bounded."""

from __future__ import annotations

import pytest
from constants import change_constant

from gantrymq.broker.tables.transaction_counts import TransactionCounts
from gantrymq.protocol.sys_flag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK


def test_deleted_topics_that_get_decisions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    change_constant(monkeypatch, "transaction_counts.MAX_TOPICS", 2)
    counts = TransactionCounts()
    for topic in ("a", "b", "c"):
        counts.stored(topic)
        counts.topics_deleted([topic])
        counts.ended(TRANSACTION_COMMIT, topic, 1000)
        counts.ended(TRANSACTION_ROLLBACK, topic, 1000)
    assert counts.commits == counts.rollbacks == {"a": 1, "b": 1}
    assert list(counts.latencies_s) == ["a", "b"]
    counts.topics_deleted(["a"])
    counts.ended(TRANSACTION_COMMIT, "c", 1000)
    assert counts.commits == {"b": 1, "c": 1}
