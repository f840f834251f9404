"""LostBrokers: brokers that are away, and the topics that they had.

A route has only brokers that live, as in Java. Whoever must have all of a topic, as a batch read must, learns here that
a part of it is missing. A NameServer shows this as a namespace of its KV configuration, which Java's have nothing in:

    get     LOST_BROKERS, a topic's name: "broker-b;broker-c"
    list    LOST_BROKERS: the same for every topic that such brokers had
    delete  LOST_BROKERS, a broker's name: it won't come back, and is forgotten

A broker that unregisters is lost as one that dies is: it may be restarted, and a read meanwhile would have half of its
topics. One that is back isn't, for the topics that it has registered since: the others' routes still lack it.

After a start of the NameServer, all brokers in its file are lost until they register (`known_brokers`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from gantrymq.logs import peer_log
from gantrymq.protocol.awaited_brokers import REGISTRATION_PERIOD_MS
from gantrymq.protocol.fastjson import encode_json

log = peer_log(__name__)

NAMESPACE = "LOST_BROKERS"
#: As long as brokers keep messages (fileReservedTime): one that came back later would have none left.
KEPT_MS = 72 * 3600 * 1000
#: A broker that is back may register its topics in parts, for so long; what doesn't come then it has no more.
PARTS_MS = 60_000
#: So many lost brokers, and topics of all of them together: made up, they would fill the memory.
MAX_BROKERS = 2_000
MAX_TOPICS = 200_000
#: Topics that are listed in a step.
_STEP = 1_000


class LostBroker(NamedTuple):
    """A copy of one entry of LostBrokers.

    `since_ms` is the time at which the broker was lost; None if it was lost a moment ago. `is_away` is False while the
    broker is awaited or registers its topics again.
    """

    broker_name: str
    cluster_name: str
    topics: frozenset[str]
    since_ms: int | None
    is_away: bool


@dataclass(slots=True)
class _Lost:
    cluster_name: str
    topics: set[str]
    #: Of the first look for old ones.
    since_ms: int | None = None
    is_back: bool = False
    #: The NameServer started less than a registration period ago, and the broker has not registered since.
    is_awaited: bool = False


class LostBrokers:
    """Brokers by name. Times are milliseconds of any clock that doesn't jump."""

    def __init__(self) -> None:
        self._lost: dict[str, _Lost] = {}
        self._topic_count = 0
        #: Grows with every change.
        self.revision = 0

    def lose(self, broker_name: str, cluster_name: str, topics: set[str]) -> None:
        """Adds a broker that is away, and the topics that it had. Those that were lost first make room."""
        self._add(broker_name, _Lost(cluster_name, topics))

    def recall(self, broker: LostBroker, *, is_awaited: bool) -> None:
        """Adds a broker from the file of known brokers; awaited if it was registered when the file was written."""
        lost = _Lost(broker.cluster_name, set(broker.topics), broker.since_ms, is_awaited=is_awaited)
        self._add(broker.broker_name, lost)

    def _add(self, broker_name: str, lost: _Lost) -> None:
        if broker_name in self._lost:
            # It was back, and hadn't registered these yet.
            lost.topics |= self._lost[broker_name].topics
        self.forget(broker_name)
        if not lost.topics:
            return
        self._lost[broker_name] = lost
        self._topic_count += len(lost.topics)
        self.revision += 1
        while self._topic_count > MAX_TOPICS or len(self._lost) > MAX_BROKERS:
            first = next(iter(self._lost))
            log.warning("too many brokers and topics are lost: forgetting which topics %s had", first)
            self.forget(first)

    def returned(self, broker_name: str, topics: Iterable[str]) -> None:
        """It is back and has registered these topics; one that isn't lost is ignored."""
        lost = self._lost.get(broker_name)
        if lost is None:
            return
        if not lost.is_back:
            lost.is_back, lost.since_ms = True, None
        before = len(lost.topics)
        lost.topics.difference_update(topics)
        self._topic_count -= before - len(lost.topics)
        self.revision += 1
        if not lost.topics:
            self.forget(broker_name)

    def forget(self, broker_name: str) -> None:
        """It is gone for good; one that isn't lost is ignored."""
        lost = self._lost.pop(broker_name, None)
        if lost is not None:
            self._topic_count -= len(lost.topics)
            self.revision += 1

    def forget_topic(self, topic: str, cluster_name: str | None) -> None:
        """The topic was deleted, in one cluster or everywhere."""
        for lost in self._lost.values():
            if topic in lost.topics and (not cluster_name or lost.cluster_name == cluster_name):
                lost.topics.remove(topic)
                self._topic_count -= 1
                self.revision += 1

    def forget_old(self, now_ms: int) -> None:
        """To be called now and then."""
        for broker_name, lost in list(self._lost.items()):
            if lost.since_ms is None:
                lost.since_ms = now_ms
                self.revision += 1
            elif lost.is_awaited and now_ms - lost.since_ms >= REGISTRATION_PERIOD_MS:
                lost.is_awaited = False
                self.revision += 1
            elif now_ms - lost.since_ms >= (PARTS_MS if lost.is_back else KEPT_MS):
                self.forget(broker_name)

    def __iter__(self) -> Iterator[LostBroker]:
        """Each broker with a copy of its topics."""
        for name, lost in self._lost.items():
            is_away = not (lost.is_back or lost.is_awaited)
            yield LostBroker(name, lost.cluster_name, frozenset(lost.topics), lost.since_ms, is_away)

    def of(self, topic: str) -> str | None:
        """The lost brokers that had the topic, as the KV configuration shows them; None for none."""
        return ";".join(sorted(name for name, lost in self._lost.items() if topic in lost.topics)) or None

    def awaited(self, topic: str) -> str | None:
        """As `of`, but only brokers that are expected to register, because this NameServer has just started."""
        names = (name for name, lost in self._lost.items() if lost.is_awaited and topic in lost.topics)
        return ";".join(sorted(names)) or None

    def encode_in_steps(self) -> Generator[None, None, bytes]:
        """`of` for every topic that has some, as a KVTable: at once it would take 0.2 s for as many as there may be."""
        names: dict[str, str] = {}
        for broker_name, lost in sorted(self._lost.items()):
            topics = iter(list(lost.topics))
            while some := list(islice(topics, _STEP)):
                for topic in some:
                    names[topic] = f"{names[topic]};{broker_name}" if topic in names else broker_name
                yield
        pieces = []
        entries = iter(names.items())
        while piece := dict(islice(entries, _STEP)):
            pieces.append(encode_json(piece)[1:-1])
            yield
        return b'{"table":{%b}}' % b",".join(pieces)
