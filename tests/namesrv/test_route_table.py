"""The rules of the route table (`RouteInfoManager`), one by one."""

from __future__ import annotations

import time
from typing import Any

import pytest
from namesrv_support import broker_header, topics_body

from gantrymq.errors import RequestRefused
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.namesrv.route_table import DEFAULT_HEARTBEAT_TIMEOUT_MS, MinBrokerIdChange, Registered, RouteTable
from gantrymq.protocol.bodies.topic_config import RegisterBrokerBody, TopicConfig
from gantrymq.protocol.headers.namesrv import BrokerRequestHeader, RegisterBrokerRequestHeader

MASTER, SLAVE, SLAVE_2 = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"


@pytest.fixture
def config() -> NamesrvConfig:
    return NamesrvConfig()


@pytest.fixture
def table(config: NamesrvConfig) -> RouteTable:
    return RouteTable(config)


def register(
    table: RouteTable, header: RegisterBrokerRequestHeader, body: RegisterBrokerBody, connection: object = None
) -> Registered:
    return table.register(header, body, zone_name=None, connection=connection, now_ms=0)


def unregister(table: RouteTable, address: str, broker_id: int = 0, name: str = "broker-a") -> list[MinBrokerIdChange]:
    return table.unregister(
        [BrokerRequestHeader(broker_name=name, broker_addr=address, cluster_name="DefaultCluster", broker_id=broker_id)]
    )


def addresses(table: RouteTable, topic: str = "A") -> Any:
    route = table.route(topic)
    return None if route is None else [b.broker_addrs for b in route.broker_datas]


def perms(table: RouteTable, topic: str = "A") -> list[int]:
    route = table.route(topic)
    assert route is not None
    return [q.perm for q in route.queue_datas]


def test_a_slave_of_an_old_version_registers_no_topics(table: RouteTable) -> None:
    register(table, broker_header(address=SLAVE, broker_id=1), topics_body("A", "B"))
    assert table.all_topics().topic_list == []
    assert table.broker_addresses("broker-a") == {1: SLAVE}
    register(table, broker_header(address=MASTER), topics_body("A", "B"))
    assert addresses(table) == [{1: SLAVE, 0: MASTER}]


def test_the_lowest_slave_registers_topics_read_only_when_it_may_act(table: RouteTable) -> None:
    register(table, broker_header(address=SLAVE, broker_id=1, acting=False), topics_body("A", "B"))
    assert perms(table) == [6]
    register(table, broker_header(address=SLAVE, broker_id=1, acting=True), topics_body("A", "B", version=2))
    assert perms(table) == [4]
    register(table, broker_header(address=SLAVE_2, broker_id=2, acting=True), topics_body("A", "C", version=3))
    assert sorted(table.all_topics().topic_list) == ["A", "B"]


def test_an_acting_master_is_shown_as_master(table: RouteTable, config: NamesrvConfig) -> None:
    sync_topic = "rmq_sys_SYNC_BROKER_MEMBER_broker-a"
    body = topics_body("A", sync_topic)
    register(table, broker_header(address=MASTER, acting=True), body)
    register(table, broker_header(address=SLAVE_2, broker_id=2, acting=True), body)
    register(table, broker_header(address=SLAVE, broker_id=1, acting=True), body)
    both = {0: MASTER, 1: SLAVE, 2: SLAVE_2}
    assert addresses(table) == [both]
    unregister(table, MASTER)
    assert perms(table) == [4]
    assert addresses(table) == [{1: SLAVE, 2: SLAVE_2}]
    config.support_acting_master = True
    assert addresses(table) == [{0: SLAVE, 2: SLAVE_2}]
    assert addresses(table, sync_topic) == [{1: SLAVE, 2: SLAVE_2}]
    table.forget_answers()
    acting, plain = table.encoded_route("A"), table.encoded_route(sync_topic)
    assert acting != plain
    assert table.encoded_route("A") == acting
    assert table.encoded_route(sync_topic) == plain
    # For a topic with write permission, a slave is not listed as acting master.
    table.add_write_perm("broker-a")
    assert addresses(table) == [{1: SLAVE, 2: SLAVE_2}]


def test_a_master_that_goes_leaves_its_topics_writable_without_acting_master(table: RouteTable) -> None:
    register(table, broker_header(address=MASTER), topics_body("A", "B"))
    register(table, broker_header(address=SLAVE, broker_id=1), topics_body("A", "B"))
    unregister(table, MASTER)
    assert perms(table) == [6]
    assert addresses(table) == [{1: SLAVE}]
    unregister(table, SLAVE, 1)
    assert addresses(table) is None
    assert table.cluster_info().cluster_addr_table == {}


def test_a_slave_that_becomes_master_moves(table: RouteTable) -> None:
    register(table, broker_header(address=MASTER), topics_body("A", "B"))
    register(table, broker_header(address=SLAVE, broker_id=1), topics_body("A", "B"))
    register(table, broker_header(address=SLAVE, broker_id=0), topics_body("A", "B", version=2))
    assert addresses(table) == [{0: SLAVE}]
    # The old master unregisters later, which must not remove the new one.
    unregister(table, MASTER)
    assert addresses(table) == [{0: SLAVE}]


def test_an_address_that_takes_another_name_leaves_the_old_one(table: RouteTable) -> None:
    register(table, broker_header("broker-a", MASTER), topics_body("A", "B"))
    register(table, broker_header("broker-b", MASTER), topics_body("B", "C"))
    assert list(table.cluster_info().broker_addr_table) == ["broker-b"]
    assert sorted(table.all_topics().topic_list) == ["B", "C"]
    assert table.cluster_info().cluster_addr_table == {"DefaultCluster": ["broker-b"]}


def test_the_newer_state_wins_an_id(table: RouteTable) -> None:
    register(table, broker_header(address=MASTER), topics_body("A", "B", state=5))
    assert register(table, broker_header(address=SLAVE), topics_body("A", "C", state=4)) == Registered()
    assert addresses(table) == [{0: MASTER}]
    assert table.data_version("DefaultCluster", SLAVE) is None
    assert table.route("C") is None
    register(table, broker_header(address=SLAVE), topics_body("A", "C", state=5))
    assert addresses(table) == [{0: SLAVE}]
    assert table.route("C") is not None


def test_one_topic_alone_needs_a_known_broker(table: RouteTable) -> None:
    with pytest.raises(RequestRefused, match="register broker failed"):
        register(table, broker_header(), topics_body("A"))
    assert table.cluster_info().broker_addr_table == {}
    assert table.system_topics().topic_list == []
    register(table, broker_header(), topics_body())
    register(table, broker_header(), topics_body("A", version=2))
    assert table.all_topics().topic_list == ["A"]
    with pytest.raises(RequestRefused):
        register(table, broker_header(address=SLAVE, broker_id=1), topics_body("A"))


def test_topics_go_with_a_registration_only_when_asked_for(table: RouteTable, config: NamesrvConfig) -> None:
    register(table, broker_header(), topics_body("A", "B"))
    register(table, broker_header("broker-b", SLAVE), topics_body("A", "B"))
    register(table, broker_header(), topics_body("A", "C", version=2))
    assert sorted(table.all_topics().topic_list) == ["A", "B", "C"]
    config.delete_topic_with_broker_registration = True
    register(table, broker_header(), topics_body("A", "D", version=3))
    assert sorted(table.all_topics().topic_list) == ["A", "B", "D"]
    assert addresses(table, "B") == [{0: SLAVE}]


def test_two_brokers_of_one_connection_go_with_it(table: RouteTable) -> None:
    connection, other = object(), object()
    register(table, broker_header("a", MASTER), topics_body("A", "B"), connection)
    register(table, broker_header("b", SLAVE), topics_body("A", "B"), connection)
    register(table, broker_header("c", SLAVE_2), topics_body("A", "B"), other)
    table.connections_closed([object()])
    assert len(addresses(table)) == 3
    table.connections_closed([connection])
    assert addresses(table) == [{0: SLAVE_2}]


def test_expiry_is_each_broker_s_own(table: RouteTable) -> None:
    quick, slow = object(), object()
    register(table, broker_header("a", MASTER, timeout_ms=1000), topics_body("A", "B"), quick)
    register(table, broker_header("b", SLAVE), topics_body("A", "B"), slow)
    assert table.expire(1000) == ([], [])
    assert table.expire(1001) == ([quick], [])
    assert addresses(table) == [{0: SLAVE}]
    table.heartbeat("DefaultCluster", SLAVE, 50_000)
    table.heartbeat("AnotherCluster", SLAVE, 60_000)
    table.heartbeat("DefaultCluster", MASTER, 60_000)
    assert table.expire(50_000 + DEFAULT_HEARTBEAT_TIMEOUT_MS) == ([], [])
    assert table.expire(50_001 + DEFAULT_HEARTBEAT_TIMEOUT_MS) == ([slow], [])
    assert table.all_topics().topic_list == []


def test_who_is_told_of_a_new_lowest_id(table: RouteTable, config: NamesrvConfig) -> None:
    config.notify_min_broker_id_changed = True
    body = topics_body("A", "B")

    def come(address: str, broker_id: int) -> MinBrokerIdChange | None:
        return register(
            table, broker_header(address=address, broker_id=broker_id, acting=True), body
        ).min_broker_id_change

    assert come(SLAVE_2, 2) is None
    first = come(SLAVE, 1)
    assert first == MinBrokerIdChange("broker-a", 1, SLAVE, None, "10.0.0.2:10912", (SLAVE_2,))
    assert come(SLAVE, 1) is None
    assert unregister(table, SLAVE_2, 2) == []
    come(SLAVE_2, 2)
    come(MASTER, 0)
    (change,) = unregister(table, MASTER, 0)
    assert (change.min_broker_addr, change.offline_broker_addr) == (SLAVE, MASTER)
    assert sorted(change.notify) == [SLAVE, SLAVE_2]


def test_topics_with_equal_queues_share_one_answer(table: RouteTable) -> None:
    names = [f"topic-{i}" for i in range(100)]
    register(table, broker_header(), topics_body(*names, TopicConfig("other", 1, 1)))
    encoded = table.encoded_route(names[0])
    assert encoded is not None
    assert all(table.encoded_route(name) is encoded for name in names)
    assert table.encoded_route("other") != encoded


def test_a_registration_again_is_as_cheap_with_many_brokers(config: NamesrvConfig) -> None:
    """The cost of a repeated registration does not depend on the number of other brokers.

    Each broker registers every 30 s. All brokers have all topics.
    """
    body = topics_body(*(f"topic-{number}" for number in range(500)))
    seconds = {}
    for count in (1, 1000):
        table = RouteTable(config)
        headers = [
            broker_header(f"broker-{number}", f"10.0.{number // 250}.{number % 250}:10911") for number in range(count)
        ]
        for header in headers:
            register(table, header, body)
        taken = []
        for _ in range(5):
            began = time.thread_time()
            register(table, headers[-1], body)
            taken.append(time.thread_time() - began)
        seconds[count] = min(taken)
    assert seconds[1000] < 3 * seconds[1], seconds
