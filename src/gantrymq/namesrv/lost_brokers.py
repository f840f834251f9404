"""LostBrokers: brokers that went without unregistering, and the topics that they had.

A route has only brokers that live, as in Java. Whoever must have all of a topic, as a batch read must, learns here that
a part of it is missing. A NameServer shows this as a namespace of its KV configuration, which Java's have nothing in:

    get     LOST_BROKERS, a topic's name: "broker-b;broker-c"
    list    LOST_BROKERS: the same for every topic that such brokers had
    delete  LOST_BROKERS, a broker's name: it won't come back, and is forgotten

A broker that unregisters was stopped in order, or is gone for good: it isn't lost, nor is one that registers again.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from gantrymq.logs import peer_log

log = peer_log(__name__)

NAMESPACE = "LOST_BROKERS"
#: As long as brokers keep messages (fileReservedTime): one that came back later would have none left.
KEPT_MS = 72 * 3600 * 1000
#: So many lost brokers, and topics of all of them together: made up, they would fill the memory.
MAX_BROKERS = 2_000
MAX_TOPICS = 200_000


@dataclass(slots=True)
class _Lost:
    cluster_name: str
    topics: set[str]
    #: Of the first look for old ones.
    since_ms: int | None = None


class LostBrokers:
    """Brokers by name. Times are milliseconds of any clock that doesn't jump."""

    def __init__(self) -> None:
        self._lost: dict[str, _Lost] = {}
        self._topic_count = 0

    def lose(self, broker_name: str, cluster_name: str, topics: set[str]) -> None:
        """The broker is gone with these topics. Those that were lost first make room."""
        self.forget(broker_name)
        self._lost[broker_name] = _Lost(cluster_name, topics)
        self._topic_count += len(topics)
        while self._topic_count > MAX_TOPICS or len(self._lost) > MAX_BROKERS:
            first = next(iter(self._lost))
            log.warning("too many brokers and topics are lost: forgetting which topics %s had", first)
            self.forget(first)

    def forget(self, broker_name: str) -> None:
        """It is back, or gone for good; one that isn't lost is ignored."""
        lost = self._lost.pop(broker_name, None)
        if lost is not None:
            self._topic_count -= len(lost.topics)

    def forget_topic(self, topic: str, cluster_name: str | None) -> None:
        """The topic was deleted, in one cluster or everywhere."""
        for lost in self._lost.values():
            if topic in lost.topics and (not cluster_name or lost.cluster_name == cluster_name):
                lost.topics.remove(topic)
                self._topic_count -= 1

    def forget_old(self, now_ms: int) -> None:
        """To be called now and then."""
        for broker_name, lost in list(self._lost.items()):
            if lost.since_ms is None:
                lost.since_ms = now_ms
            elif now_ms - lost.since_ms >= KEPT_MS:
                self.forget(broker_name)

    def of(self, topic: str) -> str | None:
        """The lost brokers that had the topic, as the KV configuration shows them; None for none."""
        return ";".join(sorted(name for name, lost in self._lost.items() if topic in lost.topics)) or None

    def by_topic(self) -> dict[str, str]:
        """`of` for every topic that has some."""
        names: defaultdict[str, list[str]] = defaultdict(list)
        for broker_name in sorted(self._lost):
            for topic in self._lost[broker_name].topics:
                names[topic].append(broker_name)
        return {topic: ";".join(of_topic) for topic, of_topic in names.items()}
