"""Limits on the memory that heartbeats, pulls and sends can use."""

from __future__ import annotations

import pytest
from broker_support import Peer
from constants import change_constant

from gantrymq.broker.broker import Broker
from gantrymq.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.fastjson import encode_json


async def beat(peer: Peer, data: HeartbeatData) -> int:
    return (await peer.ask(RequestCode.HEART_BEAT, body=encode_json(data))).code


async def test_a_client_id_has_a_length(peer: Peer, broker: Broker) -> None:
    for length, code in ((255, ResponseCode.SUCCESS), (256, ResponseCode.INVALID_PARAMETER)):
        data = HeartbeatData("x" * length, [ProducerData("producers")])
        assert await beat(peer, data) == code
    assert len(broker.members.producers["producers"]) == 1


async def test_names_that_no_group_has_are_kept_for_nobody(peer: Peer, broker: Broker) -> None:
    names = ["", "a b", "x" * 300, "producers"]
    data = HeartbeatData("client", [*map(ProducerData, names)], [*map(ConsumerData, names[:3])])
    assert await beat(peer, data) == ResponseCode.SUCCESS
    assert (list(broker.members.producers), list(broker.members.consumers)) == (["producers"], [])


async def test_clients_make_some_groups_and_topics_by_themselves(
    peer: Peer, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await peer.send("first", b"x")
    broker.groups.get("first")
    change_constant(monkeypatch, "subscription_groups.MAX_MADE_BY_CLIENTS", 2)
    change_constant(monkeypatch, "topics.MAX_MADE_BY_CLIENTS", len(broker.topics.table.topic_config_table) + 1)
    assert (await peer.send("second", b"x")).code == ResponseCode.SUCCESS
    answer = await peer.send("third", b"x")
    assert (answer.code, "updateTopic" in (answer.remark or "")) == (ResponseCode.TOPIC_NOT_EXIST, True)
    assert broker.groups.get("second") is not None
    assert (await peer.pull("first", group="third")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    body = encode_json({"groupName": "third"})
    assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)).code == ResponseCode.SUCCESS
    assert (await peer.pull("first", group="third")).code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
