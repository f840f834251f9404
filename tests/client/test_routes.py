from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from scripted import ScriptedNameServer, route_over, serving

from gantrymq.client.broker_api import BrokerApi
from gantrymq.client.routes import MAX_FORMER, Routes, read_queues, write_queues
from gantrymq.errors import BodyError, ClientError, NoRouteInfo, RemotingError
from gantrymq.protocol.bodies.route import BrokerData, ClusterInfo, QueueData, TopicRouteData
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.message import MessageQueue
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import Connection
from gantrymq.remoting.listener import ListenOptions
from gantrymq.remoting.server import RemotingServer


@pytest.fixture
async def api() -> AsyncIterator[BrokerApi]:
    remoting = RemotingClient()
    yield BrokerApi(remoting)
    await remoting.close()


def test_writes_go_to_writable_brokers_with_a_master() -> None:
    route = TopicRouteData(
        [
            QueueData("slaves", 1, 1, 6),
            QueueData("b", 1, 2, 6),
            QueueData("a", 4, 1, 6),
            QueueData("readonly", 1, 1, 4),
        ],
        [BrokerData("c", name, {0: "x:1"}) for name in ("a", "b", "readonly")]
        + [BrokerData("c", "slaves", {1: "y:1"})],
    )
    assert write_queues("t", route) == [MessageQueue("t", "a", 0), MessageQueue("t", "b", 0), MessageQueue("t", "b", 1)]


def test_reads_come_from_readable_brokers() -> None:
    route = TopicRouteData([QueueData("b", 1, 9, 6), QueueData("a", 2, 9, 4), QueueData("writeonly", 1, 1, 2)], [])
    assert read_queues("t", route) == [MessageQueue("t", "a", 0), MessageQueue("t", "a", 1), MessageQueue("t", "b", 0)]


async def test_the_next_name_server_answers_for_a_dead_one(api: BrokerApi) -> None:
    name_server = ScriptedNameServer({"t": route_over({"a": "127.0.0.1:7"})})
    async with serving([name_server]):
        routes = Routes(api, ["127.0.0.1:1", "127.0.0.1:2", name_server.address])
        for _ in range(3):
            await routes.refresh("t")
    assert routes.master_address("a") == "127.0.0.1:7"
    assert name_server.asked == ["t"] * 3


@pytest.mark.parametrize("first", [0, 1])
async def test_many_at_once_find_the_name_server_that_answers(api: BrokerApi, first: int) -> None:
    """With concurrent failures, the switch to the next NameServer must not return to the first one."""
    topics = [f"topic{number}" for number in range(10)]
    name_server = ScriptedNameServer({topic: route_over({"a": "127.0.0.1:1"}) for topic in topics})
    async with serving([name_server]):
        routes = Routes(api, ["127.0.0.1:1", name_server.address])
        routes._current = first
        found = await asyncio.gather(*(routes.get(topic) for topic in topics))
    assert found == list(name_server.routes.values())
    # All of them now use this NameServer.
    assert routes.name_servers[routes._current % 2] == name_server.address


async def test_all_name_servers_dead_is_an_error(api: BrokerApi) -> None:
    with pytest.raises(RemotingError):
        await Routes(api, ["127.0.0.1:1", "nonsense"]).get("t")


async def test_no_name_server_is_an_error(api: BrokerApi) -> None:
    with pytest.raises(ClientError):
        Routes(api, [])


async def test_a_route_is_asked_for_once(api: BrokerApi) -> None:
    name_server = ScriptedNameServer({"t": route_over({"a": "127.0.0.1:7"})})
    async with serving([name_server]):
        routes = Routes(api, [name_server.address])
        await asyncio.gather(*(routes.get("t") for _ in range(50)))
        assert name_server.asked == ["t"]


async def test_refreshing_follows_a_broker_that_moved(api: BrokerApi) -> None:
    name_server = ScriptedNameServer(
        {"t": route_over({"a": "127.0.0.1:7"}), "u": route_over({"a": "127.0.0.1:7", "b": "127.0.0.1:9"})}
    )
    async with serving([name_server]):
        routes = Routes(api, [name_server.address])
        await routes.get("u")
        await routes.get("t")
        kept = routes.cached("t")
        await routes.refresh_all()
        assert routes.cached("t") is kept
        name_server.routes["t"] = route_over({"a": "127.0.0.1:8"})
        name_server.routes["u"] = route_over({"a": "127.0.0.1:8", "b": "127.0.0.1:9"})
        await routes.refresh_all()
        assert routes.master_address("a") == "127.0.0.1:8"
        assert routes.broker_address("b", 1) == "127.0.0.1:9"


async def test_the_masters_of_brokers_that_have_left_all_routes_are_known(api: BrokerApi) -> None:
    a, b = {"a": "127.0.0.1:1"}, {"b": "127.0.0.1:2"}
    name_server = ScriptedNameServer({"t": route_over(a | b), "u": route_over(b)})
    async with serving([name_server]):
        routes = Routes(api, [name_server.address])
        await routes.get("t")
        await routes.get("u")
        name_server.routes = {"t": route_over(a), "u": route_over(a)}
        await routes.refresh("t")
        assert routes.former_master("b") is None
        await routes.refresh("u")
        assert (routes.former_master("a"), routes.former_master("b")) == (None, "127.0.0.1:2")
        name_server.routes["t"] = route_over(b)
        await routes.refresh("t")
        assert routes.former_master("b") is None
        for number in range(MAX_FORMER + 1):
            name_server.routes["t"] = route_over({f"broker-{number}": "127.0.0.1:3"})
            await routes.refresh("t")
        await routes.refresh("u")
        assert (routes.former_master("b"), routes.former_master("broker-0")) == (None, "127.0.0.1:3")


async def test_a_route_that_can_not_be_refreshed_is_kept(api: BrokerApi) -> None:
    name_server = ScriptedNameServer({"t": route_over({"a": "127.0.0.1:7"})})
    async with serving([name_server]):
        routes = Routes(api, [name_server.address])
        kept = await routes.get("t")
        name_server.routes.clear()
        await routes.refresh_all()
        assert routes.cached("t") is kept
        with pytest.raises(NoRouteInfo):
            await routes.get("unknown")


async def test_reads_go_to_the_suggested_replica_or_another(api: BrokerApi) -> None:
    route = TopicRouteData([QueueData("a", 1, 1, 6)], [BrokerData("c", "a", {0: "m:1", 2: "s:1"})])
    name_server = ScriptedNameServer({"t": route})
    async with serving([name_server]):
        routes = Routes(api, [name_server.address])
        await routes.get("t")
    assert [routes.broker_address("a", n) for n in (0, 1, 2)] == ["m:1", "m:1", "s:1"]
    assert routes.broker_address("unknown") is None


@pytest.mark.parametrize(
    "queues",
    [[QueueData("a", 30_000_000, 1, 6)], [QueueData("a", 1, 2**31 - 1, 6)], [QueueData("a", 50_000, 1, 6)] * 3],
)
async def test_a_route_with_millions_of_queues_is_not_believed(api: BrokerApi, queues: list[QueueData]) -> None:
    """Thirty million queues would take 43 s and 4 GB. The client queries the next NameServer instead."""
    bad = ScriptedNameServer({"t": TopicRouteData(queues, [BrokerData("c", "a", {0: "127.0.0.1:7"})])})
    good = ScriptedNameServer({"t": route_over({"a": "127.0.0.1:7"})})
    async with serving([bad, good]):
        routes = Routes(api, [bad.address, good.address])
        assert len(await routes.read_queues("t")) == 2
        with pytest.raises(BodyError, match="that can't be"):
            await Routes(api, [bad.address]).get("t")


@pytest.mark.parametrize(
    "conf",
    [
        "a:65536;" * 1000,
        ";".join(f"b{number}:60000" for number in range(2000)),
        "a:" + "9" * 5000,
        "a:\u00b2",
        "a:-1",
        ":3",
        "a",
    ],
    ids=["one broker again and again", "many brokers", "5000 digits", "a power", "negative", "no name", "no number"],
)
async def test_an_order_configuration_that_is_not_believed(api: BrokerApi, conf: str) -> None:
    """The client does not trust the NameServer's text.

    The sum of all brokers' queues is limited, and each error is a ClientError.
    """
    route = route_over({"a": "127.0.0.1:7"})
    route.order_topic_conf = conf
    name_server = ScriptedNameServer({"t": route})
    async with serving([name_server]):
        with pytest.raises(ClientError, match="order configuration") as raised:
            await Routes(api, [name_server.address]).write_queues("t")
    assert len(str(raised.value)) < 400


async def test_an_order_configuration(api: BrokerApi) -> None:
    route = route_over({"a": "127.0.0.1:7"})
    route.order_topic_conf = "a:2;b:1"
    assert write_queues("t", route) == [MessageQueue("t", "a", 0), MessageQueue("t", "a", 1), MessageQueue("t", "b", 0)]


class TellingNameServer(ScriptedNameServer):
    """Also returns brokers. `cluster_asked` counts these requests."""

    def __init__(self, routes: dict[str, TopicRouteData], brokers: list[str]) -> None:
        self.routes = routes
        self.asked = []
        self.cluster_asked = 0
        table = {name: BrokerData("cluster", name, {0: "127.0.0.1:7"}) for name in brokers}

        def answer(connection: Connection, request: RemotingCommand) -> RemotingCommand:
            self.cluster_asked += 1
            return RemotingCommand.response(body=encode_json(ClusterInfo(table, {"cluster": brokers})))

        handlers = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: answer,
        }
        self.server = RemotingServer(handlers, ListenOptions("127.0.0.1"))


@pytest.mark.parametrize(
    ("routes", "brokers", "why"),
    [
        ({}, [], "no broker has registered there"),
        (
            {},
            list("abcde"),
            r"there \(a, b, c and 2 others\), but .*: create it with 'gantry admin updateTopic'",
        ),
        (
            {"TBW102": route_over({"a": "127.0.0.1:7"})},
            ["a"],
            "doesn't exist yet: its first message creates it, or 'gantry admin updateTopic'",
        ),
    ],
    ids=["no broker", "no maker", "not yet"],
)
async def test_an_unknown_topic_says_what_is_ruled_out(
    api: BrokerApi, routes: dict[str, TopicRouteData], brokers: list[str], why: str
) -> None:
    name_server = TellingNameServer(routes, brokers)
    async with serving([name_server]):
        of_client = Routes(api, [name_server.address])
        for _ in range(3):
            with pytest.raises(NoRouteInfo, match=f"which can be reached and answers: .*{why}.*gantry doctor t"):
                await of_client.get("t")
        # The reason is not requested each time.
        assert name_server.cluster_asked == 1
