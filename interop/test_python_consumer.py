"""This project's consumers with queries and commands of Apache's mqadmin."""

from __future__ import annotations

import asyncio

import pytest
from conftest import ONE_KIND, Cluster
from programs import mqadmin

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.protocol.message import Message, MessageExt

pytestmark = pytest.mark.interop(feature="mqadmin", clients="java gantry", servers="{cluster}")

TIMEOUT_S = 60.0


@ONE_KIND
async def test_mqadmin_asks_and_directs_a_python_consumer(cluster: Cluster, topic: str) -> None:
    group = "interop_python_directed"
    came: asyncio.Queue[bytes] = asyncio.Queue()

    async def handle(message: MessageExt) -> None:
        came.put_nowait(message.body)

    async def next_bodies(count: int) -> list[bytes]:
        async with asyncio.timeout(TIMEOUT_S):
            return sorted([await came.get() for _ in range(count)])

    bodies = [b"%d" % n for n in range(8)]
    async with Producer(cluster.address, "interop_python") as producer:
        sent = [await producer.send(Message(topic, body), timeout=10) for body in bodies]
    consumer = PushConsumer(cluster.address, group, handle, orderly=True, start_from="earliest")
    consumer.subscribe(topic)
    async with consumer:
        assert await next_bodies(8) == bodies
        async with AdminClient(cluster.address) as admin:
            (connection,) = (await admin.consumer_connection(group)).connection_set
        client_id = connection.client_id
        status = await asyncio.to_thread(mqadmin, cluster.address, "consumerStatus", "-g", group, "-i", client_id, "-s")
        assert "PROP_CONSUMEORDERLY" in status
        assert topic in status
        assert "#Consumer Offset#" in status
        reset = await asyncio.to_thread(
            mqadmin, cluster.address, "resetOffsetByTime", "-g", group, "-t", topic, "-s", "0"
        )
        assert topic in reset or "brokerName" in reset, reset
        assert await next_bodies(8) == bodies
        directly = await asyncio.to_thread(
            *(mqadmin, cluster.address, "queryMsgById", "-t", topic, "-i", sent[3].offset_msg_id),
            *("-g", group, "-d", client_id),
        )
        assert "CR_SUCCESS" in directly, directly
        assert await next_bodies(1) == [b"3"]
