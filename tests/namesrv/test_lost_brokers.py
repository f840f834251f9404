"""The data that a NameServer keeps about brokers that are down."""

from __future__ import annotations

import pytest
from constants import change_constant
from namesrv_support import broker_header, registration, topics_body
from wait_until import until

from gantrymq.errors import BrokerError
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.namesrv.lost_brokers import KEPT_MS, MAX_TOPICS, NAMESPACE, PARTS_MS, LostBrokers
from gantrymq.namesrv.route_table import DEFAULT_HEARTBEAT_TIMEOUT_MS, RouteTable
from gantrymq.namesrv.server import NameServer
from gantrymq.protocol.bodies.route import KVTable
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.headers.namesrv import (
    BrokerRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    KVConfigRequestHeader,
)
from gantrymq.protocol.headers.topic import DeleteTopicInNamesrvRequestHeader
from gantrymq.protocol.steps import finish
from gantrymq.remoting.client import RemotingClient

A, B, C = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"


@pytest.fixture
def table() -> RouteTable:
    """A table in which broker-a has topics A and AB, and broker-b has B and AB.

    The connection of each broker has the broker's name.
    """
    table = RouteTable(NamesrvConfig())
    register(table, "broker-a", A, "A", "AB")
    register(table, "broker-b", B, "B", "AB")
    return table


def register(table: RouteTable, name: str, address: str, *topics: str, broker_id: int = 0) -> None:
    header = broker_header(name, address, broker_id=broker_id)
    table.register(header, topics_body(*topics), zone_name=None, connection=f"{name} {broker_id}", now_ms=0)


def by_topic(lost: LostBrokers) -> dict[str, str]:
    return decode_json(finish(lost.encode_in_steps()), KVTable).table


def unregister(table: RouteTable, name: str, address: str, broker_id: int = 0) -> None:
    table.unregister(
        [BrokerRequestHeader(broker_name=name, broker_addr=address, cluster_name="DefaultCluster", broker_id=broker_id)]
    )


def test_a_broker_is_lost_whose_connection_closes(table: RouteTable) -> None:
    assert by_topic(table.lost) == {}
    table.connections_closed(["broker-b 0"])
    assert (table.lost.of("A"), table.lost.of("B"), table.lost.of("AB")) == (None, "broker-b", "broker-b")
    table.connections_closed(["broker-a 0"])
    assert by_topic(table.lost) == {"A": "broker-a", "B": "broker-b", "AB": "broker-a;broker-b"}
    register(table, "broker-b", "10.0.0.9:10911", "AB", "B")
    assert by_topic(table.lost) == {"A": "broker-a", "AB": "broker-a"}


def test_so_is_one_that_falls_silent_until_nobody_keeps_messages_for_so_long(table: RouteTable) -> None:
    now_ms = DEFAULT_HEARTBEAT_TIMEOUT_MS + 1
    table.heartbeat("DefaultCluster", A, now_ms)
    table.expire(now_ms)
    assert table.lost.of("AB") == "broker-b"
    table.heartbeat("DefaultCluster", A, now_ms + KEPT_MS)
    table.expire(now_ms + 1)
    table.expire(now_ms + KEPT_MS)
    assert table.lost.of("AB") == "broker-b"
    table.expire(now_ms + 1 + KEPT_MS)
    assert table.lost.of("AB") is None


def test_so_is_one_that_unregisters(table: RouteTable) -> None:
    """A broker that unregisters counts as lost too, because it can be restarting.

    Meanwhile a route of the topic lacks its queues.
    """
    unregister(table, "broker-b", B)
    table.connections_closed(["broker-b 0"])
    assert by_topic(table.lost) == {"B": "broker-b", "AB": "broker-b"}
    register(table, "broker-b", B, "B", "AB")
    assert by_topic(table.lost) == {}


def test_a_broker_is_there_while_one_of_its_replicas_is(table: RouteTable) -> None:
    register(table, "broker-b", C, "B", "AB", broker_id=1)
    table.connections_closed(["broker-b 0"])
    assert by_topic(table.lost) == {}
    table.connections_closed(["broker-b 1"])
    assert table.lost.of("AB") == "broker-b"


def test_a_broker_that_goes_while_it_comes_back_is_lost_with_all_that_it_had(
    table: RouteTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that fails during its registration is lost with all its topics.

    Topics that it has not registered again are in no route. They must not be dropped after its first topics.
    """
    change_constant(monkeypatch, "route_table._STEP_TOPICS", 1)
    table.connections_closed(["broker-b 0"])
    steps = table.register_in_steps(
        broker_header("broker-b", B), topics_body("B", "AB"), zone_name=None, connection="again", now_ms=0
    )
    next(steps)
    assert table.lost.of("AB") == "broker-b"
    table.connections_closed(["again"])
    assert not list(steps)
    assert by_topic(table.lost) == {"B": "broker-b", "AB": "broker-b"}
    register(table, "broker-b", B, "B", "AB")
    assert by_topic(table.lost) == {}


def test_a_broker_that_registers_in_parts_is_back_with_each_of_its_topics(table: RouteTable) -> None:
    """A broker that registers in parts is back with each registered topic.

    Its other topics are dropped some time after the last part.
    """
    table.connections_closed(["broker-b 0"])
    register(table, "broker-b", B, "B", "other")
    assert by_topic(table.lost) == {"AB": "broker-b"}
    table.connections_closed(["broker-b 0"])
    assert by_topic(table.lost) == {"B": "broker-b", "AB": "broker-b", "other": "broker-b"}
    register(table, "broker-b", B, "B", "other")
    table.expire(0)
    assert by_topic(table.lost) == {"AB": "broker-b"}
    table.expire(PARTS_MS)
    assert by_topic(table.lost) == {}


def test_a_slave_that_comes_back_without_its_master_brings_no_topics(table: RouteTable) -> None:
    register(table, "broker-b", C, "B", "AB", broker_id=1)
    table.connections_closed(["broker-b 0", "broker-b 1"])
    register(table, "broker-b", C, "B", "AB", broker_id=1)
    assert table.route("B") is None
    table.expire(0)
    table.expire(PARTS_MS)
    assert table.lost.of("B") == "broker-b"
    table.connections_closed(["broker-b 1"])
    assert table.lost.of("B") == "broker-b"
    register(table, "broker-b", B, "B", "AB")
    assert by_topic(table.lost) == {}


@pytest.mark.parametrize(("cluster", "left"), [(None, None), ("DefaultCluster", None), ("another", "broker-b")])
def test_a_topic_that_is_deleted_is_forgotten(table: RouteTable, cluster: str | None, left: str | None) -> None:
    table.connections_closed(["broker-b 0"])
    table.delete_topic("AB", cluster)
    table.delete_topic("B", cluster)
    assert (table.lost.of("AB"), table.lost.of("B")) == (left, left)


def test_there_is_a_bound() -> None:
    lost = LostBrokers()
    topics = {f"topic-{n}" for n in range(MAX_TOPICS + 1)}
    some = set(sorted(topics)[: MAX_TOPICS // 2])
    for name in ("b-1", "b-2", "b-3"):
        lost.lose(name, "c", some)
    assert lost.of("topic-1") == "b-2;b-3"
    lost.lose("b-4", "c", topics)
    assert by_topic(lost) == {}


def test_a_large_listing_has_steps() -> None:
    """A large listing is encoded in steps.

    In one step, 200,000 topics block the event loop for 0.2 s.
    """
    lost = LostBrokers()
    for name in ("b-1", "b-2"):
        lost.lose(name, "c", {f'"{number}' for number in range(2500)})
    steps = lost.encode_in_steps()
    next(steps)
    # Changes of other clients between two steps.
    lost.forget_topic('"7', None)
    lost.forget("b-2")
    table = decode_json(finish(steps), KVTable).table
    assert table.pop('"7') == "b-1"
    assert table == {f'"{number}': "b-1;b-2" for number in range(2500) if number != 7}
    assert sum(1 for _ in lost.encode_in_steps()) == 6


async def test_it_is_asked_for_as_a_kv_configuration(client: RemotingClient, server: NameServer) -> None:
    async def ask(code: RequestCode, key: str) -> RemotingCommand:
        header = KVConfigRequestHeader(namespace=NAMESPACE, key=key)
        return await client.call(server.address, RemotingCommand.request(code, header))

    async def refused() -> bool:
        with pytest.raises(BrokerError) as error:
            await ask(RequestCode.GET_KV_CONFIG, "AB")
        return error.value.code == ResponseCode.QUERY_NOT_FOUND

    async def listed() -> dict[str, str]:
        header = GetKVListByNamespaceRequestHeader(namespace=NAMESPACE)
        response = await client.call(
            server.address, RemotingCommand.request(RequestCode.GET_KVLIST_BY_NAMESPACE, header)
        )
        return decode_json(response.body, KVTable).table

    assert await refused()
    broker = RemotingClient()
    await broker.call(server.address, registration(broker_header(), topics_body("A", "AB")))
    await broker.close()
    await until(lambda: server.table.lost.of("AB") is not None)
    response = await ask(RequestCode.GET_KV_CONFIG, "AB")
    assert response.read_header(GetKVConfigResponseHeader).value == "broker-a"
    assert await listed() == {"A": "broker-a", "AB": "broker-a"}
    delete = DeleteTopicInNamesrvRequestHeader(topic="A")
    await client.call(server.address, RemotingCommand.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, delete))
    assert await listed() == {"AB": "broker-a"}
    await ask(RequestCode.DELETE_KV_CONFIG, "broker-a")
    assert await refused()
