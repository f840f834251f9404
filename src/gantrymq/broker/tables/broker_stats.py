"""BrokerStats: counts events between two samples (`BrokerStatsManager`).

`admin/runtime_info.py` takes the counts with every sample. Stored messages are not counted here, because the queues
contain their number and size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from gantrymq.broker.tables.execution_times import ExecutionTimes
from gantrymq.broker.tables.transaction_counts import TransactionCounts
from gantrymq.protocol.multi_dispatch import is_light_queue
from gantrymq.protocol.topic_name import LIGHT_QUEUE_PREFIX
from gantrymq.store.get_result import GetResult

K = TypeVar("K")
V = TypeVar("V")

#: Counts by key. A key is "topic@group", unless the kind has keys in another format.
Counts = dict[str, int]


class BrokerStats:
    """Counts reads, acknowledgements, checkpoints and messages that consumers sent back.

    With `has_light_queues`, all light queues have one key, and all light groups (`LmqBrokerStatsManager`).

    Attributes:
        reads: Number of reads that returned messages.
        misses: Number of reads that returned no message.
        longest_read_ms: Duration of the slowest read, in ms.
        dead_letters: (topic, group) -> dead-letter messages since the start.
        transactions: Half messages by topic.
        topic_creation: Durations of the requests that create or change topics.
        group_creation: Durations of the requests that create or change groups.
    """

    def __init__(self, *, has_light_queues: bool = False) -> None:
        self._has_light_queues = has_light_queues
        self.reads = self.misses = 0
        self.longest_read_ms = 0
        self.dead_letters: Counter[tuple[str, str]] = Counter()
        self.transactions = TransactionCounts()
        self.topic_creation = ExecutionTimes()
        self.group_creation = ExecutionTimes()
        #: (topic, group) -> reads, messages, bytes and ms.
        self._reads: dict[tuple[str, str], list[int]] = {}
        #: Kind -> (topic, group) -> count.
        self._counts: dict[str, dict[tuple[str, str], int]] = {}
        #: The events of the current sample that `take` has not returned yet.
        self._sampled_reads: dict[tuple[str, str], list[int]] = {}
        self._sampled: dict[str, dict[tuple[str, str], int]] = {}

    def read(self, topic: str, group: str, result: GetResult, seconds: float) -> None:
        """Counts one read of a queue by a group."""
        # On the hot path of pulls, where most reads take less than 1 ms.
        ms = 0
        if seconds >= 0.001:
            ms = int(seconds * 1000)
            self.longest_read_ms = max(self.longest_read_ms, ms)
        messages = result.message_count
        if not messages:
            self.misses += 1
            return
        self.reads += 1
        counts = self._reads.get((topic, group))
        if counts is None:
            counts = self._reads.setdefault(self._names(topic, group), [0, 0, 0, 0])
        counts[0] += 1
        counts[1] += messages
        counts[2] += result.size
        if ms:
            counts[3] += ms

    def acknowledged(self, topic: str, group: str, count: int) -> None:
        """Counts acknowledged messages of pops, and messages whose invisible duration was changed."""
        self._add("GROUP_ACK_NUMS", topic, group, count)

    def checkpointed(self, topic: str, group: str) -> None:
        """Counts a checkpoint of a pop."""
        self._add("GROUP_CK_NUMS", topic, group, 1)

    def sent_back(self, topic: str, group: str) -> None:
        """Counts a message that a consumer has sent back. `topic` is the message's original topic."""
        self._add("SNDBCK_PUT_NUMS", topic, group, 1)

    def sent_to_dlq(self, topic: str, group: str) -> None:
        """Counts a message that a consumer has sent back after the message's last retry."""
        self._add(_TO_DLQ, topic, group, 1)

    def dead_letter(self, topic: str, group: str) -> None:
        """Counts a message of `topic` that is stored in the dead-letter topic of `group`."""
        self.dead_letters[topic, group] += 1

    def _add(self, kind: str, topic: str, group: str, count: int) -> None:
        counts = self._counts.get(kind)
        if counts is None:
            counts = self._counts[kind] = {}
        names = self._names(topic, group)
        counts[names] = counts.get(names, 0) + count

    def _names(self, topic: str, group: str) -> tuple[str, str]:
        if not self._has_light_queues:
            return topic, group
        return (
            LIGHT_QUEUE_PREFIX if is_light_queue(topic) else topic,
            LIGHT_QUEUE_PREFIX if is_light_queue(group) else group,
        )

    def forget(self, is_deleted: Callable[[str, str], bool]) -> None:
        """Removes the counts of each topic and group for which `is_deleted(topic, group)` returns true."""
        for reads in (self._reads, self._sampled_reads):
            _remove(reads, is_deleted)
        for table in (*self._counts.values(), *self._sampled.values()):
            _remove(table, is_deleted)

    def begin_sample(self) -> None:
        """Starts a sample of the events so far. `take` returns its parts."""
        self._sampled_reads, self._reads = self._reads, {}
        self._sampled, self._counts = self._counts, {}

    def take(self, limit: int) -> dict[str, Counts]:
        """Returns up to `limit` keys of each kind of the sample; empty at the end. GROUP_GET_TIMES counts reads."""
        taken: dict[str, Counts] = {
            kind: {_key(kind, topic, group): count for (topic, group), count in _popped(table, limit)}
            for kind, table in self._sampled.items()
            if table
        }
        if self._sampled_reads:
            reads = _popped(self._sampled_reads, limit)
            for column, kind in enumerate(_READ_KINDS):
                taken[kind] = {_key(kind, topic, group): counts[column] for (topic, group), counts in reads}
        return taken


#: The kinds of one read, in the order of the counts.
_READ_KINDS = ("GROUP_GET_TIMES", "GROUP_GET_NUMS", "GROUP_GET_SIZE", "GROUP_GET_LATENCY")
_TO_DLQ = "SNDBCK2DLQ_TIMES"


def _key(kind: str, topic: str, group: str) -> str:
    # The first part is Java's commercial owner, which open-source clients do not send.
    return f"null@{topic}@{group}@SEND_BACK_TO_DLQ" if kind == _TO_DLQ else f"{topic}@{group}"


def _remove(table: dict[tuple[str, str], V], is_deleted: Callable[[str, str], bool]) -> None:
    for key in [key for key in table if is_deleted(*key)]:
        del table[key]


def _popped(table: dict[K, V], limit: int) -> list[tuple[K, V]]:
    return [table.popitem() for _ in range(min(limit, len(table)))]
