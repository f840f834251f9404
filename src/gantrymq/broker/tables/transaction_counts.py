"""TransactionCounts: open, committed and rolled-back half messages by topic (`TransactionMetrics`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from gantrymq.metrics import Histogram, count_within
from gantrymq.protocol.sys_flag import TRANSACTION_COMMIT

#: Upper bounds of the latency of commits, in seconds (`BrokerMetricsManager`).
_LATENCY_BOUNDS_S = (5, 60, 600, 3600, 43_200, 86_400)
#: Maximum number of topics in each table: decisions about half messages of deleted topics can add more and more.
MAX_TOPICS = 65_536


class TransactionCounts:
    """Counts half messages by target topic. Each table has at most MAX_TOPICS topics.

    A deleted topic is removed. A later decision about one of its half messages adds it again.

    After a start, and after each change of role, `TransactionStates` counts the open ones in the log. A damaged half
    message stays counted until no transaction is open.

    Attributes:
        open: Half messages whose transaction is open. A topic stays with 0.
        commits: Half messages committed since the start.
        rollbacks: Half messages rolled back since the start.
        latencies_s: Time from the birth of a half message to its commit, in seconds.
    """

    def __init__(self) -> None:
        self.open: Counter[str] = Counter()
        self.commits: Counter[str] = Counter()
        self.rollbacks: Counter[str] = Counter()
        self.latencies_s: dict[str, Histogram] = {}

    def stored(self, topic: str, count: int = 1) -> None:
        """Counts new half messages."""
        count_within(MAX_TOPICS, self.open, topic, count)

    def ended(self, verdict: int, topic: str, age_ms: int, count: int = 1) -> None:
        """Counts commits or rollbacks. `age_ms`: time since the half messages were born, in ms."""
        if verdict != TRANSACTION_COMMIT:
            count_within(MAX_TOPICS, self.rollbacks, topic, count)
            return
        count_within(MAX_TOPICS, self.commits, topic, count)
        if topic not in self.commits:
            return
        latency = self.latencies_s.get(topic)
        if latency is None:
            latency = self.latencies_s[topic] = Histogram(_LATENCY_BOUNDS_S)
        # Whole seconds, as in Java.
        latency.observe(max(age_ms, 0) // 1000, count)

    def close(self, topic: str, count: int = 1) -> None:
        """Subtracts half messages that have ended, or that are not checked any more."""
        if topic in self.open:
            self.open[topic] = max(self.open[topic] - count, 0)

    def none_open(self) -> None:
        """Sets the numbers of open half messages to 0."""
        for topic in self.open:
            self.open[topic] = 0

    def topics_deleted(self, topics: Collection[str]) -> None:
        """Removes the counts of deleted topics."""
        for topic in topics:
            self.open.pop(topic, None)
            self.commits.pop(topic, None)
            self.rollbacks.pop(topic, None)
            self.latencies_s.pop(topic, None)
