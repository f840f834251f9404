"""Tests of `gantry admin` commands that a broker relays to a consumer, or that need a scripted broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from admin_support import CLUSTER, cluster
from wait_until import until

from gantrymq.cli.main import run
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.producing.producer import Producer
from gantrymq.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.headers.group import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
)
from gantrymq.protocol.message import Message
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import Connection
from gantrymq.remoting.listener import ListenOptions
from gantrymq.remoting.server import RemotingServer
from gantrymq.testing.embedded import EmbeddedCluster

__all__ = ["cluster"]

GROUP = "relayed"
CLIENT_ID = "10.0.0.7@1#2"
#: Running info in the form that a Java consumer writes: objects as keys, numbers as doubles.
RUNNING_INFO = b"""{"jstack":"a stack","mqPopTable":{},"mqTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:
{"cachedMsgCount":3,"cachedMsgMaxOffset":9,"cachedMsgMinOffset":7,"cachedMsgSizeInMiB":1,"commitOffset":7,
"droped":false,"lastConsumeTimestamp":1700000000000,"lastLockTimestamp":0,"lastPullTimestamp":1700000000001,
"locked":false,"transactionMsgCount":0,"tryUnlockTimes":0}},"properties":{"PROP_CONSUME_TYPE":"CONSUME_PASSIVELY"},
"statusTable":{"T":{"consumeFailedMsgs":0,"consumeFailedTPS":0.0,"consumeOKTPS":1.5,"consumeRT":2.5,"pullRT":0.5,
"pullTPS":3.0}},"subscriptionSet":[{"classFilterMode":false,"codeSet":[],"expressionType":"TAG","subString":"*",
"subVersion":1,"tagsSet":[],"topic":"T"}],"userConsumerInfo":{}}"""


async def has_topic(admin: AdminClient, topic: str) -> bool:
    return topic in await admin.topic_list()


@pytest.fixture
async def asked(cluster: EmbeddedCluster) -> AsyncIterator[list[Any]]:
    """Connects a consumer and returns the headers of the requests that it receives."""
    headers: list[Any] = []

    def running_info(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        headers.append(request.read_header(GetConsumerRunningInfoRequestHeader))
        return RemotingCommand.response(body=RUNNING_INFO)

    def consume(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        headers.append(request.read_header(ConsumeMessageDirectlyResultRequestHeader))
        body = b'{"autoCommit":true,"consumeResult":"CR_SUCCESS","order":false,"spentTimeMills":4}'
        return RemotingCommand.response(body=body)

    handlers = {
        RequestCode.GET_CONSUMER_RUNNING_INFO: running_info,
        RequestCode.CONSUME_MESSAGE_DIRECTLY: consume,
    }
    async with AdminClient(cluster.name_server) as admin:
        await admin.create_group(SubscriptionGroupConfig(GROUP), cluster=CLUSTER)
        for topic in ("T", f"%RETRY%{GROUP}"):
            await admin.create_topic(TopicConfig(topic, 1, 1), cluster=CLUSTER)
            await until(lambda topic=topic: has_topic(admin, topic))
    consumer = RemotingClient(handlers)
    data = HeartbeatData(
        CLIENT_ID, consumer_data_set=[ConsumerData(GROUP, subscription_data_set=[SubscriptionData("T")])]
    )
    heartbeat = RemotingCommand.request(RequestCode.HEART_BEAT, body=encode_json(data))
    await consumer.call(cluster.brokers[0], heartbeat)
    yield headers
    await consumer.close()


async def gantry(cluster: EmbeddedCluster, *arguments: str) -> int:
    """Runs a command in a thread, so that this event loop can respond, and returns its exit code."""
    return await asyncio.to_thread(run, ["admin", *arguments, "-n", cluster.name_server])


async def test_consumer_status(cluster: EmbeddedCluster, asked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert await gantry(cluster, "consumerStatus", "-g", GROUP, "-s", "--json") == 0
    (status,) = json.loads(capsys.readouterr().out)
    assert (status["clientId"], status["jstack"]) == (CLIENT_ID, "a stack")
    assert status["mqTable"][0]["brokerName"] == "broker-a"
    assert status["mqTable"][0]["cachedMsgCount"] == 3
    assert status["statusTable"][0]["consumeOKTPS"] == 1.5
    assert [(header.client_id, header.jstack_enable) for header in asked] == [(CLIENT_ID, True)]
    assert await gantry(cluster, "consumerStatus", "-g", GROUP) == 0
    out = capsys.readouterr().out
    assert f"Consumer {CLIENT_ID}" in out
    assert "PROP_CONSUME_TYPE" in out


async def test_progress_with_readers(
    cluster: EmbeddedCluster, asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert await gantry(cluster, "consumerProgress", "-g", GROUP, "-t", "T", "-s", "true", "--json") == 0
    progress = json.loads(capsys.readouterr().out)
    assert [(row["queueId"], row["clientIP"]) for row in progress["queues"]] == [(0, "10.0.0.7")]


async def test_a_message_is_consumed_at_once(
    cluster: EmbeddedCluster, asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    async with Producer(cluster.name_server, "producers") as producer:
        sent = await producer.send(Message("T", b"hello"))
    arguments = ["-t", "T", "-i", sent.offset_msg_id, "-g", GROUP, "-d", CLIENT_ID]
    assert await gantry(cluster, "queryMsgById", *arguments, "--json") == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert (result["consumeResult"], result["spentTimeMills"]) == ("CR_SUCCESS", 4)
    assert [(header.client_id, header.msg_id) for header in asked] == [(CLIENT_ID, sent.offset_msg_id)]


async def test_set_consume_mode(cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    bodies = []

    def set_mode(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        bodies.append(decode_json(request.body, dict[str, Any]))
        return RemotingCommand.response()

    server = RemotingServer({RequestCode.SET_MESSAGE_REQUEST_MODE: set_mode}, ListenOptions("127.0.0.1"))
    await server.start()
    address = f"127.0.0.1:{server.port}"
    arguments = ["-b", address, "-t", "T", "-g", GROUP, "-m", "POP", "-q", "4"]
    assert await gantry(cluster, "setConsumeMode", *arguments) == 0
    await server.stop()
    assert bodies == [{"topic": "T", "consumerGroup": GROUP, "mode": "POP", "popShareQueueNum": 4}]
    assert capsys.readouterr().out == f"set consume mode to {address} success.\n"


async def test_brokers_of_a_container(cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """The requests of mqadmin's commands. GantryMQ's brokers refuse them."""
    asked = []

    def container(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        asked.append((request.code, request.ext_fields))
        return RemotingCommand.response()

    handlers = dict.fromkeys((RequestCode.ADD_BROKER, RequestCode.REMOVE_BROKER), container)
    server = RemotingServer(handlers, ListenOptions("127.0.0.1"))
    await server.start()
    address = f"127.0.0.1:{server.port}"
    assert await gantry(cluster, "addBroker", "-c", address, "-b", "/etc/b.conf") == 0
    assert await gantry(cluster, "removeBroker", "-c", address, "-b", "C:b:1", "--yes") == 0
    await server.stop()
    assert capsys.readouterr().out == f"add broker to {address} success\nremove broker from {address} success\n"
    assert asked == [
        (RequestCode.ADD_BROKER, {"configPath": "/etc/b.conf"}),
        (RequestCode.REMOVE_BROKER, {"brokerName": "b", "brokerClusterName": "C", "brokerId": "1"}),
    ]
    assert await gantry(cluster, "removeBroker", "-c", address, "-b", "C:b", "--yes") == 2
    assert "must be CLUSTER:NAME:ID" in capsys.readouterr().err
    assert await gantry(cluster, "addBroker", "-c", cluster.brokers[0], "-b", "/etc/b.conf") == 1
    assert "broker containers are not supported: 'gantry broker --processes N' runs" in capsys.readouterr().err
