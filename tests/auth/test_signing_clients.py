"""Tests of producers and consumers that sign their requests and have only the permissions that they need."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gantrymq import Credentials, LitePullConsumer, Message, MessageExt, Producer, PushConsumer
from gantrymq.auth.config import AuthConfig
from gantrymq.client.admin.auth import acl_of
from gantrymq.client.admin.client import AdminClient
from gantrymq.errors import GantryError
from gantrymq.protocol.bodies.auth import UserInfo
from gantrymq.testing.embedded import EmbeddedCluster

TIMEOUT_S = 20.0
DELAYS = "1s 1s 1s"
PLAIN_ACL = """
accounts:
  - accessKey: producer1
    secretKey: secret12
    topicPerms: [orders=PUB]
  - accessKey: consumer1
    secretKey: secret12
    topicPerms: [orders=SUB]
    groupPerms: [readers=SUB]
"""
PRODUCER, CONSUMER = Credentials("producer1", "secret12"), Credentials("consumer1", "secret12")
USERS = AuthConfig(
    authentication_enabled=True,
    authorization_enabled=True,
    init_authentication_user='{"username":"root","password":"rootpass"}',
)


async def test_accounts_of_plain_acl(tmp_path: Path) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(PLAIN_ACL)
    with EmbeddedCluster(auth=AuthConfig(acl_enable=True, plain_acl_file=file), message_delay_level=DELAYS) as cluster:
        await _produce_and_consume(cluster.name_server)


async def test_users_and_policies() -> None:
    with EmbeddedCluster(auth=USERS, message_delay_level=DELAYS) as cluster:
        async with AdminClient(cluster.name_server, credentials=Credentials("root", "rootpass")) as admin:
            for user, resources, action in (
                ("producer1", ["Topic:orders"], "Pub"),
                ("consumer1", ["Topic:orders", "Group:readers"], "Sub"),
            ):
                await admin.create_user(cluster.brokers, UserInfo(user, "secret12"))
                acl = acl_of(f"User:{user}", resources, [action], ["127.0.0.1"], "Allow")
                await admin.create_acl(cluster.brokers, acl)
        await _produce_and_consume(cluster.name_server)


async def _produce_and_consume(name_server: str) -> None:
    received: set[bytes] = set()
    again = asyncio.Event()
    done = asyncio.Event()

    async def handle(message: MessageExt) -> None:
        # The handler rejects one message. The broker redelivers it from the retry topic.
        if message.body == b"3" and not again.is_set():
            again.set()
            raise ValueError("not yet")
        received.add(message.body)
        if len(received) == 5:
            done.set()

    async with Producer(name_server, "producers", credentials=PRODUCER, retry_times=0) as producer:
        for i in range(5):
            await producer.send(Message("orders", b"%d" % i))
        with pytest.raises(GantryError, match="others"):
            await producer.send(Message("others", b"5"))
        consumer = PushConsumer(name_server, "readers", handle, credentials=CONSUMER, start_from="earliest")
        consumer.subscribe("orders")
        async with consumer, asyncio.timeout(TIMEOUT_S):
            await done.wait()


async def test_a_consumer_signs_the_messages_of_its_traces() -> None:
    root = Credentials("root", "rootpass")
    received = asyncio.Event()
    with EmbeddedCluster(auth=USERS) as cluster:
        async with AdminClient(cluster.name_server, credentials=root) as admin:
            await admin.ensure_topic("orders", queues=1)
            await admin.ensure_topic("traces", queues=1)
        consumer = PushConsumer(
            cluster.name_server,
            "readers",
            lambda message: received.set(),
            credentials=root,
            start_from="earliest",
            enable_trace=True,
            trace_topic="traces",
        )
        consumer.subscribe("orders")
        reader = LitePullConsumer(cluster.name_server, "traced", credentials=root, start_from="earliest")
        reader.subscribe("traces")
        async with (
            asyncio.timeout(TIMEOUT_S),
            Producer(cluster.name_server, "producers", credentials=root) as producer,
            consumer,
            reader,
        ):
            await producer.send(Message("orders", b"traced"))
            await received.wait()
            traces: list[MessageExt] = []
            while not traces:
                traces = await reader.poll()
        assert b"SubBefore" in traces[0].body
