"""The assignment of queues to pop consumers: QUERY_ASSIGNMENT and SET_MESSAGE_REQUEST_MODE."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from broker_support import Peer, config, run_again

from gantrymq.broker.broker import Broker
from gantrymq.broker.consumers.query_assignment import allocate
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.namesrv.server import NameServer
from gantrymq.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from gantrymq.protocol.bodies.pop import MODE_POP, MODE_PULL, RequestMode
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.message import MessageQueue
from gantrymq.remoting.client import RemotingClient

TOPIC, GROUP = "orders", "poppers"
QUEUES = [MessageQueue("t", broker, queue_id) for broker in ("a", "b") for queue_id in range(4)]


def mode(name: str, share: int = 0) -> RequestMode:
    return RequestMode("t", "g", name, share)


def test_all_share_all_queues() -> None:
    every = [MessageQueue("t", "a", -1)] * 4 + [MessageQueue("t", "b", -1)] * 4
    for share in (-1, 0, 1, 8):
        assert allocate("c1", ["c1", "c2"], QUEUES, mode(MODE_POP, share), "AVG") == every


def test_clients_share_with_their_neighbours() -> None:
    clients = ["c3", "c1", "c2", "c0"]
    assert allocate("c0", clients, QUEUES, mode(MODE_POP, 1), "AVG") == QUEUES[:4]
    assert allocate("c3", clients, QUEUES, mode(MODE_POP, 2), "AVG") == [*QUEUES[6:], *QUEUES[:4]]
    assert allocate("c1", clients, QUEUES, mode(MODE_POP, 1), "AVG_BY_CIRCLE") == [*QUEUES[1::4], *QUEUES[2::4]]
    # There are more clients than queues: each client gets one queue.
    many = [f"c{i:02}" for i in range(12)]
    assert allocate("c09", many, QUEUES, mode(MODE_POP, 1), "AVG") == [QUEUES[1]]


def test_who_pulls_has_queues_of_its_own() -> None:
    parts = [allocate(client, ["c1", "c2", "c3"], QUEUES, mode(MODE_PULL), "AVG") for client in ("c1", "c2", "c3")]
    assert parts == [QUEUES[:3], QUEUES[3:6], QUEUES[6:]]
    assert allocate("stranger", ["c1"], QUEUES, mode(MODE_PULL), "AVG") == []
    assert allocate("c1", ["c1"], QUEUES, mode(MODE_PULL), "MY_OWN") is None


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[list[Broker]]:
    """Two brokers with the topic, registered with one NameServer."""
    server = NameServer(NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=tmp_path / "kv.json"))
    await server.start()
    brokers = []
    for name in ("broker-a", "broker-b"):
        settings = config(tmp_path / name, namesrv_addr=[server.address])
        settings.broker_name = name
        broker = Broker(settings)
        await broker.start()
        broker.topics.put(TopicConfig(TOPIC, 2, 2))
        await run_again(broker.jobs, f"register with {server.address}")
        brokers.append(broker)
    yield brokers
    for broker in brokers:
        await broker.stop()
    await server.stop()


async def query(peer: Peer, topic: str = TOPIC) -> list[tuple[str, int, str]] | None:
    body = {
        "topic": topic,
        "consumerGroup": GROUP,
        "clientId": "client-1",
        "strategyName": "AVG",
        "messageModel": "CLUSTERING",
    }
    response = await peer.ask(RequestCode.QUERY_ASSIGNMENT, body=json.dumps(body).encode())
    assert response.code == ResponseCode.SUCCESS
    found = json.loads(response.body).get("messageQueueAssignments")
    if found is None:
        return None
    return sorted((one["messageQueue"]["brokerName"], one["messageQueue"]["queueId"], one["mode"]) for one in found)


async def set_mode(peer: Peer, **changed: object) -> int:
    body = {"topic": TOPIC, "consumerGroup": GROUP, "mode": "POP", "popShareQueueNum": 8} | changed
    return (await peer.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=json.dumps(body).encode())).code


async def test_the_broker_assigns(brokers: list[Broker], remoting: RemotingClient, tmp_path: Path) -> None:
    peer = Peer(await remoting.connection(f"127.0.0.1:{brokers[0].port}"))
    assert await query(peer) is None
    heartbeat = HeartbeatData("client-1", consumer_data_set=[ConsumerData(GROUP, subscription_data_set=[])])
    heartbeat.consumer_data_set[0].subscription_data_set.append(SubscriptionData(TOPIC))
    await peer.ask(RequestCode.HEART_BEAT, body=encode_json(heartbeat))

    own = [(name, queue_id, "PULL") for name in ("broker-a", "broker-b") for queue_id in range(2)]
    assert await query(peer) == own
    assert await set_mode(peer) == ResponseCode.SUCCESS
    assert await query(peer) == [("broker-a", -1, "POP"), ("broker-b", -1, "POP")]
    assert await query(peer, "nowhere") is None
    retry = await query(peer, f"%RETRY%{GROUP}")
    assert retry is not None
    assert {found[2] for found in retry} == {"PULL"}

    saved = json.loads((brokers[0].config.store.config_directory / "messageRequestMode.json").read_bytes())
    assert saved["messageRequestModeMap"][TOPIC][GROUP]["mode"] == "POP"
    everything = await peer.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    assert json.loads(everything.body) == saved


async def test_modes_that_cannot_be(broker: Broker, remoting: RemotingClient) -> None:
    peer = Peer(await remoting.connection(f"127.0.0.1:{broker.port}"))
    broker.topics.put(TopicConfig(TOPIC, 2, 2))
    assert await set_mode(peer, topic="nowhere") == ResponseCode.TOPIC_NOT_EXIST
    assert await set_mode(peer, topic=f"%RETRY%{GROUP}") == ResponseCode.NO_PERMISSION
    assert await set_mode(peer, mode="PUSH") == ResponseCode.INVALID_PARAMETER
    assert await set_mode(peer, consumerGroup="bad group") == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_no_name_server_answers(tmp_path: Path, remoting: RemotingClient) -> None:
    broker = Broker(config(tmp_path / "store", namesrv_addr=["127.0.0.1:1"]))
    await broker.start()
    try:
        peer = Peer(await remoting.connection(f"127.0.0.1:{broker.port}"))
        body = json.dumps({"topic": TOPIC, "consumerGroup": GROUP, "clientId": "c"}).encode()
        response = await peer.ask(RequestCode.QUERY_ASSIGNMENT, body=body)
        assert response.code == ResponseCode.SYSTEM_ERROR
    finally:
        await broker.stop()
