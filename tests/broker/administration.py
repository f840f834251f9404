"""Clients and groups for the administration tests."""

from __future__ import annotations

from broker_support import Peer

from gantrymq.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.headers.offset import UpdateConsumerOffsetRequestHeader
from gantrymq.protocol.message import MessageQueue


def queue(topic: str, queue_id: int) -> MessageQueue:
    return MessageQueue(topic, "broker-a", queue_id)


async def beat(peer: Peer, client_id: str, group: str = "consumers", topic: str = "orders") -> None:
    """Sends a heartbeat of a client that both consumes and produces."""
    data = HeartbeatData(
        client_id,
        [ProducerData("producers")],
        [ConsumerData(group, subscription_data_set=[SubscriptionData.parse(topic, "a || b")])],
    )
    assert (await peer.ask(RequestCode.HEART_BEAT, body=encode_json(data))).code == 0


async def create_group(peer: Peer, group: str = "consumers") -> None:
    body = encode_json(SubscriptionGroupConfig(group))
    assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)).code == 0


async def commit(
    peer: Peer, offset: int, *, group: str = "consumers", topic: str = "orders", queue_id: int = 0
) -> None:
    await create_group(peer, group)
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset
    )
    assert (await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)).code == 0


async def send(peer: Peer, count: int, *, topic: str = "orders", queue_id: int = 0) -> None:
    for i in range(count):
        assert (await peer.send(topic, b"body %d" % i, queue_id=queue_id)).code == 0
