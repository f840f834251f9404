"""Lite topics and priorities: Apache's gRPC client with Apache's proxy and brokers, and this project's."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from proxies import gantry_proxy, java_client, java_proxy, message
from servers import Server, gantry_broker, gantry_namesrv, java_broker, java_namesrv

from gantrymq.client.admin.client import AdminClient
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.bodies.topic_config import TopicConfig

pytestmark = pytest.mark.interop(feature="lite topics", clients="grpc-java", servers="{cluster}")

#: NameServer, broker and proxy. The first one is all Java. It is the control: it tests the test programs.
PROXIES: dict[str, tuple[Callable[..., Server], Callable[..., Server], Callable[..., Server]]] = {
    "java": (java_namesrv, java_broker, java_proxy),
    "gantry": (gantry_namesrv, gantry_broker, gantry_proxy),
    "gantry-over-java": (java_namesrv, java_broker, gantry_proxy),
    "java-over-gantry": (gantry_namesrv, gantry_broker, java_proxy),
}


class Cluster:
    """A proxy with a broker."""

    def __init__(self, name_server: str, broker: str, proxy: str) -> None:
        self.name_server = name_server
        self.broker = broker
        self.proxy = proxy

    async def new_topic(self, kind: str) -> tuple[str, str]:
        """Creates a topic and a group. Returns their names."""
        topic, group = f"interop_{uuid.uuid4().hex[:8]}", f"interop_group_{uuid.uuid4().hex[:8]}"
        attributes = {"+lite.bind.topic": topic} if kind == "LITE" else {}
        async with AdminClient(self.name_server) as admin:
            config = TopicConfig(topic, 4, 4, attributes={"+message.type": kind})
            await admin.create_topic(config, cluster="DefaultCluster")
            await admin.create_group(SubscriptionGroupConfig(group, attributes=attributes), cluster="DefaultCluster")
        return topic, group


@pytest.fixture(scope="module", params=PROXIES)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    start_namesrv, start_broker, start_proxy = PROXIES[request.param]
    directory: Path = tmp_path_factory.mktemp(f"lite-{request.param}")
    servers: list[Server] = []
    try:
        servers.append(start_namesrv(directory / "namesrv"))
        config = {"enableLmq": "true", "enableMultiDispatch": "true"}
        servers.append(start_broker(directory / "broker", servers[0].address, **config))
        servers.append(start_proxy(directory / "proxy", servers[0].address))
        yield Cluster(*(server.address for server in servers))
    finally:
        for server in reversed(servers):
            server.kill()


@pytest.mark.timeout(300)
def test_messages_of_lite_topics(cluster: Cluster) -> None:
    topic, group = asyncio.run(cluster.new_topic("LITE"))
    client = java_client()
    sent = [message(f"{name}{n}", lite_topic=name) for n in range(5) for name in ("one", "two", "three")]
    client.produce(cluster.proxy, topic, sent)
    received = client.consume_lite(cluster.proxy, group, topic, ["one", "two"], 10)
    for name in ("one", "two"):
        # The client consumes a batch of a lite topic in several threads.
        mine = [one for one in received if one.lite_topic == name]
        assert sorted((one.body, one.attempt) for one in mine) == [(f"{name}{n}", 1) for n in range(5)]


@pytest.mark.timeout(300)
def test_messages_come_again(cluster: Cluster) -> None:
    topic, group = asyncio.run(cluster.new_topic("LITE"))
    client = java_client()
    client.produce(cluster.proxy, topic, [message(f"{n}", lite_topic="one") for n in range(3)])
    received = client.consume_lite(cluster.proxy, group, topic, ["one"], 6, mode="retry", timeout_s=90)
    assert sorted((one.body, one.attempt) for one in received) == [
        (f"{n}", attempt) for n in range(3) for attempt in (1, 2)
    ]


@pytest.mark.timeout(300)
def test_administration(cluster: Cluster) -> None:
    """The answers to mqadmin's requests have the same meaning."""
    topic, group = asyncio.run(cluster.new_topic("LITE"))
    client = java_client()
    client.produce(cluster.proxy, topic, [message(f"{n}", lite_topic=f"lite{n % 2}") for n in range(4)])
    client.consume_lite(cluster.proxy, group, topic, ["lite0"], 2)

    async def check() -> None:
        async with AdminClient(cluster.name_server) as admin:
            parent = await admin.parent_topic_info(cluster.broker, topic)
            assert (parent.topic, parent.ttl, parent.groups) == (topic, -1, [group])
            assert parent.lite_topic_count == 2
            lite = await admin.lite_topic_info(cluster.broker, topic, "lite1")
            assert lite.topic_offset is not None
            assert (lite.topic_offset.min_offset, lite.topic_offset.max_offset) == (0, 2)
            assert lite.topic_offset.last_update_timestamp > 0
            progress = await admin.lite_group_info(cluster.broker, group, "lite0")
            assert progress.total_lag_count in (0, 1, 2)
            broker = await admin.broker_lite_info(cluster.broker)
            assert broker.current_lmq_num >= 2
            assert (broker.topic_meta or {})[topic] == -1
            assert (broker.group_meta or {})[topic] == [group]
            nobody = await admin.lite_client_info(cluster.broker, topic, group, "unknown")
            assert nobody.lite_topic_count == -1

    asyncio.run(check())


@pytest.mark.interop(feature="priorities")
@pytest.mark.timeout(300)
def test_priorities(cluster: Cluster) -> None:
    """Messages with priorities arrive. Brokers' own tests check their order."""
    topic, group = asyncio.run(cluster.new_topic("PRIORITY"))
    client = java_client()
    sent = [message(f"{priority}", priority=priority) for priority in (0, 2, 1, 3)]
    client.produce(cluster.proxy, topic, sent)
    received = client.consume(cluster.proxy, group, topic, 4)
    assert sorted(one.body for one in received) == ["0", "1", "2", "3"]
