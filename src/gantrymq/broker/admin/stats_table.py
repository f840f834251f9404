"""StatsTable: the statistics of VIEW_BROKER_STATS_DATA, by kind and key (`BrokerStatsManager`, `StatsItemSet`).

The table omits Java's kinds for each queue (QUEUE_PUT_NUMS ...), as Java does with `enableDetailStat=false`. It also
omits Java's kinds for billing (COMMERCIAL_SEND_TIMES ...).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice

from gantrymq.broker.admin.stored_sizes import StoredSizes
from gantrymq.broker.admin.traffic import DAY, HOUR, MINUTE, Traffic
from gantrymq.broker.tables import BrokerStats
from gantrymq.protocol.bodies.stats import BrokerStatsData, BrokerStatsItem
from gantrymq.protocol.topic_name import is_system_topic

#: Kinds for the whole broker. Their key is the cluster. Each one adds up the events of other kinds.
_OF_BROKER = {
    "BROKER_PUT_NUMS": "TOPIC_PUT_NUMS",
    "BROKER_GET_NUMS": "GROUP_GET_NUMS",
    "BROKER_ACK_NUMS": "GROUP_ACK_NUMS",
    "BROKER_CK_NUMS": "GROUP_CK_NUMS",
}
#: The same kinds without system topics.
_WITHOUT_SYSTEM_TOPIC = {
    "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC": "TOPIC_PUT_NUMS",
    "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC": "GROUP_GET_NUMS",
}
#: Kind that adds up values -> kind that counts the events. Java counts requests. This broker counts stored messages.
_CALLS = {
    "TOPIC_PUT_SIZE": "TOPIC_PUT_NUMS",
    "GROUP_GET_NUMS": "GROUP_GET_TIMES",
    "GROUP_GET_SIZE": "GROUP_GET_TIMES",
    "GROUP_GET_LATENCY": "GROUP_GET_TIMES",
}
#: The kinds whose key is the cluster.
_OF_CLUSTER = _OF_BROKER.keys() | _WITHOUT_SYSTEM_TOPIC.keys()
#: Maximum number of keys of each kind that one step adds.
_AT_ONCE = 20
#: Java has no such kind.
_INTERNAL = "GROUP_GET_TIMES"


class StatsTable:
    """Keeps the events of the last minute, hour and day. The times are in seconds."""

    def __init__(self, stats: BrokerStats, sizes: StoredSizes, cluster: str, now: float) -> None:
        self._stats = stats
        self._sizes = sizes
        self._cluster = cluster
        #: Time of the last sample. A new kind begins there.
        self._start = now
        self._kinds: dict[str, Traffic] = {}
        self._puts = self._kinds["TOPIC_PUT_NUMS"] = Traffic(now)

    def begin(self, put_totals: Iterable[tuple[str, int]]) -> None:
        """Excludes the messages that the store had before the broker started."""
        self._puts = self._kinds["TOPIC_PUT_NUMS"] = Traffic(self._start, put_totals)

    def of(self, kind: str) -> Traffic:
        """Returns the events of a kind."""
        traffic = self._kinds.get(kind)
        if traffic is None:
            traffic = self._kinds[kind] = Traffic(self._start)
        return traffic

    def sample(self, put_totals: Iterable[tuple[str, int]], now: float) -> Iterator[None]:
        """Adds the events since the last sample, in steps of less than 0.5 ms."""
        self._stats.begin_sample()
        while counts := self._stats.take(_AT_ONCE):
            for kind, by_key in counts.items():
                self.of(kind).add(by_key)
            self._add_to_cluster(counts)
            yield
        totals, topics = iter(put_totals), set[str]()
        while part := list(islice(totals, _AT_ONCE)):
            puts = self._puts.add_totals(part)
            topics.update(topic for topic, _ in part)
            self._add_to_cluster({"TOPIC_PUT_NUMS": puts})
            self._sizes.add(puts)
            yield
        self._puts.retain(topics)
        self.add_sizes()
        for traffic in self._kinds.values():
            # This also runs without new events, so that old events leave the time spans.
            traffic.advance(now)
        self._start = now

    def _add_to_cluster(self, counts: dict[str, dict[str, int]]) -> None:
        for kind, source in _OF_BROKER.items():
            if by_key := counts.get(source, {}):
                self.of(kind).add({self._cluster: sum(by_key.values())})
        for kind, source in _WITHOUT_SYSTEM_TOPIC.items():
            by_key = counts.get(source, {})
            if count := sum(n for key, n in by_key.items() if not is_system_topic(key.partition("@")[0])):
                self.of(kind).add({self._cluster: count})

    def add_sizes(self) -> bool:
        """Adds a part of the stored bytes. Returns whether other parts follow."""
        if self._sizes.is_behind:
            self.of("TOPIC_PUT_SIZE").add(self._sizes.take())
        return self._sizes.is_behind

    def forget_topics(self, topics: Collection[str]) -> None:
        """Removes the statistics of deleted topics."""
        self._forget(lambda topic, group: topic in topics)

    def forget_group(self, name: str) -> None:
        """Removes the statistics of a deleted group."""
        self._forget(lambda topic, group: group == name)

    def _forget(self, is_deleted: Callable[[str, str | None], bool]) -> None:
        self._stats.forget(is_deleted)
        for kind, traffic in self._kinds.items():
            if kind not in _OF_CLUSTER:
                traffic.forget(lambda key: is_deleted(*_topic_and_group(key)))

    def data(self, kind: str, key: str, now: float) -> BrokerStatsData | None:
        """Returns the statistics of a key; None if no event with this key occurred."""
        traffic = self._kinds.get(kind)
        if traffic is None or kind == _INTERNAL or key not in traffic:
            return None
        minute, hour, day = (self._item(traffic, kind, key, span, now) for span in (MINUTE, HOUR, DAY))
        return BrokerStatsData(minute, hour, day)

    def _item(self, traffic: Traffic, kind: str, key: str, span: float, now: float) -> BrokerStatsItem:
        total, tps = traffic.recent(key, span, now)
        if kind in _OF_CLUSTER:
            # Java does not count calls of these kinds.
            calls = 0
        else:
            calls = self.of(_CALLS[kind]).recent(key, span, now).sum if kind in _CALLS else total
        return BrokerStatsItem(total, tps, total / calls if calls else 0.0)


def _topic_and_group(key: str) -> tuple[str, str | None]:
    """Splits the key `topic`, `topic@group` or `null@topic@group@SEND_BACK_TO_DLQ`."""
    parts = key.split("@")
    if len(parts) == 1:
        return key, None
    return (parts[1], parts[2]) if len(parts) == 4 else (parts[0], parts[1])
