"""Tests of a mirror with access control: the permissions in docs/mirror.md are sufficient."""

from __future__ import annotations

import asyncio

from gantrymq.auth.config import AuthConfig
from gantrymq.client.admin.auth import acl_of
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.credentials import Credentials
from gantrymq.client.producing.producer import Producer
from gantrymq.mirror import Mirror, MirrorOptions
from gantrymq.mirror.cluster import Cluster
from gantrymq.protocol.bodies.auth import UserInfo
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.message import Message, MessageQueue
from gantrymq.testing.embedded import EmbeddedCluster

USERS = AuthConfig(
    authentication_enabled=True,
    authorization_enabled=True,
    init_authentication_user='{"username":"root","password":"rootpass"}',
)
ROOT = Credentials("root", "rootpass")
MIRROR = Credentials("mirror", "mirrorpass")
QUEUE = MessageQueue("orders", "broker-a", 0)


async def allow(cluster: EmbeddedCluster, permissions: dict[str, list[str]]) -> None:
    async with AdminClient(cluster.name_server, credentials=ROOT) as admin:
        await admin.create_user(cluster.brokers, UserInfo("mirror", "mirrorpass", "Normal"))
        for resource, actions in permissions.items():
            await admin.create_acl(cluster.brokers, acl_of("User:mirror", [resource], actions, [], "Allow"))


async def test_the_documented_permissions_are_sufficient() -> None:
    with (
        EmbeddedCluster(broker_cluster_name="east", auth=USERS) as source,
        EmbeddedCluster(broker_cluster_name="west", auth=USERS) as target,
    ):
        async with AdminClient(source.name_server, credentials=ROOT) as admin:
            await admin.create_topic(TopicConfig("orders", 1, 1), broker=source.brokers[0])
            await admin.create_group(SubscriptionGroupConfig("billing"), broker=source.brokers[0])
            await admin.ensure_topic("orders")
            async with Producer(source.name_server, "test", credentials=ROOT) as producer:
                await producer.send_batch([Message("orders", b"%d" % number) for number in range(3)], queue=QUEUE)
            await Cluster(admin).commit_offset(QUEUE, "billing", 2)
        await allow(
            source,
            {
                "Topic:orders": ["Sub", "Get"],
                "Group:billing": ["Sub", "Get"],
                "Group:*": ["List"],
                "Group:TOOLS_CONSUMER": ["Sub"],
            },
        )
        await allow(
            target,
            {
                "Topic:orders": ["Create", "Pub", "Sub", "Get"],
                "Topic:gantry_mirror": ["Create", "Pub", "Sub", "Get"],
                "Group:billing": ["Create", "Update", "Sub", "Get"],
                "Group:*": ["List"],
                "Group:TOOLS_CONSUMER": ["Sub"],
            },
        )
        options = MirrorOptions(topics=["orders"], groups=["billing"], once=True)
        async with (
            AdminClient(source.name_server, credentials=MIRROR) as reader,
            AdminClient(target.name_server, credentials=MIRROR) as writer,
        ):
            progress = await Mirror(Cluster(reader), Cluster(writer), options).run(asyncio.Event())
        assert (progress.copied, progress.groups, progress.failed, progress.failed_groups) == (3, 1, [], [])
        async with AdminClient(target.name_server, credentials=ROOT) as admin:
            assert await Cluster(admin).committed_offset(QUEUE, "billing") == 2
