"""Pages of lite topics: parent topics, one lite topic, and a group with its lag and its members."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from console_support import CLUSTER, browser, html_of, json_of, text_of
from wait_until import until

from gantrymq import LiteSimpleConsumer, Message, OffsetOption, Producer
from gantrymq.client.admin.client import AdminClient
from gantrymq.console.settings import Settings
from gantrymq.errors import RequestTimeout
from gantrymq.protocol.bodies.connection import ClientConnection, ConsumerConnection
from gantrymq.protocol.bodies.lite import LiteClientInfoBody
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.testing.embedded import EmbeddedCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(2, enable_lmq=True) as cluster:
        yield cluster


@pytest.fixture
async def visitor(cluster: EmbeddedCluster) -> AsyncIterator[httpx.AsyncClient]:
    async with browser(Settings(cluster.name_server, tables_fresh_s=0.2)) as client:
        yield client


async def test_lite_topics(visitor: httpx.AsyncClient, cluster: EmbeddedCluster) -> None:
    assert "No topic of the type LITE" in text_of(await html_of(visitor, "lite-topics"))
    async with AdminClient(cluster.name_server) as admin, Producer(cluster.name_server, "producers") as producer:
        attributes = {"message.type": "LITE", "lite.topic.expiration": "60"}
        await admin.ensure_topic("sessions", queues=4, attributes=attributes)
        group = SubscriptionGroupConfig("agents", attributes={"+lite.bind.topic": "sessions"})
        await admin.create_group(group, cluster=CLUSTER)
        for number in range(20):
            for _ in range(number + 1):
                await producer.send(Message("sessions", b"x", lite_topic=f"session-{number}"))
        async with LiteSimpleConsumer(cluster.name_server, "agents", "sessions") as consumer:
            for number in range(20):
                await consumer.subscribe_lite(f"session-{number}", offset_option=OffsetOption.min_offset())
            (acknowledged, *_) = await consumer.receive(timeout=5)
            await consumer.ack(acknowledged)
            client_id = (await admin.consumer_connection("agents", cluster.brokers[0])).connection_set[0].client_id
            await check_the_list(visitor, client_id)
            await check_the_group(visitor, client_id)


async def check_the_list(visitor: httpx.AsyncClient, client_id: str) -> None:
    page = await json_of(visitor, "lite-topics")
    (row,) = page["table"]["rows"]
    assert row == {"name": "sessions", "lite_topics": 20, "minutes": 60, "groups": ["agents"]}
    assert (page["light_queues"], page["subscriptions"], page["found"], page["unasked"]) == (20, 40, None, [])
    text = text_of(await html_of(visitor, "lite-topics"))
    assert "60 min" in text
    assert "No topic matches" in text_of(await html_of(visitor, "lite-topics", search="unknown"))
    page = await json_of(visitor, "lite-topics", topic="sessions", lite_topic="session-7")
    (used,) = [one for one in page["found"] if one["max_offset"]]
    assert (used["min_offset"], used["max_offset"]) == (0, 8)
    assert used["subscribers"] == [{"group": "agents", "client_id": client_id}]
    assert client_id in await html_of(visitor, "lite-topics", topic="sessions", lite_topic="session-7")
    html = await html_of(visitor, "lite-topics", topic="sessions", lite_topic="unknown")
    assert "No messages and no subscriptions" in text_of(html)


async def check_the_group(visitor: httpx.AsyncClient, client_id: str) -> None:
    async def with_lag() -> bool:
        return (await json_of(visitor, "lite-group", name="agents"))["lag"] == 209

    await until(with_lag)
    page = await json_of(visitor, "lite-group", name="agents")
    assert (page["topic"], page["more_clients"], page["unasked"]) == ("sessions", 0, [])
    assert page["seconds"] >= 0
    lags = [(one["lite_topic"], one["lag"]) for one in page["lags"]]
    assert lags[0] in (("session-19", 20), ("session-19", 19))
    (client,) = page["clients"]
    assert (client["client_id"], client["lite_topics"]) == (client_id, 20)
    assert client["accessed_ms"]
    assert client["consumed_ms"]
    html = await html_of(visitor, "lite-group", name="agents")
    assert client_id in html
    assert "/lite-topics?topic=sessions&amp;lite_topic=session-19" in html
    # An unknown group is no error of the page.
    page = await json_of(visitor, "lite-group", name="unknown")
    assert page["unasked"] == [{"what": "unknown", "why": "no broker has lite topics of this group"}]


async def test_a_topic_and_a_group_of_one_broker(visitor: httpx.AsyncClient, cluster: EmbeddedCluster) -> None:
    """The page has no errors of the other broker."""
    broker = cluster.brokers[0]
    async with AdminClient(cluster.name_server) as admin:
        await admin.create_topic(TopicConfig("local", 1, 1, attributes={"+message.type": "LITE"}), broker=broker)
        group = SubscriptionGroupConfig("locals", attributes={"+lite.bind.topic": "local"})
        await admin.create_group(group, broker=broker)
    page = await json_of(visitor, "lite-topics", topic="local", lite_topic="one")
    assert (page["found"], page["unasked"]) == ([], [])
    page = await json_of(visitor, "lite-group", name="locals")
    assert (page["topic"], page["unasked"]) == ("local", [])
    page = await json_of(visitor, "lite-topics", topic="unknown", lite_topic="one")
    assert page["unasked"] == [{"what": "unknown", "why": "no broker has this topic with the type LITE"}]


async def test_clients_are_queried_concurrently(
    visitor: httpx.AsyncClient, cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page names a broker that fails in these requests."""
    ids = {f"client-{number}" for number in range(20)}
    queried: set[str] = set()
    all_queried = asyncio.Event()

    async def connection(admin: AdminClient, group: str, broker: str | None = None) -> ConsumerConnection:
        return ConsumerConnection([ClientConnection(client_id, "127.0.0.1:1") for client_id in sorted(ids)])

    async def client_info(
        admin: AdminClient, address: str, topic: str, group: str, client_id: str, *, max_count: int = 1000
    ) -> LiteClientInfoBody:
        queried.add(client_id)
        if queried == ids:
            all_queried.set()
        await all_queried.wait()
        if address == cluster.brokers[1]:
            raise RequestTimeout("it hangs", address)
        return LiteClientInfoBody(client_id=client_id, lite_topic_count=3)

    monkeypatch.setattr(AdminClient, "consumer_connection", connection)
    monkeypatch.setattr(AdminClient, "lite_client_info", client_info)
    async with AdminClient(cluster.name_server) as admin:
        await admin.ensure_topic("crowded", queues=1, attributes={"message.type": "LITE"})
        group = SubscriptionGroupConfig("crowd", attributes={"+lite.bind.topic": "crowded"})
        await admin.create_group(group, cluster=CLUSTER)
    page = await json_of(visitor, "lite-group", name="crowd")
    assert [(one["client_id"], one["lite_topics"]) for one in page["clients"]] == [(one, 3) for one in sorted(ids)]
    assert page["unasked"] == [{"what": cluster.brokers[1], "why": "it hangs"}]


async def test_brokers_without_light_queues() -> None:
    with EmbeddedCluster() as cluster:
        async with browser(Settings(cluster.name_server)) as visitor:
            assert "No topic of the type LITE" in text_of(await html_of(visitor, "lite-topics"))
            assert (await json_of(visitor, "lite-topics"))["unasked"] == []
            page = await json_of(visitor, "lite-group", name="agents")
            assert page["unasked"] == [{"what": "agents", "why": "no broker has lite topics of this group"}]
