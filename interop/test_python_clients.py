"""This project's clients together with Apache's, with each combination of NameServer and broker."""

from __future__ import annotations

import asyncio

import pytest
from conftest import ALL_VERSIONS, Cluster
from programs import SERIALIZE_TYPES, Sent, consume, produce, sample

from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.protocol.compression import CompressionType
from gantrymq.protocol.message import Message, MessageExt

pytestmark = [
    pytest.mark.interop(feature="send and receive", clients="java gantry", servers="{cluster}"),
    ALL_VERSIONS,
]

CONSUME_TIMEOUT_S = 60.0


def to_message(topic: str, sent: Sent) -> Message:
    return Message(topic, sent.body, tags=sent.tags, keys=sent.keys, flag=sent.flag, properties=dict(sent.properties))


def from_message(message: MessageExt) -> Sent:
    return Sent.of_parts(message.body, message.tags, message.properties.get("KEYS"), message.flag, message.properties)


async def test_python_producer_to_java_consumer(cluster: Cluster, topic: str) -> None:
    singles, batch, oneway = sample(20), sample(20, first=100), sample(5, first=200)
    big = [Sent(b"compressible " * 2000, tags=kind.name) for kind in CompressionType]
    async with Producer(cluster.address, "interop_python") as producer:
        for sent in singles:
            await producer.send(to_message(topic, sent), timeout=10)
        await producer.send_batch([to_message(topic, sent) for sent in batch], timeout=10)
        for sent in oneway:
            await producer.send_oneway(to_message(topic, sent))
    for kind, sent in zip(CompressionType, big, strict=True):
        async with Producer(cluster.address, "interop_python", compression=kind) as producer:
            await producer.send(to_message(topic, sent), timeout=10)
    everything = singles + batch + oneway + big

    received = await asyncio.to_thread(consume, cluster.address, topic, len(everything))

    assert sorted(map(Sent.of, received)) == sorted(everything)


async def test_java_producer_to_python_push_consumer(cluster: Cluster, topic: str) -> None:
    everything: list[Sent] = []
    for number, serialize_type in enumerate(SERIALIZE_TYPES):
        sent = [*sample(20, first=100 * number), Sent(b"compressible " * 2000, tags=serialize_type)]
        lines = [message.line() for message in sent]
        await asyncio.to_thread(produce, cluster.address, topic, lines, serialize_type=serialize_type)
        everything += sent
    received: list[Sent] = []
    complete = asyncio.Event()

    async def handle(message: MessageExt) -> None:
        received.append(from_message(message))
        if len(received) == len(everything):
            complete.set()

    consumer = PushConsumer(cluster.address, "interop_python", handle, start_from="earliest")
    consumer.subscribe(topic)
    async with consumer, asyncio.timeout(CONSUME_TIMEOUT_S):
        await complete.wait()

    assert sorted(received) == sorted(everything)


async def test_java_producer_to_python_pull_consumer(cluster: Cluster, topic: str) -> None:
    sent = sample(30)
    await asyncio.to_thread(produce, cluster.address, topic, [message.line() for message in sent], mode="batch")
    received: list[Sent] = []

    consumer = LitePullConsumer(cluster.address, "interop_python", start_from="earliest")
    consumer.subscribe(topic)
    async with consumer, asyncio.timeout(CONSUME_TIMEOUT_S):
        while len(received) < len(sent):
            received += map(from_message, await consumer.poll())

    assert sorted(received) == sorted(sent)


async def test_java_and_python_consumer_share_a_topic(cluster: Cluster, topic: str) -> None:
    """The Java consumer continues at the offsets that the Python consumer committed."""
    first, second = sample(20), sample(20, first=20)
    group = "interop_shared"
    async with Producer(cluster.address, "interop_python") as producer:
        for sent in first:
            await producer.send(to_message(topic, sent), timeout=10)
        consumer = LitePullConsumer(cluster.address, group, start_from="earliest")
        consumer.subscribe(topic)
        async with consumer, asyncio.timeout(CONSUME_TIMEOUT_S):
            count = 0
            while count < len(first):
                count += len(await consumer.poll())
            await consumer.commit()
        for sent in second:
            await producer.send(to_message(topic, sent), timeout=10)

    received = await asyncio.to_thread(consume, cluster.address, topic, len(second), group=group)

    assert sorted(map(Sent.of, received)) == sorted(second)
