"""Compares the route table with a simple model in random sequences.

Brokers register, move, become silent, and unregister.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from namesrv_support import broker_header, topics_body

from gantrymq.errors import RequestRefused
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.namesrv.route_table import RouteTable
from gantrymq.protocol.bodies.route import QueueData, TopicRouteData
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.headers.namesrv import BrokerRequestHeader

CLUSTERS = {"a": "c1", "b": "c1", "c": "c2"}
TOPICS = ["T", "U", "V"]

names = st.sampled_from(sorted(CLUSTERS))
addresses = st.sampled_from(["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1", "10.0.0.4:1"])
broker_ids = st.sampled_from([0, 0, 1, 2])
topics = st.dictionaries(st.sampled_from(TOPICS), st.tuples(st.sampled_from([4, 8]), st.sampled_from([2, 4, 6])))
connections = st.integers(0, 2)
timeouts = st.sampled_from([None, 1000, 5000])


@dataclass
class Live:
    name: str
    last_ms: int
    timeout_ms: int
    version: tuple[int, int]
    connection: int


class Model:
    """The tables as plain dictionaries, with each rule in its simplest form."""

    def __init__(self) -> None:
        self.addresses: dict[str, dict[int, str]] = {}
        self.acting: dict[str, bool] = {}
        self.queues: dict[str, dict[str, tuple[int, int]]] = {}
        self.live: dict[tuple[str, str], Live] = {}

    def register(
        self,
        name: str,
        broker_id: int,
        address: str,
        registered: dict[str, tuple[int, int]],
        acting: bool | None,
        live: Live,
    ) -> bool:
        if broker_id not in self.addresses.get(name, {}) and len(registered) == 1:
            return False
        key = CLUSTERS[name], address
        if key in self.live and self.live[key].name != name:
            self.remove(self.live[key].name, address)
        places = self.addresses.setdefault(name, {})
        self.acting[name] = bool(acting)
        for other in [i for i in places if places[i] == address and i != broker_id]:
            del places[other]
        holder = places.get(broker_id)
        rival = self.live.get((CLUSTERS[name], holder)) if holder not in (None, address) else None
        if rival is not None and rival.version[0] > live.version[0]:
            self.live.pop(key, None)
            return True
        places[broker_id] = address
        if broker_id == 0 or (acting is not None and broker_id == min(places)):
            news = holder is None or key not in self.live or self.live[key].version != live.version
            for topic, (number, perm) in registered.items():
                of_topic = self.queues.setdefault(topic, {})
                if news or name not in of_topic:
                    of_topic[name] = number, perm & ~2 if broker_id != 0 and acting else perm
        self.live[key] = live
        return True

    def remove(self, name: str, address: str) -> None:
        self.live.pop((CLUSTERS[name], address), None)
        places = self.addresses.get(name)
        if places is None:
            return
        for broker_id in [i for i in places if places[i] == address]:
            del places[broker_id]
        if not places:
            del self.addresses[name]
            self.take(name, list(self.queues))
        elif self.acting[name] and 0 not in places:
            self.set_perm(name, lambda perm: perm & ~2)

    def take(self, name: str, from_topics: list[str]) -> None:
        for topic in from_topics:
            self.queues[topic].pop(name, None)
            if not self.queues[topic]:
                del self.queues[topic]

    def set_perm(self, name: str, change: Any) -> int:
        mine = [of_topic for of_topic in self.queues.values() if name in of_topic]
        for of_topic in mine:
            of_topic[name] = of_topic[name][0], change(of_topic[name][1])
        return len(mine)

    def shown(self, name: str, perm: int) -> dict[int, str]:
        """Returns the addresses of a broker in a route. Its lowest slave can be listed as acting master."""
        places = dict(self.addresses[name])
        if 0 not in places and self.acting[name] and not perm & 2:
            places[0] = places.pop(min(places))
        return places


class RouteTableMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.table = RouteTable(NamesrvConfig(support_acting_master=True))
        self.model = Model()
        self.now_ms = 0

    @rule(
        name=names,
        broker_id=broker_ids,
        address=addresses,
        registered=topics,
        version=st.tuples(st.integers(0, 1), st.integers(1, 3)),
        acting=st.sampled_from([None, False, True]),
        connection=connections,
        timeout_ms=timeouts,
    )
    def register(
        self,
        name: str,
        broker_id: int,
        address: str,
        registered: dict[str, tuple[int, int]],
        version: tuple[int, int],
        acting: bool | None,
        connection: int,
        timeout_ms: int | None,
    ) -> None:
        live = Live(name, self.now_ms, 120_000 if timeout_ms is None else timeout_ms, version, connection)
        accepted = self.model.register(name, broker_id, address, registered, acting, live)
        header = broker_header(
            name, address, broker_id=broker_id, cluster=CLUSTERS[name], acting=acting, timeout_ms=timeout_ms
        )
        configs = [TopicConfig(topic, number, number, perm) for topic, (number, perm) in registered.items()]
        body = topics_body(*configs, state=version[0], version=version[1])
        try:
            self.table.register(header, body, zone_name=None, connection=connection, now_ms=self.now_ms)
        except RequestRefused:
            assert not accepted
        else:
            assert accepted

    @rule(name=names, address=addresses)
    def unregister(self, name: str, address: str) -> None:
        self.model.remove(name, address)
        self.table.unregister(
            [BrokerRequestHeader(broker_name=name, broker_addr=address, cluster_name=CLUSTERS[name], broker_id=0)]
        )

    @rule(connection=connections)
    def close(self, connection: int) -> None:
        for (_, address), live in list(self.model.live.items()):
            if live.connection == connection:
                self.model.remove(live.name, address)
        self.table.connections_closed([connection])

    @rule(ms=st.sampled_from([400, 1000, 5001, 120_001]))
    def wait(self, ms: int) -> None:
        self.now_ms += ms
        silent = [
            (address, live)
            for (_, address), live in self.model.live.items()
            if self.now_ms - live.last_ms > live.timeout_ms
        ]
        for address, live in silent:
            self.model.remove(live.name, address)
        closed, _ = self.table.expire(self.now_ms)
        assert sorted(str(connection) for connection in closed) == sorted(str(live.connection) for _, live in silent)

    @rule(name=names, address=addresses)
    def heartbeat(self, name: str, address: str) -> None:
        live = self.model.live.get((CLUSTERS[name], address))
        if live is not None:
            live.last_ms = self.now_ms
        self.table.heartbeat(CLUSTERS[name], address, self.now_ms)

    @rule(name=names)
    def wipe_write_perm(self, name: str) -> None:
        assert self.table.wipe_write_perm(name) == self.model.set_perm(name, lambda perm: perm & ~2)

    @rule(name=names)
    def add_write_perm(self, name: str) -> None:
        assert self.table.add_write_perm(name) == self.model.set_perm(name, lambda _: 6)

    @rule(topic=st.sampled_from(TOPICS), cluster=st.sampled_from([None, "c1", "c2"]))
    def delete_topic(self, topic: str, cluster: str | None) -> None:
        for name in [n for n in self.model.queues.get(topic, {}) if cluster in (None, CLUSTERS[n])]:
            self.model.take(name, [topic])
        self.table.delete_topic(topic, cluster)

    @rule(topic=st.sampled_from(TOPICS), name=names, number=st.sampled_from([4, 8]))
    def register_topic(self, topic: str, name: str, number: int) -> None:
        if name in self.model.addresses:
            self.model.queues.setdefault(topic, {})[name] = number, 6
        self.table.register_topic(topic, [QueueData(name, number, number, 6)])

    @invariant()
    def tables_are_the_model_s(self) -> None:
        model = self.model
        assert {n: b.broker_addrs for n, b in self.table.cluster_info().broker_addr_table.items()} == model.addresses
        assert self.table.cluster_info().cluster_addr_table == {
            cluster: of_cluster
            for cluster in ("c1", "c2")
            if (of_cluster := sorted(n for n in model.addresses if CLUSTERS[n] == cluster))
        }
        assert sorted(self.table.all_topics().topic_list) == sorted(model.queues)
        for cluster in ("c1", "c2"):
            expected = sorted(
                t for t, of_topic in model.queues.items() if any(CLUSTERS[n] == cluster for n in of_topic)
            )
            assert sorted(self.table.topics_of_cluster(cluster).topic_list) == expected

    @invariant()
    def answers_are_the_model_s(self) -> None:
        for topic in TOPICS:
            encoded = self.table.encoded_route(topic)
            of_topic = self.model.queues.get(topic)
            if of_topic is None:
                assert encoded is None
                continue
            assert encoded is not None
            route = decode_json(encoded, TopicRouteData)
            assert [msgspec.structs.astuple(q) for q in route.queue_datas] == [
                (name, number, number, perm, 0) for name, (number, perm) in sorted(of_topic.items())
            ]
            assert {b.broker_name: b.broker_addrs for b in route.broker_datas} == {
                name: self.model.shown(name, perm) for name, (_, perm) in of_topic.items()
            }

    @invariant()
    def versions_are_the_model_s(self) -> None:
        for cluster in ("c1", "c2"):
            for number in range(1, 5):
                address = f"10.0.0.{number}:1"
                version = self.table.data_version(cluster, address)
                live = self.model.live.get((cluster, address))
                assert (version and (version.state_version, version.counter)) == (live and live.version)


TestRouteTable = RouteTableMachine.TestCase
TestRouteTable.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
