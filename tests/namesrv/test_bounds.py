"""However large the requests of one peer are, they neither block the event loop nor fill the memory."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from constants import change_constant
from namesrv_support import broker_header, registration, topics_body
from step_timer import StepTimer, loop_steps
from wait_until import until

from gantrymq.errors import BrokerError, RequestRefused
from gantrymq.namesrv import registration as registration_module
from gantrymq.namesrv import route_table
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.namesrv.responses import in_zone
from gantrymq.namesrv.route_table import RouteTable
from gantrymq.namesrv.server import NameServer
from gantrymq.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from gantrymq.protocol.bodies.topic_config import RegisterBrokerBody, TopicConfig
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.headers.topic import TopicRequestHeader
from gantrymq.remoting.client import RemotingClient

#: Longest step of the event loop, in seconds of processor time.
LONGEST_S = 0.05
#: They take 7 MB of JSON. The longest step splits the JSON, which takes 25 ms for 16 MB on an idle machine.
TOPICS = 40_000


@contextmanager
def short() -> Iterator[None]:
    """Checks that its block takes no longer than a step may.

    Garbage collection is off, because it would include the objects of all tests.
    """
    timer = StepTimer()
    gc.disable()
    try:
        with timer.step():
            yield
    finally:
        gc.enable()
    assert timer.longest < LONGEST_S


def many(forms: int = 8, name: str = "topic", version: int = 1) -> RegisterBrokerBody:
    return topics_body(*(TopicConfig(f"{name}-{n}", n % forms, 8) for n in range(TOPICS)), version=version)


@pytest.mark.parametrize("compressed", [False, True])
async def test_a_large_registration(server: NameServer, client: RemotingClient, compressed: bool) -> None:
    request = registration(broker_header(compressed=compressed), many())
    await client.connection(server.address)
    async with loop_steps() as timer:
        registering = asyncio.create_task(client.call(server.address, request, 60_000))
        await registering
    assert len(server.table.all_topics().topic_list) == TOPICS
    assert timer.longest < LONGEST_S
    # A registration with the same version changes nothing.
    await client.call(server.address, request, 60_000)


async def test_others_are_answered_meanwhile(server: NameServer, client: RemotingClient) -> None:
    other = RemotingClient()
    ask = RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO)
    registering = asyncio.create_task(client.call(server.address, registration(broker_header(), many()), 60_000))
    answered = 0
    while not registering.done():
        await other.call(server.address, ask)
        answered += 1
    # The registration of all topics takes a few milliseconds between two responses.
    assert answered > 3
    await registering
    await other.close()


async def test_a_broker_that_goes_while_it_registers_leaves_nothing(server: NameServer, client: RemotingClient) -> None:
    leaving = RemotingClient()
    connection = await leaving.connection(server.address)
    registering = asyncio.create_task(connection.invoke(registration(broker_header(), many()), 60_000))
    await until(lambda: 0 < len(server.table.all_topics().topic_list) < TOPICS)
    connection.abort()
    await until(lambda: not server.table.all_topics().topic_list)
    with pytest.raises(Exception, match="closed"):
        await registering
    await leaving.close()
    # The rest of the registration does not reappear with the next broker, either.
    await client.call(server.address, registration(broker_header("b", "10.0.0.2:1"), topics_body("A", "B")))
    assert server.table.all_topics().topic_list == ["A", "B"]


async def test_what_a_broker_sends_behind_its_registration_comes_after_it(
    server: NameServer, client: RemotingClient
) -> None:
    header = broker_header()
    calls = [
        client.call(server.address, registration(header, many(version=1)), 60_000),
        client.call(server.address, registration(broker_header(), topics_body("A", "B", version=2)), 60_000),
        client.call(server.address, RemotingCommand.request(RequestCode.UNREGISTER_BROKER, header), 60_000),
    ]
    await asyncio.gather(*calls)
    assert server.table.all_topics().topic_list == []


def put(table: RouteTable, name: str, body: RegisterBrokerBody, connection: object = None) -> None:
    header = broker_header(name, f"{name}:1")
    table.register(header, body, zone_name=None, connection=connection or name, now_ms=0)


def test_what_goes_over_all_topics_is_short() -> None:
    table = RouteTable(NamesrvConfig(notify_min_broker_id_changed=True))
    put(table, "a", many())
    put(table, "b", many(50))
    for n in range(500):
        put(table, f"small-{n}", topics_body(f"own-{n}", "shared"))
    for ask in (table.all_topics, table.system_topics, table.unit_topics, table.cluster_info):
        with short():
            ask()
    with short():
        table.wipe_write_perm("a")
    with short():
        table.topics_of_cluster("DefaultCluster")
    with short():
        table.connections_closed([f"small-{n}" for n in range(500)])
    with short():
        table.connections_closed(["a"])
    assert table.route("own-1") is None
    assert table.route("topic-1") is not None


def test_a_route_over_many_brokers_in_zones() -> None:
    brokers = [
        BrokerData("c", f"b-{n}", {0: f"b-{n}:1"}, f"zone-{n % 2}", False) for n in range(route_table.MAX_BROKERS)
    ]
    route = TopicRouteData([QueueData(broker.broker_name, 4, 4, 6, 0) for broker in brokers], brokers)
    with short():
        narrowed = in_zone(route, "ZONE-1")
    assert len(narrowed.broker_datas) == len(narrowed.queue_datas) == len(brokers) // 2


def test_there_is_room_for_so_many_brokers() -> None:
    table = RouteTable(NamesrvConfig())
    for n in range(route_table.MAX_BROKERS):
        put(table, f"b-{n}", topics_body("A", "B"))
    with pytest.raises(RequestRefused, match=f"{route_table.MAX_BROKERS} brokers are there"):
        put(table, "one-more", topics_body("A", "B"))
    put(table, "b-1", topics_body("A", "C", version=2))
    table.connections_closed(["b-0"])
    put(table, "one-more", topics_body("A", "B"))


def test_there_is_room_for_so_many_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    change_constant(monkeypatch, "route_table.MAX_TOPICS", 3)
    table = RouteTable(NamesrvConfig())
    put(table, "a", topics_body("A", "B", "C"))
    put(table, "b", topics_body("A", "B", "C"))
    with pytest.raises(RequestRefused, match="more than 3 topics"):
        put(table, "c", topics_body("A", "D"))
    assert "c" not in table.cluster_info().broker_addr_table


@pytest.mark.parametrize(
    ("bound", "value", "body"),
    [
        ("MAX_TOPICS", 2, topics_body("A", "B", "C")),
        ("MAX_FORMS", 2, topics_body(*(TopicConfig(f"t-{n}", n, n) for n in range(3)))),
        ("MAX_FILTER_SERVERS", 2, topics_body("A", "B", filter_servers=["1:1", "2:2", "3:3"])),
        ("MAX_NAME_LENGTH", 20, topics_body("A", "B", filter_servers=["f" * 21])),
    ],
)
async def test_a_registration_has_bounds(
    server: NameServer,
    client: RemotingClient,
    monkeypatch: pytest.MonkeyPatch,
    bound: str,
    value: int,
    body: RegisterBrokerBody,
) -> None:
    monkeypatch.setattr(registration_module, bound, value)
    for compressed in (False, True):
        with pytest.raises(BrokerError, match=r"may register|filter servers"):
            await client.call(server.address, registration(broker_header(compressed=compressed), body))
    assert server.table.all_topics().topic_list == []


@pytest.mark.parametrize(
    ("code", "header", "body"),
    [
        (
            RequestCode.REGISTER_TOPIC_IN_NAMESRV,
            TopicRequestHeader(topic="A"),
            encode_json({"queueDatas": [{}] * 200_000}),
        ),
        (RequestCode.UPDATE_NAMESRV_CONFIG, None, b"a=b\n" * 100_000),
        (RequestCode.QUERY_DATA_VERSION, broker_header(), b"[" * 1_000_000),
    ],
    ids=["register-topic", "update-config", "data-version"],
)
async def test_other_bodies_have_bounds_too(
    server: NameServer, client: RemotingClient, code: int, header: object, body: bytes
) -> None:
    await client.connection(server.address)
    async with loop_steps() as timer:
        with pytest.raises(BrokerError, match=r"larger than|too many"):
            await client.call(server.address, RemotingCommand.request(code, header, body))
    assert timer.longest < LONGEST_S


async def test_so_many_brokers_are_told_at_a_time(
    server: NameServer, client: RemotingClient, config: NamesrvConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_constant(monkeypatch, "notifications.MAX_UNDER_WAY", 5)
    config.notify_min_broker_id_changed = True
    body = topics_body("A", "B")
    for broker_id in range(20, 0, -1):
        header = broker_header("a", f"192.0.2.{broker_id}:1", broker_id=broker_id, acting=True)
        await client.call(server.address, registration(header, body))
        assert len(server.notifications) <= 5
