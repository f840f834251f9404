"""NameServers that have just started and lack the registrations of some brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from math import inf

import pytest
from scripted import ScriptedGroupBroker, ScriptedNameServer, route_over, serving
from wait_until import until

from gantrymq.client.broker_api import BrokerApi
from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.routes import Routes
from gantrymq.errors import BrokerUnavailable, NoRouteInfo, RouteNotReady
from gantrymq.protocol.awaited_brokers import REGISTRATION_PERIOD_MS
from gantrymq.protocol.bodies.route import TopicRouteData
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.private_fields import AWAITED_BROKERS_FIELD, UPTIME_FIELD
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import Connection

A, B, BOTH = (
    route_over({"a": "127.0.0.1:1"}),
    route_over({"b": "127.0.0.1:2"}),
    {"a": "127.0.0.1:1", "b": "127.0.0.1:2"},
)


class YoungNameServer(ScriptedNameServer):
    """A NameServer with an uptime of `uptime_ms`. It awaits the brokers in `away` for every topic."""

    def __init__(self, routes: dict[str, TopicRouteData], away: str = "", uptime_ms: int = 5) -> None:
        super().__init__(routes)
        self.away = away
        self.uptime_ms = uptime_ms
        self.is_ready = True

    def _route(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        response = super()._route(connection, request)
        if not self.is_ready:
            return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, "name server not ready")
        response.ext_fields[UPTIME_FIELD] = str(self.uptime_ms)
        if self.away:
            response.ext_fields[AWAITED_BROKERS_FIELD] = self.away
        return response


@pytest.fixture
async def api() -> AsyncIterator[BrokerApi]:
    remoting = RemotingClient()
    yield BrokerApi(remoting)
    await remoting.close()


def names(route: TopicRouteData) -> list[str]:
    assert [queues.broker_name for queues in route.queue_datas] == [broker.broker_name for broker in route.broker_datas]
    return [broker.broker_name for broker in route.broker_datas]


async def test_the_kept_route_keeps_the_brokers_that_are_awaited(api: BrokerApi) -> None:
    """A broker that is not awaited is removed. A registered one has its new address."""
    name_server = YoungNameServer({"t": route_over({**BOTH, "c": "127.0.0.1:3"})})
    async with serving([name_server]):
        routes = Routes(api, [name_server.address])
        await routes.get("t")
        name_server.routes["t"], name_server.away = route_over({"a": "127.0.0.1:9"}), "b"
        assert names(await routes.refresh("t")) == ["a", "b"]
        assert (routes.master_address("a"), routes.master_address("b")) == ("127.0.0.1:9", "127.0.0.1:2")
        assert len(await routes.read_queues("t")) == 4
        name_server.uptime_ms = REGISTRATION_PERIOD_MS
        assert names(await routes.refresh("t")) == ["a"]


async def test_a_topic_that_no_broker_has_registered_yet_is_kept(api: BrokerApi) -> None:
    name_server = YoungNameServer({"t": route_over(BOTH)})
    async with serving([name_server]):
        routes = Routes(api, [name_server.address])
        kept = await routes.get("t")
        name_server.routes, name_server.away = {}, "a;b"
        assert await routes.refresh("t") == kept


async def test_another_name_server_has_the_whole_route(api: BrokerApi) -> None:
    young, old = YoungNameServer({"t": A}, "b"), ScriptedNameServer({"t": route_over(BOTH)})
    async with serving([young, old]):
        for name_servers in ([young.address, old.address], [old.address, young.address]):
            routes = Routes(api, name_servers)
            assert names(await routes.get("t")) == ["a", "b"]
            assert not routes.awaited("t")


async def test_several_young_name_servers_have_it_together(api: BrokerApi) -> None:
    first, second = YoungNameServer({"t": A}, "b"), YoungNameServer({"t": B}, "a;c")
    async with serving([first, second]):
        routes = Routes(api, [first.address, second.address])
        assert names(await routes.get("t")) == ["a", "b"]
        assert routes.awaited("t") == {"c"}
        second.away = "a"
        assert names(await routes.refresh("t")) == ["a", "b"]
        assert not routes.awaited("t")


async def test_a_partial_route_serves_sends_and_no_rebalance(api: BrokerApi) -> None:
    name_server = YoungNameServer({"t": A}, "b")
    async with serving([name_server]):
        routes = Routes(api, [name_server.address])
        assert [queue.broker_name for queue in await routes.write_queues("t")] == ["a", "a"]
        with pytest.raises(RouteNotReady, match="b, with queues of topic 't', has not registered") as error:
            await routes.read_queues("t")
        assert error.value.brokers == {"b"}
        assert isinstance(error.value, BrokerUnavailable)
        # The client requests the route each second.
        assert await routes.look_again() == 1
        name_server.routes["t"], name_server.away = route_over(BOTH), ""
        assert await routes.look_again() == inf
        assert len(await routes.read_queues("t")) == 4


async def test_a_partial_route_is_final_when_the_period_is_over(api: BrokerApi) -> None:
    name_server = YoungNameServer({"t": A}, "b", REGISTRATION_PERIOD_MS)
    async with serving([name_server]):
        assert len(await Routes(api, [name_server.address]).read_queues("t")) == 2


async def test_a_topic_whose_brokers_are_awaited_is_not_created_elsewhere(api: BrokerApi) -> None:
    name_server = YoungNameServer({"TBW102": A}, "b")
    async with serving([name_server]):
        routes = Routes(api, [name_server.address])
        with pytest.raises(RouteNotReady):
            await routes.get_or_default("t")
        name_server.uptime_ms = REGISTRATION_PERIOD_MS
        assert names(await routes.get_or_default("t")) == ["a"]
        with pytest.raises(NoRouteInfo, match="no route info for topic 'u'"):
            await routes.get("u")


async def test_a_name_server_that_is_not_ready(api: BrokerApi) -> None:
    """The client queries the next NameServer. If there is none, a later attempt can succeed."""
    waiting, other = YoungNameServer({"t": A}), ScriptedNameServer({"t": A})
    waiting.is_ready = False
    async with serving([waiting, other]):
        for name_servers in ([waiting.address, other.address], [other.address, waiting.address]):
            assert names(await Routes(api, name_servers).get("t")) == ["a"]
        routes = Routes(api, [waiting.address])
        with pytest.raises(RouteNotReady, match="waits for brokers"):
            await routes.get_or_default("t")
        waiting.is_ready = True
        assert names(await routes.get_or_default("t")) == ["a"]


async def test_a_consumer_joins_its_group_when_the_route_is_complete() -> None:
    """Otherwise the other members would leave a share of the queues to it, which it cannot take yet."""
    broker = ScriptedGroupBroker()
    name_server = YoungNameServer({"t": route_over({"a": broker.address})}, "b")
    async with serving([name_server, broker]):
        consumer = LitePullConsumer(name_server.address, "group")
        consumer.subscribe("t")
        async with consumer:
            requests = name_server.asked.count("t")
            await until(lambda: name_server.asked.count("t") > requests + 1)
            assert (broker.heartbeats, consumer.assignment) == (0, set())
            name_server.away = ""
            await until(lambda: len(consumer.assignment) == 2)
            assert broker.heartbeats == 1


async def test_a_consumer_of_two_topics_waits_for_both() -> None:
    """The route of one topic is complete. No broker of the other one has registered."""
    broker = ScriptedGroupBroker()
    complete = route_over({"a": broker.address})
    name_server = TwoTopics({"complete": complete})
    async with serving([name_server, broker]):
        consumer = LitePullConsumer(name_server.address, "group")
        consumer.subscribe("complete")
        consumer.subscribe("later")
        async with consumer:
            requests = name_server.asked.count("later")
            await until(lambda: name_server.asked.count("later") > requests + 1)
            assert (broker.heartbeats, consumer.assignment) == (0, set())
            name_server.routes["later"] = complete
            await until(lambda: len(consumer.assignment) == 4)
            assert broker.heartbeats == 1


class TwoTopics(ScriptedNameServer):
    """Awaits a broker of each topic that has no route."""

    def _route(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        response = super()._route(connection, request)
        response.ext_fields[UPTIME_FIELD] = "5"
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            response.ext_fields[AWAITED_BROKERS_FIELD] = "b"
        return response
