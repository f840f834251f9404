"""The commands of mqadmin for lite topics print the same of this project's broker as `gantry admin`."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from programs import mqadmin
from servers import Server, gantry_broker, gantry_command, gantry_namesrv

from gantrymq import LiteSimpleConsumer, Message, OffsetOption, Producer
from gantrymq.client.admin.client import AdminClient
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.bodies.topic_config import TopicConfig

pytestmark = [
    pytest.mark.interop(feature="mqadmin", clients="java", servers="gantry"),
    # Each command starts a JVM.
    pytest.mark.timeout(600),
]

TOPIC, GROUP = "sessions", "agents"


class Cluster:
    """A NameServer and a broker with lite topics."""

    def __init__(self, name_server: str, broker: str) -> None:
        self.name_server = name_server
        self.broker = broker

    def mqadmin(self, command: str, *args: str) -> list[list[str]]:
        """Returns the words of each line that mqadmin prints."""
        text = mqadmin(self.name_server, command, *args)
        return [line.split() for line in text.splitlines() if line.strip()]

    def ours(self, command: str, *args: str) -> list[dict[str, Any]]:
        """Returns the document of `gantry admin`, a list with one row for each broker."""
        line = gantry_command("admin", command, *args, "-n", self.name_server, "--json")
        done = subprocess.run(line, capture_output=True, text=True, check=True)
        rows: list[dict[str, Any]] = json.loads(done.stdout)
        return rows


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory: Path = tmp_path_factory.mktemp("lite-admin")
    servers: list[Server] = []
    try:
        servers.append(gantry_namesrv(directory / "namesrv"))
        servers.append(gantry_broker(directory / "broker", servers[0].address, enableLmq="true"))
        yield Cluster(servers[0].address, servers[1].address)
    finally:
        for server in reversed(servers):
            server.kill()


@asynccontextmanager
async def subscribed(cluster: Cluster) -> AsyncIterator[str]:
    """Runs a consumer of two lite topics with 3 messages and 1 message. Yields its client id."""
    async with AdminClient(cluster.name_server) as admin:
        attributes = {"+message.type": "LITE", "+lite.topic.expiration": "60"}
        await admin.create_topic(TopicConfig(TOPIC, 4, 4, attributes=attributes), cluster="DefaultCluster")
        group = SubscriptionGroupConfig(GROUP, attributes={"+lite.bind.topic": TOPIC})
        await admin.create_group(group, cluster="DefaultCluster")
        async with (
            Producer(cluster.name_server, "producers") as producer,
            LiteSimpleConsumer(cluster.name_server, GROUP, TOPIC) as consumer,
        ):
            for name, count in (("one", 3), ("two", 1)):
                for _ in range(count):
                    await producer.send(Message(TOPIC, b"x", lite_topic=name), timeout=10)
                await consumer.subscribe_lite(name, offset_option=OffsetOption.min_offset())
            [client] = (await admin.consumer_connection(GROUP, cluster.broker)).connection_set
            yield client.client_id


def test_commands_for_lite_topics(cluster: Cluster) -> None:
    async def compare() -> None:
        async with subscribed(cluster) as client_id:
            await asyncio.to_thread(_compare, cluster, client_id)

    asyncio.run(compare())


def _compare(cluster: Cluster, client_id: str) -> None:
    [row] = cluster.ours("getBrokerLiteInfo", "-b", cluster.broker)
    figures = ("storeType", "maxLmqNum", "currentLmqNum", "liteSubscriptionCount", "orderInfoCount", "cqTableSize")
    java = cluster.mqadmin("getBrokerLiteInfo", "-b", cluster.broker, "-d")
    words = next(line for line in java if line[0] == cluster.broker)
    assert words[1:7] == [str(row[name]) for name in figures]
    assert ["Topic", "Meta:", json.dumps(row["topicMeta"], separators=(",", ":"))] in java
    assert ["Group", "Meta:", json.dumps(row["groupMeta"], separators=(",", ":"))] in java

    [row] = cluster.ours("getParentTopicInfo", "-p", TOPIC)
    java = cluster.mqadmin("getParentTopicInfo", "-p", TOPIC)
    expected = [row["brokerName"], row["ttl"], row["liteTopicCount"], row["lmqNum"], f"[{', '.join(row['groups'])}]"]
    assert list(map(str, expected)) in java

    [row] = cluster.ours("getLiteTopicInfo", "-p", TOPIC, "-l", "one")
    java = cluster.mqadmin("getLiteTopicInfo", "-p", TOPIC, "-l", "one", "-s")
    words = next(line for line in java if line[0] == row["brokerName"])
    assert words[1:3] == [str(row["minOffset"]), str(row["maxOffset"])]
    assert words[-2:] == [str(row["shardingToBroker"]).lower(), "1"]
    assert [f"[{client_id}@{GROUP}]"] in java

    [row] = cluster.ours("getLiteClientInfo", "-p", TOPIC, "-g", GROUP, "-c", client_id)
    java = cluster.mqadmin("getLiteClientInfo", "-p", TOPIC, "-g", GROUP, "-c", client_id, "-s")
    assert [row["brokerName"], str(row["liteTopicCount"]), "N/A", "N/A"] in java
    names = next(line for line in java if line[:2] == ["Lite", "Topics:"])[2:]
    assert sorted(name.strip("[,]") for name in names) == sorted(row["liteTopicSet"])

    [row] = cluster.ours("getLiteGroupInfo", "-p", TOPIC, "-g", GROUP)
    java = cluster.mqadmin("getLiteGroupInfo", "-p", TOPIC, "-g", GROUP)
    for lag in row["lagCountTopK"]:
        # The first word is the rank.
        assert [lag["liteTopic"], str(lag["lagCount"])] in [line[1:3] for line in java]

    assert ["broker-a", "dispatched"] in cluster.mqadmin("triggerLiteDispatch", "-p", TOPIC, "-g", GROUP)
    [document] = [cluster.ours("triggerLiteDispatch", "-p", TOPIC, "-g", GROUP)]
    assert document == {"group": GROUP, "brokers": ["broker-a"]}
