"""Tests of the commands for lite topics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from admin_support import CLUSTER, Admin, admin

from gantrymq.cli.main import run
from gantrymq.client.producing.producer import Producer
from gantrymq.protocol.bodies.lite import (
    POLICY_MIN,
    LiteSubscription,
    LiteSubscriptionAction,
    LiteSubscriptionCtlBody,
    OffsetOption,
    OffsetOptionType,
)
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.lite_topic import light_queue_of
from gantrymq.protocol.message import Message
from gantrymq.protocol.properties import LITE_TOPIC
from gantrymq.remoting.client import RemotingClient
from gantrymq.sync import SyncProducer
from gantrymq.testing.embedded import EmbeddedCluster

__all__ = ["admin"]

#: The group begins to read at the first message.
FIRST = OffsetOption(OffsetOptionType.POLICY, POLICY_MIN)


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """A cluster with 3 messages in the lite topic "one" and 1 in "two", to which a client has subscribed."""
    with EmbeddedCluster(enable_lmq=True) as cluster:
        attributes = ["-a", "+message.type=LITE,+lite.topic.expiration=60"]
        end = ["-c", CLUSTER, "-n", cluster.name_server]
        assert run(["admin", "updateTopic", "-t", "sessions", *attributes, *end]) == 0
        attributes = ["--attributes", "+lite.bind.topic=sessions"]
        assert run(["admin", "updateSubGroup", "-g", "agents", *attributes, *end]) == 0
        with SyncProducer(Producer(cluster.name_server, "producers")) as producer:
            for name in ("one", "one", "one", "two"):
                producer.send(Message("sessions", b"x", properties={LITE_TOPIC: name}))
        change = LiteSubscription(LiteSubscriptionAction.PARTIAL_ADD, "client", "agents", "sessions", ["two"], FIRST)
        body = encode_json(LiteSubscriptionCtlBody([change]))

        async def subscribe() -> None:
            remoting = RemotingClient()
            try:
                request = RemotingCommand.request(RequestCode.LITE_SUBSCRIPTION_CTL, body=body)
                response = await remoting.invoke(cluster.brokers[0], request)
                assert response.code == ResponseCode.SUCCESS, response.remark
            finally:
                await remoting.close()

        asyncio.run(subscribe())
        yield cluster


def test_a_broker(admin: Admin, cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = admin("getBrokerLiteInfo", "-b", cluster.brokers[0])
    assert admin("getBrokerLiteInfo", "-c", CLUSTER) == [row]
    assert (row["currentLmqNum"], row["liteSubscriptionCount"]) == (2, 1)
    assert run(["admin", "getBrokerLiteInfo", "-c", CLUSTER, "-d", "-n", cluster.name_server]) == 0
    out = capsys.readouterr().out
    assert '"sessions":60' in out
    assert '"sessions":["agents"]' in out
    assert run(["admin", "getBrokerLiteInfo", "-n", cluster.name_server]) == 2


def test_a_parent_topic(admin: Admin, cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = admin("getParentTopicInfo", "-p", "sessions")
    assert (row["ttl"], row["liteTopicCount"], row["groups"]) == (60, 2, ["agents"])
    assert run(["admin", "getParentTopicInfo", "-p", "sessions", "-n", cluster.name_server]) == 0
    assert "60 min" in capsys.readouterr().out
    assert run(["admin", "getParentTopicInfo", "-p", "nowhere", "-n", cluster.name_server]) == 1


def test_a_lite_topic(admin: Admin, cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = admin("getLiteTopicInfo", "-p", "sessions", "-l", "two")
    assert (row["minOffset"], row["maxOffset"], row["shardingToBroker"]) == (0, 1, True)
    assert row["subscribers"] == [{"clientId": "client", "group": "agents"}]
    assert run(["admin", "getLiteTopicInfo", "-p", "sessions", "-l", "two", "-s", "-n", cluster.name_server]) == 0
    out = capsys.readouterr().out
    assert "client" in out
    assert "agents" in out


def test_a_client(admin: Admin, cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["getLiteClientInfo", "-p", "sessions", "-g", "agents", "-c"]
    (row,) = admin(*arguments, "client")
    assert (row["liteTopicCount"], row["liteTopicSet"]) == (1, [light_queue_of("sessions", "two")])
    assert admin(*arguments, "other")[0]["liteTopicCount"] == -1
    assert run(["admin", *arguments, "client", "-s", "-n", cluster.name_server]) == 0
    assert light_queue_of("sessions", "two") in capsys.readouterr().out


def test_a_group(admin: Admin, cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["getLiteGroupInfo", "-p", "sessions", "-g", "agents"]
    (row,) = admin(*arguments)
    assert row["totalLagCount"] == sum(each["lagCount"] for each in row["lagCountTopK"])
    (row,) = admin(*arguments, "-l", "two")
    assert row["totalLagCount"] == 1
    assert run(["admin", *arguments, "-n", cluster.name_server]) == 0
    assert "Largest lags" in capsys.readouterr().out
    assert run(["admin", *arguments, "-l", "two", "-n", cluster.name_server]) == 0
    assert "Total lag: 1 messages" in capsys.readouterr().out


def test_the_dispatch(admin: Admin) -> None:
    arguments = ["triggerLiteDispatch", "-p", "sessions", "-g", "agents"]
    assert admin(*arguments, "-c", "client")["brokers"] == ["broker-a"]
    assert admin(*arguments, "-b", "another")["brokers"] == []
