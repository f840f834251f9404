"""The queues of each topic by broker. Topics with equal queues share one object.

Most topics of a cluster have one of a few forms. For example, 20,000 topics on 8 brokers with 8 queues each share one
`TopicQueues`. It also caches the encoded route. `TopicQueues` is immutable: a changed topic gets another object.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple
from weakref import WeakValueDictionary

from gantrymq.logs import peer_log

log = peer_log(__name__)

#: Maximum number of topics that one call logs. The log also limits its lines, but each omitted line takes 4 us.
_LOGGED_AT_ONCE = 20


class BrokerQueues(NamedTuple):
    """The queues of a topic on one broker. A hashable QueueData."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int


class TopicQueues:
    """A set of queues, sorted by broker name and never empty. Shared by all topics with exactly these queues."""

    __slots__ = ("__weakref__", "encoded_route", "queues")

    def __init__(self, queues: tuple[BrokerQueues, ...]) -> None:
        self.queues = queues
        self.encoded_route: bytes | None = None

    def of(self, broker_name: str) -> BrokerQueues | None:
        return next((queues for queues in self.queues if queues.broker_name == broker_name), None)


class TopicTable:
    """The queues of all topics, by topic name."""

    def __init__(self) -> None:
        self._topics: dict[str, TopicQueues] = {}
        self._shared: WeakValueDictionary[tuple[BrokerQueues, ...], TopicQueues] = WeakValueDictionary()
        #: Returns the queues of a topic, or None.
        self.get = self._topics.get
        #: Increases with every change of a topic's queues.
        self.revision = 0

    def __len__(self) -> int:
        return len(self._topics)

    def names(self) -> list[str]:
        return list(self._topics)

    def copy(self) -> dict[str, TopicQueues]:
        """Returns each topic with its queues. A list of 500,000 pairs would take 0.5 s in the garbage collector."""
        return self._topics.copy()

    def names_of(self, broker_names: Collection[str]) -> list[str]:
        """Returns the topics that at least one of the brokers has."""
        return self.names_where(lambda queues: any(q.broker_name in broker_names for q in queues.queues))

    def grouped(self, topics: Iterable[str], broker_names: Collection[str]) -> dict[str, set[str]]:
        """Returns, for each of these brokers, the subset of `topics` that it has."""
        topics_of: dict[str, set[str]] = {name: set() for name in broker_names}
        having: dict[TopicQueues, list[set[str]]] = {}
        for topic in topics:
            queues = self._topics[topic]
            if queues not in having:
                having[queues] = [topics_of[q.broker_name] for q in queues.queues if q.broker_name in topics_of]
            for of_broker in having[queues]:
                of_broker.add(topic)
        return topics_of

    def asks_for(self, broker_name: str) -> Callable[[str], bool]:
        """Returns a function that returns true if the broker has a topic. It checks topics with equal queues only once.

        A separate check per topic would take 13 ms per registration, for 1,000 topics on 1,000 brokers.
        """
        known: dict[TopicQueues, bool] = {}

        def has_queues(topic: str) -> bool:
            queues = self._topics.get(topic)
            if queues is None:
                return False
            has = known.get(queues)
            if has is None:
                has = known[queues] = queues.of(broker_name) is not None
            return has

        return has_queues

    def names_where(self, matches: Callable[[TopicQueues], bool]) -> list[str]:
        matching = {queues for queues in self._shared.values() if matches(queues)}
        return [topic for topic, queues in self._topics.items() if queues in matching] if matching else []

    def put(self, queues_by_topic: Iterable[tuple[str, BrokerQueues]]) -> None:
        """Adds or replaces one broker's queues of each topic."""
        # Caches results for equal queues, because most topics of a registration are alike.
        merged: dict[tuple[TopicQueues | None, BrokerQueues], TopicQueues] = {}
        logged = 0
        for topic, added in queues_by_topic:
            known = self._topics.get(topic)
            queues = merged.get((known, added))
            if queues is None:
                others = [q for q in known.queues if q.broker_name != added.broker_name] if known is not None else []
                queues = merged[known, added] = self._share(tuple(sorted([*others, added])))
            if queues is not known:
                self._topics[topic] = queues
                self.revision += 1
                if logged < _LOGGED_AT_ONCE:
                    logged += 1
                    _log_change(topic, known.of(added.broker_name) if known is not None else None, added)

    def take(self, topics: Iterable[str], broker_names: Iterable[str]) -> list[str]:
        """Removes the brokers' queues of these topics. Returns the topics that have no queues left and are removed."""
        names = set(broker_names)
        return self._change(topics, lambda queues: tuple(q for q in queues if q.broker_name not in names))

    def set_perm(self, broker_names: Collection[str], new_perm: Callable[[int], int]) -> int:
        """Changes the permission of all topics on these brokers. Returns the number of topics."""

        def change(queues: tuple[BrokerQueues, ...]) -> tuple[BrokerQueues, ...]:
            return tuple(q._replace(perm=new_perm(q.perm)) if q.broker_name in broker_names else q for q in queues)

        topics = self.names_of(broker_names)
        self._change(topics, change)
        return len(topics)

    def remove(self, topic: str) -> None:
        """Removes a topic. Ignores an unknown one."""
        self._topics.pop(topic, None)
        self.revision += 1

    def forget_encoded_routes(self) -> None:
        for queues in self._shared.values():
            queues.encoded_route = None

    def _change(
        self, topics: Iterable[str], change: Callable[[tuple[BrokerQueues, ...]], tuple[BrokerQueues, ...]]
    ) -> list[str]:
        changed: dict[TopicQueues, TopicQueues | None] = {}
        gone = []
        for topic in topics:
            self.revision += 1
            before = self._topics[topic]
            if before not in changed:
                queues = change(before.queues)
                changed[before] = self._share(queues) if queues else None
            after = changed[before]
            if after is not None:
                self._topics[topic] = after
            else:
                del self._topics[topic]
                gone.append(topic)
        return gone

    def _share(self, queues: tuple[BrokerQueues, ...]) -> TopicQueues:
        shared = self._shared.get(queues)
        if shared is None:
            shared = self._shared[queues] = TopicQueues(queues)
        return shared


def _log_change(topic: str, old: BrokerQueues | None, new: BrokerQueues) -> None:
    # The first words are Java's (`RouteInfoManager.createAndUpdateQueueData`), because scripts search for them.
    if old is None:
        log.info("new topic registered, %s %s", topic, _text(new))
    else:
        log.info("topic changed, %s OLD: %s NEW: %s", topic, _text(old), _text(new))


def _text(queues: BrokerQueues) -> str:
    name, read, write, perm, flag = queues
    return (
        f"QueueData [brokerName={name}, readQueueNums={read}, writeQueueNums={write}, perm={perm}, topicSysFlag={flag}]"
    )
