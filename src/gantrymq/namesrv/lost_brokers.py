"""Tracks lost brokers and their topics.

As in Java, a route contains only live brokers. A batch read needs all brokers of a topic, so it must detect missing
brokers. A NameServer shows lost brokers as a namespace of its KV configuration. In Java this namespace is empty.

    get     LOST_BROKERS, name of a topic: "broker-b;broker-c"
    list    LOST_BROKERS: the same for each topic of a lost broker
    delete  LOST_BROKERS, name of a broker: it will not return, so it is removed here

A broker that unregisters also counts as lost. It may only be restarting, and a batch read in the meantime would miss
its queues. After a broker returns, it still counts as lost for topics that it has not registered again, because their
routes lack the broker.

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
#: Time after which a lost broker is removed, in milliseconds. Its messages have expired by then (fileReservedTime).
KEPT_MS = 72 * 3600 * 1000
#: Time in which a returned broker registers its topics, possibly in parts, in milliseconds. After this time, its other
#: topics count as deleted.
PARTS_MS = 60_000
#: Maximum numbers of lost brokers and of all their topics, so that forged registrations cannot fill the memory.
MAX_BROKERS = 2_000
MAX_TOPICS = 200_000
#: Number of topics that one step encodes.
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
    #: Time at which the broker was lost or returned. The next call of `forget_old` sets it.
    since_ms: int | None = None
    is_back: bool = False
    #: True if the NameServer has just started and the broker may not have had time to register.
    is_awaited: bool = False


class LostBrokers:
    """The lost brokers by name. Times are milliseconds of any monotonic clock."""

    def __init__(self) -> None:
        self._lost: dict[str, _Lost] = {}
        self._topic_count = 0
        #: Increases with every change.
        self.revision = 0

    def lose(self, broker_name: str, cluster_name: str, topics: set[str]) -> None:
        """Adds a lost broker with its topics. If a limit is exceeded, removes the brokers that were lost first."""
        self._add(broker_name, _Lost(cluster_name, topics))

    def recall(self, broker: LostBroker, *, is_awaited: bool) -> None:
        """Adds a broker from the file of known brokers. `is_awaited`: the file records it as registered."""
        lost = _Lost(broker.cluster_name, set(broker.topics), broker.since_ms, is_awaited=is_awaited)
        self._add(broker.broker_name, lost)

    def _add(self, broker_name: str, lost: _Lost) -> None:
        if broker_name in self._lost:
            # The broker has returned, but has not registered these topics yet.
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
        """Removes the topics that a returned broker has registered. Ignores a broker that is not lost."""
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
        """Removes a broker that will not return. Ignores a broker that is not lost."""
        lost = self._lost.pop(broker_name, None)
        if lost is not None:
            self._topic_count -= len(lost.topics)
            self.revision += 1

    def forget_topic(self, topic: str, cluster_name: str | None) -> None:
        """Removes a deleted topic, in one cluster or everywhere."""
        for lost in self._lost.values():
            if topic in lost.topics and (not cluster_name or lost.cluster_name == cluster_name):
                lost.topics.remove(topic)
                self._topic_count -= 1
                self.revision += 1

    def forget_old(self, now_ms: int) -> None:
        """Removes expired entries. Must be called regularly."""
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
        """Yields each broker with a copy of its topics."""
        for name, lost in self._lost.items():
            is_away = not (lost.is_back or lost.is_awaited)
            yield LostBroker(name, lost.cluster_name, frozenset(lost.topics), lost.since_ms, is_away)

    def of(self, topic: str) -> str | None:
        """Returns the lost brokers of a topic, separated by `;`. Returns None if there are none."""
        return ";".join(sorted(name for name, lost in self._lost.items() if topic in lost.topics)) or None

    def awaited(self, topic: str) -> str | None:
        """Like `of`, but returns only brokers that may still register because this NameServer has just started."""
        names = (name for name, lost in self._lost.items() if lost.is_awaited and topic in lost.topics)
        return ";".join(sorted(names)) or None

    def encode_in_steps(self) -> Generator[None, None, bytes]:
        """Returns `of` for all topics as an encoded KVTable. In one step, the largest table would take 0.2 s."""
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
