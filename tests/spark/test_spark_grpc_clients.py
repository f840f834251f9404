"""Tests that Spark reads messages that gRPC clients send through a proxy, and the reverse."""

from __future__ import annotations

import asyncio
import gzip
import uuid
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from pyspark.sql import SparkSession
from running_proxy import running_proxy
from wait_until import until

from gantrymq.proxy.call import METHODS
from gantrymq.proxy.times import to_duration
from gantrymq.proxy.v2 import definition_pb2 as pb
from gantrymq.proxy.v2 import service_pb2 as rpc_pb
from gantrymq.testing.embedded import EmbeddedCluster

pytestmark = pytest.mark.spark

NewTopic = Callable[..., str]


def method(channel: Any, name: str) -> Any:
    """Returns a callable for a method of the service, like a client's stub."""
    path, kind = next((path, kind) for path, kind in METHODS.items() if kind.name == name)
    make = channel.unary_stream if kind.server_streams else channel.unary_unary
    call = make(path, request_serializer=kind.request.SerializeToString, response_deserializer=kind.response.FromString)
    return lambda request: call(request, metadata=(("x-mq-client-id", "client"),), timeout=60)


def test_from_grpc_to_spark(spark: SparkSession, cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    bodies = [b"plain", "gzip \u2713".encode() * 100]
    asyncio.run(send(cluster, topic, bodies))
    options = {"nameServer": cluster.name_server, "subscribe": topic, "includeProperties": "true"}
    rows = spark.read.format("rocketmq").options(**options).load().collect()
    assert sorted((bytes(row.body), row.tags, row.keys, row.properties["число"]) for row in rows) == sorted(
        (body, "t", "a b", "пять") for body in bodies
    )


async def send(cluster: EmbeddedCluster, topic: str, bodies: list[bytes]) -> None:
    """Sends two bodies, the second one compressed with gzip."""
    async with running_proxy(cluster.name_server) as proxy, grpc.aio.insecure_channel(proxy.address) as channel:
        for encoding, body in zip((pb.IDENTITY, pb.GZIP), bodies, strict=True):
            system = pb.SystemProperties(
                message_id=f"01{uuid.uuid4().hex[:30].upper()}",
                message_type=pb.NORMAL,
                body_encoding=encoding,
                tag="t",
                keys=["a", "b"],
            )
            message = pb.Message(
                topic=pb.Resource(name=topic),
                body=gzip.compress(body) if encoding == pb.GZIP else body,
                user_properties={"число": "пять"},
                system_properties=system,
            )
            response = await method(channel, "SendMessage")(rpc_pb.SendMessageRequest(messages=[message]))
            assert response.status.code == pb.OK


def test_from_spark_to_grpc(spark: SparkSession, cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    topic, group = new_topic(1), f"g_{uuid.uuid4().hex[:8]}"
    # A new group starts at the end of the queues.
    assert asyncio.run(receive(cluster, topic, group, 0)) == []
    df = spark.sql("SELECT CAST(CAST(id AS STRING) AS BINARY) AS body, 't' AS tags, 'a b' AS keys FROM range(10)")
    options = {"nameServer": cluster.name_server, "topic": topic}
    df.write.format("rocketmq").options(**options).mode("append").save()
    received = asyncio.run(receive(cluster, topic, group, 10))
    assert sorted(received) == [(b"%d" % n, "t", ["a", "b"]) for n in range(10)]


async def receive(cluster: EmbeddedCluster, topic: str, group: str, count: int) -> list[tuple[bytes, str, list[str]]]:
    """Receives `count` messages with as many requests as needed, at least one to each broker.

    Returns their body, tag and keys.
    """
    received: list[tuple[bytes, str, list[str]]] = []
    waits = {"grpc_client_consumer_min_long_polling_timeout_millis": 0}

    async def receive_of(channel: Any, broker: str) -> None:
        request = rpc_pb.ReceiveMessageRequest(
            group=pb.Resource(name=group),
            message_queue=pb.MessageQueue(topic=pb.Resource(name=topic), broker=pb.Broker(name=broker)),
            filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
            batch_size=32,
            invisible_duration=to_duration(60_000),
            long_polling_timeout=to_duration(100),
        )
        async for answer in method(channel, "ReceiveMessage")(request):
            if answer.HasField("message"):
                system = answer.message.system_properties
                received.append((answer.message.body, system.tag, list(system.keys)))

    async with (
        running_proxy(cluster.name_server, **waits) as proxy,
        grpc.aio.insecure_channel(proxy.address) as channel,
    ):

        async def all_came() -> bool:
            for broker in ("broker-a", "broker-b"):
                await receive_of(channel, broker)
            return len(received) >= count

        await until(all_came)
    return received
