"""Tests of the doctor's findings about access control and consumer groups."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cli_support import CLUSTER, create, name_server
from constants import change_constant
from wait_until import until

from gantrymq.auth.config import AuthConfig
from gantrymq.cli.main import run
from gantrymq.client.admin.auth import acl_of
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.credentials import Credentials
from gantrymq.client.doctor.diagnosis import diagnose, judge
from gantrymq.client.doctor.finding import Finding, Severity
from gantrymq.client.doctor.groups_seen import GroupSeen, Lag, groups_seen
from gantrymq.client.doctor.observation import Observation
from gantrymq.client.doctor.one_group import OneGroup, observe_group
from gantrymq.client.doctor.one_group_checks import check_one_group
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import GantryError, RequestTimeout
from gantrymq.protocol.bodies.auth import UserInfo
from gantrymq.protocol.bodies.connection import ClientConnection, ConsumerConnection
from gantrymq.protocol.bodies.consumer import ConsumerRunningInfo, ProcessQueueInfo
from gantrymq.protocol.bodies.heartbeat import BROADCASTING, SubscriptionData
from gantrymq.protocol.bodies.stats import OffsetWrapper
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.message import Message, MessageExt, MessageQueue
from gantrymq.system.clock import now_ms
from gantrymq.testing.embedded import EmbeddedCluster

ROOT = Credentials("root", "rootpass")


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


# -- permissions ----------------------------------------------------------------------------------------------------


async def test_without_a_key_a_refusal_is_a_problem(secured: EmbeddedCluster) -> None:
    (finding,) = complaints(await diagnose(secured.name_server))
    assert finding.severity is Severity.PROBLEM
    assert finding.what.startswith("broker broker-a (master) refuses its figures, its configuration, the consumer ")
    assert "answered code 16: " in finding.what
    assert finding.remedy.startswith("Give --acl-config FILE")
    assert complaints(await diagnose(secured.name_server, credentials=ROOT)) == []


async def test_a_user_without_rights(secured: EmbeddedCluster) -> None:
    async with AdminClient(secured.name_server, credentials=ROOT) as admin:
        await create(admin, TopicConfig("orders", 1, 1))
        await admin.create_user(secured.brokers, UserInfo("clerk", "clerkpass", "Normal"))
        clerk = Credentials("clerk", "clerkpass")
        finding, *_ = complaints(await diagnose(secured.name_server, "orders", credentials=clerk))
        assert finding.severity is Severity.PROBLEM
        assert "messages to the topic" in finding.what
        assert finding.why == "this user may not send there."
        assert "gantry admin createAcl" in finding.remedy
        await admin.create_acl(
            secured.brokers, acl_of("User:clerk", ["Topic:orders"], ["Pub", "Sub", "Get"], [], "Allow")
        )
        (finding,) = complaints(await diagnose(secured.name_server, "orders", credentials=clerk))
        assert finding.severity is Severity.WARNING
        assert "messages to the topic" not in finding.what
        # The doctor's check has sent no message.
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
        consumer.subscribe("mixed", tags=tag)
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
        reader = LitePullConsumer(cluster.name_server, "behind-group", start_from="earliest", auto_commit=False)
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
        assert finding.what == ("group behind-group has a lag of 3 messages in topic behind, and no consumer")
        assert f"-c {CLUSTER}" not in finding.remedy


async def test_a_reader_that_never_joins_its_group(cluster: EmbeddedCluster) -> None:
    """A Spark query is such a reader: it pulls messages and commits offsets."""
    async with AdminClient(cluster.name_server) as admin:
        await create(admin, TopicConfig("queried", 1, 1))
        await admin.create_group(SubscriptionGroupConfig("query"), cluster=CLUSTER)
        async with Producer(cluster.name_server, "p") as producer:
            for _ in range(3):
                await producer.send(Message("queried", b"row"))
        await admin.reset_queue_offset(cluster.brokers[0], "query", "queried", 0, 1)

        async def said() -> Finding | None:
            found = await diagnose(cluster.name_server, "queried")
            return next((finding for finding in found if "group query " in finding.what), None)

        finding = await until(said)
    assert finding.severity is Severity.OK
    assert finding.what == (
        "group query has a lag of 2 messages in topic queried, and no consumer has ever joined it: a reader such as a "
        "Spark query commits its offsets"
    )
    told = [finding.what for finding in await of_group(cluster, "query")]
    assert any("no members, and no consumer has ever joined it" in what for what in told), told


async def test_a_name_server_that_waits_says_nothing_about_members(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """This NameServer does not serve routes yet, so it is unclear whether the group has consumers."""
    broker = cluster.brokers[0]
    async with AdminClient(cluster.name_server) as admin:
        await create(admin, TopicConfig("waited", 1, 1))
        await admin.create_group(SubscriptionGroupConfig("unclear"), cluster=CLUSTER)
        await admin.reset_queue_offset(broker, "unclear", "waited", 0, 0)
    async with name_server(tmp_path, need_wait_for_service=True) as server, AdminClient(server.address) as admin:
        groups, _ = await groups_seen(admin, [broker], None)
        one = await observe_group(admin, "unclear", {broker: "broker-a"})
    [seen] = [group for group in groups if group.name == "unclear"]
    assert (seen.members, seen.has_joined) == (None, True)
    assert one.has_joined


def test_a_query_that_has_stopped() -> None:
    group = GroupSeen("query", {"orders": Lag(5000, now_ms() - 3_600_000)}, [], has_joined=False)
    (finding,) = complaints(judge(Observation(None, [], groups=[group], group_count=1)))
    assert finding.severity is Severity.WARNING
    assert "such as a Spark query" in finding.why
    assert "Check the query's progress" in finding.remedy


async def test_dead_letters_of_any_group(cluster: EmbeddedCluster) -> None:
    async with AdminClient(cluster.name_server) as admin:
        await create(admin, TopicConfig("%DLQ%failing", 1, 1))
        async with Producer(cluster.name_server, "p") as producer:
            for _ in range(35):
                await producer.send(Message("%DLQ%failing", b"message"))

        async def said() -> Finding | None:
            found = complaints(await diagnose(cluster.name_server))
            return next((finding for finding in found if "failing" in finding.what), None)

        finding = await until(said)
    assert finding.severity is Severity.WARNING
    assert finding.what == "group failing has 35 dead-letter messages"
    assert "gantry admin resendDlq -g failing" in finding.remedy


def test_a_group_that_does_not_keep_up() -> None:
    hour_ms = 3_600_000
    group = GroupSeen("slow", {"orders": Lag(5000, now_ms() - hour_ms)}, ["a", "b"])
    quick = GroupSeen("quick", {"orders": Lag(5000, now_ms() - 1000)}, ["c"])
    seen = Observation(None, [], groups=[group, quick], group_count=60)
    (finding,) = complaints(judge(seen))
    assert finding.what == "group slow has a lag of 5,000 messages in topic orders, for 60 minutes"
    told = [finding.what for finding in judge(seen)]
    assert "group quick has a lag of 5,000 messages in topic orders" in told
    assert "2 of 60 consumer groups checked: those with the largest lag" in told


async def test_a_consumer_that_hangs_holds_nobody_up(cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    change_constant(monkeypatch, "groups_seen.MEMBERS_TIMEOUT_S", 0.2)

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


# -- one group ------------------------------------------------------------------------------------------------------


async def of_group(cluster: EmbeddedCluster, name: str) -> list[Finding]:
    return await diagnose(cluster.name_server, group=name)


async def test_a_group_that_is_well(cluster: EmbeddedCluster) -> None:
    had = asyncio.Event()

    async def handle(message: MessageExt) -> None:
        had.set()

    async with AdminClient(cluster.name_server) as admin:
        await create(admin, TopicConfig("well", 2, 2))
    consumers = [PushConsumer(cluster.name_server, "well-group", handle, instance_name=name) for name in ("1", "2")]
    for consumer in consumers:
        consumer.subscribe("well")
    async with consumers[0], consumers[1], Producer(cluster.name_server, "p") as producer:
        await producer.send(Message("well", b"one"))
        await had.wait()

        async def told() -> list[str] | None:
            found = await of_group(cluster, "well-group")
            texts = [finding.what for finding in found]
            queues = sorted(match[0] for text in texts if (match := re.search(r"\d queues?(?= and 0 messages)", text)))
            # One of the members also has the queue of the retry topic.
            return texts if not complaints(found) and queues == ["1 queue", "2 queues"] else None

        texts = await until(told)
    assert "group well-group (clustering) has 2 members, and reads well" in texts
    assert all(text.split("last pull was ")[1].endswith(" s ago") for text in texts if "last pull was " in text)
    # There are no findings about servers and other groups if these are healthy.
    assert not [text for text in texts if "well-group" not in text and not text.startswith("member ")]


async def test_a_group_that_nobody_knows(cluster: EmbeddedCluster) -> None:
    async with AdminClient(cluster.name_server) as admin:
        await admin.create_group(SubscriptionGroupConfig("billing-group"), cluster=CLUSTER)
    (finding,) = await of_group(cluster, "biling-group")
    assert finding.severity is Severity.PROBLEM
    assert finding.what == "no broker knows group biling-group"
    assert "Is billing-group meant?" in finding.why


async def test_a_group_without_consumers_that_may_not_consume(cluster: EmbeddedCluster) -> None:
    async with AdminClient(cluster.name_server) as admin:
        await admin.create_group(SubscriptionGroupConfig("off-group", consume_enable=False), cluster=CLUSTER)
    switched_off, nobody = complaints(await of_group(cluster, "off-group"))
    assert switched_off.what == "group off-group may not consume on broker broker-a (consumeEnable=false)"
    assert f"updateSubGroup -b {cluster.brokers[0]} -g off-group -s true" in switched_off.remedy
    assert nobody.what == "group off-group has no consumer at the moment"


async def test_a_group_of_a_cluster_that_is_away() -> None:
    (finding,) = complaints(await diagnose("127.0.0.1:1", group="g"))
    assert finding.what.startswith("NameServer 127.0.0.1:1 can't be used")


def one_group(**of_a: Any) -> OneGroup:
    """Returns a group with members a and b that reads a topic with two queues, and consumed all of it a minute ago."""
    now = now_ms()
    queues = [MessageQueue("orders", "broker-a", n) for n in range(2)]
    connected = ConsumerConnection(
        [ClientConnection(name, "10.0.0.1:5") for name in "ab"], {"orders": SubscriptionData("orders", "*")}
    )
    running = {
        name: ConsumerRunningInfo(
            subscription_set=[SubscriptionData("orders", "*")],
            mq_table={queue: ProcessQueueInfo(last_pull_timestamp=now - 1000)},
        )
        for name, queue in zip("ab", queues, strict=True)
    }
    group = OneGroup("g", {"10.0.0.9:10911": "broker-a"}, {"10.0.0.9:10911": SubscriptionGroupConfig("g")})
    group.connected["10.0.0.9:10911"] = connected
    group.progress = {queue: OffsetWrapper(100, 100, 100, now - 60_000) for queue in queues}
    group.running = running
    for name, value in of_a.items():
        setattr(group.running["a"].mq_table[queues[0]], name, value)
    return group


def test_a_member_that_asks_for_nothing() -> None:
    group = one_group(last_pull_timestamp=now_ms() - 600_000, cached_msg_count=1000)
    # Nothing is left to pull.
    assert complaints(list(check_one_group(group))) == []
    group.progress[MessageQueue("orders", "broker-a", 0)].broker_offset = 1100
    (finding,) = complaints(list(check_one_group(group)))
    assert finding.severity is Severity.PROBLEM
    assert finding.what.startswith("member a has not pulled from 1 of its queues for 60")
    assert finding.what.endswith("their lag is 1,000 messages: orders broker-a:0")
    assert "gantry admin consumerStatus -g g -i 'a' -s" in finding.remedy
    texts = [finding.what for finding in check_one_group(group)]
    assert "member a has 1 queue and 1,000 messages in its process queues; its last pull was 600.0 s ago" in texts


def test_queues_that_no_member_has() -> None:
    group = one_group()
    group.progress[MessageQueue("orders", "broker-a", 2)] = OffsetWrapper(5, 0, 0, now_ms())
    (finding,) = complaints(list(check_one_group(group)))
    assert finding.what == "5 messages wait for group g in queues that no member has: orders broker-a:2"
    # A member that does not respond can have these queues.
    del group.running["b"]
    group.silent["b"] = RequestTimeout("no answer", "a:1")
    (finding,) = complaints(list(check_one_group(group)))
    assert finding.what == "member b says nothing of itself: no answer"


def test_members_that_a_broker_has_not_heard_of() -> None:
    group = one_group()
    group.brokers["10.0.0.8:10911"] = "broker-b"
    group.connected["10.0.0.8:10911"] = ConsumerConnection([ClientConnection("a", "10.0.0.1:6")])
    (finding,) = complaints(list(check_one_group(group)))
    assert finding.what == "broker broker-b has not heard of 1 members of group g: b"


def test_dead_letters_and_a_broadcast_that_is_refused() -> None:
    group = one_group()
    group.dead_letters = 3
    (finding,) = complaints(list(check_one_group(group)))
    assert finding.what == "group g has 3 dead-letter messages"
    assert "gantry admin resendDlq -g g" in finding.remedy
    group = one_group()
    group.connected["10.0.0.9:10911"].message_model = BROADCASTING
    group.configs["10.0.0.9:10911"].consume_broadcast_enable = False
    (finding,) = complaints(list(check_one_group(group)))
    assert finding.what == "group g may not read as broadcasting on broker broker-a"


def test_the_command_looks_at_one_group(cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "-n", cluster.name_server, "--group", "nobody"]) == 1
    assert "no broker knows group nobody" in capsys.readouterr().out
    assert run(["doctor", "orders", "-n", cluster.name_server, "--group", "nobody"]) == 2
