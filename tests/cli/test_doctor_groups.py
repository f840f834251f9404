"""What the doctor says of access control and of consumer groups."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import pytest
from cli_support import CLUSTER, create
from waiting import until

from gantrymq.auth.config import AuthConfig
from gantrymq.client.acl_hook import AclHook
from gantrymq.client.admin.auth import acl_of
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.doctor.diagnosis import diagnose, judge
from gantrymq.client.doctor.finding import Finding, Severity
from gantrymq.client.doctor.groups_seen import GroupSeen, Lag
from gantrymq.client.doctor.observation import Observation
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import GantryError
from gantrymq.protocol.bodies.auth import UserInfo
from gantrymq.protocol.bodies.heartbeat import CONSUME_FROM_FIRST_OFFSET
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.message import Message, MessageExt
from gantrymq.system.clock import now_ms
from gantrymq.testing.embedded import EmbeddedCluster

ROOT = AclHook("root", "rootpass")


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def secured() -> Iterator[EmbeddedCluster]:
    auth = AuthConfig(
        authentication_enabled=True,
        authorization_enabled=True,
        init_authentication_user='{"username":"root","password":"rootpass"}',
    )
    with EmbeddedCluster(auth=auth) as cluster:
        yield cluster


def complaints(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity is not Severity.OK]


# -- rights ---------------------------------------------------------------------------------------------------------


async def test_without_a_key_a_refusal_is_a_problem(secured: EmbeddedCluster) -> None:
    (finding,) = complaints(await diagnose(secured.name_server))
    assert finding.severity is Severity.PROBLEM
    assert finding.what.startswith("broker broker-a (master) refuses its figures, its configuration, the consumer ")
    assert "answered code 16: " in finding.what
    assert finding.remedy.startswith("Give --acl-config FILE")
    assert complaints(await diagnose(secured.name_server, hooks=[ROOT])) == []


async def test_a_user_without_rights(secured: EmbeddedCluster) -> None:
    async with AdminClient(secured.name_server, hooks=[ROOT]) as admin:
        await create(admin, TopicConfig("orders", 1, 1))
        await admin.create_user(secured.brokers, UserInfo("clerk", "clerkpass", "Normal"))
        clerk = AclHook("clerk", "clerkpass")
        finding, *_ = complaints(await diagnose(secured.name_server, "orders", hooks=[clerk]))
        assert finding.severity is Severity.PROBLEM
        assert "messages to the topic" in finding.what
        assert finding.why == "this user may not send there."
        assert "gantry admin createAcl" in finding.remedy
        await admin.create_acl(
            secured.brokers, acl_of("User:clerk", ["Topic:orders"], ["Pub", "Sub", "Get"], [], "Allow")
        )
        (finding,) = complaints(await diagnose(secured.name_server, "orders", hooks=[clerk]))
        assert finding.severity is Severity.WARNING
        assert "messages to the topic" not in finding.what
        # Looking left nothing behind.
        assert sum(offset.max_offset for offset in (await admin.topic_stats("orders")).offset_table.values()) == 0


# -- groups ---------------------------------------------------------------------------------------------------------


async def test_consumers_that_subscribe_to_different_things(cluster: EmbeddedCluster) -> None:
    async def handle(message: MessageExt) -> None:
        pass

    async with AdminClient(cluster.name_server) as admin:
        await create(admin, TopicConfig("mixed", 2, 2))
    consumers = [
        PushConsumer(cluster.name_server, "mixed-group", handle, instance_name=name) for name in ("one", "two")
    ]
    for consumer, tag in zip(consumers, ("A", "B"), strict=True):
        consumer.subscribe("mixed", tag)
    async with consumers[0], consumers[1]:

        async def said() -> Finding | None:
            found = complaints(await diagnose(cluster.name_server, "mixed"))
            return next((finding for finding in found if "subscribe to different things" in finding.what), None)

        finding = await until(said)
    assert finding.severity is Severity.PROBLEM
    assert "mixed TAG 'A'" in finding.what
    assert "mixed TAG 'B'" in finding.what


async def test_a_group_that_is_behind_and_away(cluster: EmbeddedCluster) -> None:
    async with AdminClient(cluster.name_server) as admin:
        await create(admin, TopicConfig("behind", 1, 1))
    async with Producer(cluster.name_server, "p") as producer:
        await producer.send(Message("behind", b"first"))
        reader = LitePullConsumer(
            cluster.name_server, "behind-group", consume_from_where=CONSUME_FROM_FIRST_OFFSET, auto_commit=False
        )
        reader.subscribe("behind")
        async with reader:
            async with asyncio.timeout(20):
                while not await reader.poll():
                    pass
            await reader.commit()
        for _ in range(3):
            await producer.send(Message("behind", b"more"))
    for topic in ("behind", None):

        async def said(topic: str | None = topic) -> Finding | None:
            found = complaints(await diagnose(cluster.name_server, topic))
            return next((finding for finding in found if "behind-group" in finding.what), None)

        finding = await until(said)
        assert finding.severity is Severity.WARNING
        assert finding.what == (
            "group behind-group is 3 messages behind in topic behind, and none of its consumers is there"
        )
        assert f"-c {CLUSTER}" not in finding.remedy


def test_a_group_that_does_not_keep_up() -> None:
    hour_ms = 3_600_000
    group = GroupSeen("slow", {"orders": Lag(5000, now_ms() - hour_ms)}, ["a", "b"])
    quick = GroupSeen("quick", {"orders": Lag(5000, now_ms() - 1000)}, ["c"])
    seen = Observation(None, [], groups=[group, quick], group_count=60)
    (finding,) = complaints(judge(seen))
    assert finding.what == "group slow is 5,000 messages behind in topic orders, by 60 minutes"
    told = [finding.what for finding in judge(seen)]
    assert "group quick is 5,000 messages behind in topic orders" in told
    assert "consumer groups looked at: 2 of 60, those furthest behind" in told


async def test_a_consumer_that_hangs_holds_nobody_up(cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gantrymq.client.doctor.groups_seen.MEMBERS_TIMEOUT_S", 0.2)

    async def handle(message: MessageExt) -> None:
        pass

    async with AdminClient(cluster.name_server) as admin:
        await create(admin, TopicConfig("hung", 1, 1))
    consumers = [PushConsumer(cluster.name_server, "hung-group", handle, instance_name=name) for name in ("1", "2")]
    for consumer in consumers:
        consumer.subscribe("hung")
    hangs = asyncio.Event()

    async def running_info(admin: AdminClient, group: str, client_id: str) -> None:
        await hangs.wait()

    monkeypatch.setattr(AdminClient, "consumer_running_info", running_info)
    async with consumers[0], consumers[1], AdminClient(cluster.name_server) as admin:

        async def are_both_there() -> bool:
            with suppress(GantryError):
                return len((await admin.consumer_connection("hung-group")).connection_set) == 2
            return False

        await until(are_both_there)
        assert complaints(await diagnose(cluster.name_server, "hung")) == []
