"""The console with Apache's cluster, and with this project's as the control: every page, and changes."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import ONE_KIND, Cluster
from programs import consume, produce, sample
from servers import Server, java_broker, java_namesrv
from test_acl import JAVA_PROVIDERS, ROOT, ROOT_PASSWORD, USERS
from wait_until import until

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.credentials import Credentials
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.console.app import Console
from gantrymq.console.queries.all_pages import PAGES
from gantrymq.console.settings import Settings
from gantrymq.protocol.message import Message
from gantrymq.protocol.properties import TIMER_DELAY_MS

pytestmark = pytest.mark.interop(feature="console", clients="gantry", servers="{cluster}")

CLUSTER = "DefaultCluster"


class Visitor:
    """A visitor of the console."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def json(self, page: str, /, **arguments: Any) -> Any:
        answer = await self.client.get(f"/api/v1/{page}", params=arguments)
        assert answer.status_code == 200, f"{page}: {answer.text}"
        return answer.json()

    async def html(self, page: str, /, **arguments: Any) -> str:
        answer = await self.client.get(f"/{page}", params=arguments)
        assert answer.status_code == 200, f"{page}: {answer.text}"
        return answer.text

    async def do(self, change: str, /, **arguments: Any) -> str:
        """Makes a change. Returns the console's text about its result."""
        page = (await self.client.get("/topics")).text
        found = re.search(r'name="csrf" value="([^"]+)"', page)
        assert found is not None
        answer = await self.client.post(f"/api/v1/do/{change}", data={"csrf": found[1], **arguments})
        assert answer.status_code == 200, answer.text
        done: str = answer.json()["done"]
        return done


@asynccontextmanager
async def visitor(name_server: str, **settings: Any) -> AsyncIterator[Visitor]:
    app = Console(Settings(name_server, tables_fresh_s=0.2, **settings)).app
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://127.0.0.1", timeout=60) as client,
    ):
        yield Visitor(client)


@ONE_KIND
async def test_every_page(cluster: Cluster, topic: str) -> None:
    produced = produce(cluster.address, topic, [message.line() for message in sample(8)])
    # Java's group without members, and one of our groups with a member.
    consume(cluster.address, topic, 8, group="console_java")
    seen: list[Any] = []

    async def handle(message: Message) -> None:
        seen.append(message)

    consumer = PushConsumer(cluster.address, "console_ours", handle, start_from="earliest")
    consumer.subscribe(topic)
    async with visitor(cluster.address) as console, consumer:
        await until(lambda: len(seen) >= 8)
        async with Producer(cluster.address, "console_producer") as producer:
            await producer.send(Message(topic, b"later", delay_level=18))
            await producer.send(Message(topic, b"at its time", properties={TIMER_DELAY_MS: "3600000"}))

            async def known() -> Any:
                return (await console.json("producers", search="console_producer"))["table"]["rows"]

            assert [row["brokers"] for row in await until(known)] == [["broker-a"]]

        async def whole_overview() -> Any:
            page = await console.json("overview")
            return page if None not in (page["topics"], page["groups"], page["findings"]) else None

        overview = await until(whole_overview)
        assert [broker["address"] for broker in overview["brokers"]] == [cluster.broker.address]
        assert overview["brokers"][0]["version"].startswith("V5")
        assert overview["brokers"][0]["disk_used_ratio"] is not None
        assert overview["brokers"][0]["oldest_message_ms"] > 0
        assert overview["topics"] >= 1
        assert overview["groups"] >= 2
        assert overview["unasked"] == []

        page = await console.json("broker", address=cluster.broker.address)
        assert page["config"]["brokerName"] == "broker-a"
        is_gantry = cluster.broker.name == "gantry broker"
        assert (page["is_gantry"], page["read_at_start"] is not None) == (is_gantry, is_gantry)
        marked = "This is a broker of Apache RocketMQ" in await console.html("broker", address=cluster.broker.address)
        assert marked != is_gantry
        (row,) = (await console.json("topics", search=topic))["table"]["rows"]
        assert (row["name"], row["perm"], row["brokers"]) == (topic, "rw", ["broker-a"])

        page = await console.json("topic", name=topic)
        assert page["messages"] == 8
        assert {"console_java", "console_ours"} <= set(page["groups"])
        page = await console.json("topic", name=topic, tab="queues")
        assert all(queue["oldest_ms"] > 0 for queue in page["queues"] if queue["max_offset"])

        rows = (await console.json("groups", search="console_"))["table"]["rows"]
        assert sorted(row["name"] for row in rows) == ["console_java", "console_ours"]
        page = await console.json("group", name="console_ours")
        assert page["subscriptions_agree"]
        assert [one["topic"] for one in page["members"][0]["subscriptions"] or []] == [topic]
        member = page["members"][0]["client_id"]
        page = await console.json("member", group="console_ours", client_id=member)
        assert {queue["topic"] for queue in page["queues"]} >= {topic}

        rows = (await console.json("messages", topic=topic))["rows"]
        assert len(rows) == 8
        earliest = (await console.json("messages", topic=topic, order="earliest"))["rows"]
        # Messages of several queues can have the same store time.
        assert [row["stored_ms"] for row in earliest] == [row["stored_ms"] for row in reversed(rows)]
        assert {row["id"] for row in earliest} == {row["id"] for row in rows}
        assert [row["id"] for row in (await console.json("messages", topic=topic, key="key3"))["rows"]]
        unique = produced[3]["msg_id"]
        assert [row["id"] for row in (await console.json("messages", topic=topic, id=unique))["rows"]] == [unique]
        one = await console.json(
            "message", topic=topic, broker=rows[0]["broker"], queue=rows[0]["queue_id"], offset=rows[0]["offset"]
        )
        assert one["body"]["bytes"] == rows[0]["bytes"]
        assert {track["group"] for track in one["tracks"]} >= {"console_ours"}

        delays = await console.json("delays")
        assert [(level["level"], level["end"] - level["delivered"] > 0) for level in delays["levels"]].count((18, True))

        async def both_wait() -> Any:
            rows = (await console.json("due", topic=topic))["rows"]
            return rows if len(rows) == 2 else None

        waiting = await until(both_wait)
        assert [(row["level"], row["row"]["start"]) for row in waiting] == [(0, "at its time"), (18, "later")]
        assert (await console.json("transactions"))["given_up"] == []
        replicas = await console.json("replicas")
        assert (replicas["slaves"], replicas["unasked"]) == ([], [])

        arguments: dict[str, dict[str, Any]] = {
            "broker": {"address": cluster.broker.address},
            "topic": {"name": topic},
            "group": {"name": "console_ours"},
            "member": {"group": "console_ours", "client_id": member},
            "messages": {"topic": topic},
            "message": {"topic": topic, "id": unique},
            "tail": {"topic": topic},
            "traces": {"id": unique},
            "letters": {"group": "console_ours"},
        }
        for each in PAGES:
            html = await console.html(each.name, **arguments.get(each.name, {}))
            assert "Traceback" not in html


@ONE_KIND
async def test_popped_messages(cluster: Cluster, topic: str) -> None:
    async with AdminClient(cluster.address) as admin:
        await admin.ensure_topic(topic, queues=1)
        # The broker records pops at once.
        await admin.update_broker_config([cluster.broker.address], {"popCkStayBufferTime": "0"})
    produce(cluster.address, topic, [message.line() for message in sample(2)])
    async with (
        visitor(cluster.address) as console,
        SimpleConsumer(cluster.address, "console_poppers") as consumer,
    ):
        consumer.subscribe(topic)
        held: list[Any] = []

        async def all_popped() -> bool:
            held.extend(await consumer.receive(16, invisible_time=600, timeout=1))
            return len(held) == 2

        await until(all_popped)
        for acked, left in ((0, 2), (1, 1), (2, 0)):
            if acked:
                await consumer.ack(held[acked - 1])

            async def so_many(left: int = left) -> bool:
                return (await console.json("receipts", search="console_poppers"))["open"] == left

            await until(so_many)


@ONE_KIND
async def test_a_key_is_changed(cluster: Cluster) -> None:
    address = cluster.broker.address
    async with visitor(cluster.address) as console:
        before = (await console.json("broker", address=address))["config"]["maxMessageSize"]
        await console.do("set-config", address=address, key="maxMessageSize", value="2097152")
        assert (await console.json("broker", address=address))["config"]["maxMessageSize"] == "2097152"
        await console.do("set-config", address=address, key="maxMessageSize", value=before)
        token = re.search(r'name="csrf" value="([^"]+)"', await console.html("topics"))
        assert token is not None
        form = {"csrf": token[1], "address": address, "key": "thereIsNoSuchKey", "value": "1"}
        refused = await console.client.post("/api/v1/do/set-config", data=form)
        assert "may not support the key" in refused.text


@ONE_KIND
async def test_changes(cluster: Cluster, topic: str) -> None:
    async with visitor(cluster.address) as console, AdminClient(cluster.address) as admin:
        await console.do("create-topic", name=topic, cluster=CLUSTER, queues=2, message_type="NORMAL")
        assert (await admin.topic_config(cluster.broker.address, topic)).write_queue_nums == 2
        await console.do("alter-topic", name=topic, cluster=CLUSTER, write_queues=3, read_queues=4, perm="r")
        config = await admin.topic_config(cluster.broker.address, topic)
        assert (config.write_queue_nums, config.read_queue_nums, config.perm) == (3, 4, 4)
        await console.do("alter-topic", name=topic, cluster=CLUSTER, write_queues=2, read_queues=2, perm="rw")
        produce(cluster.address, topic, [message.line() for message in sample(6)])
        consume(cluster.address, topic, 6, group="console_changed")
        assert "2 queues" in await console.do("reset-offset", group="console_changed", topic=topic, to="earliest")
        stats = await admin.consume_stats("console_changed", topic)
        assert sum(one.consumer_offset for one in stats.offset_table.values()) == 0
        assert "2 queues" in await console.do("reset-offset", group="console_changed", topic=topic, to="latest")
        await console.do("save-group", name="console_cloned", cluster=CLUSTER, retry_max_times=3)
        cloned = await admin.group_config(cluster.broker.address, "console_cloned")
        assert cloned is not None
        assert cloned.retry_max_times == 3
        assert "2 queues" in await console.do(
            "clone-offsets", group="console_changed", target="console_cloned", topic=topic
        )
        stats = await admin.consume_stats("console_cloned", topic)
        assert sum(one.consumer_offset for one in stats.offset_table.values()) == 6
        await console.do(
            "delete-group", name="console_changed", cluster=CLUSTER, typed="console_changed", remove_offsets="true"
        )
        assert await admin.group_config(cluster.broker.address, "console_changed") is None
        await console.do("delete-topic", name=topic, cluster=CLUSTER, typed=topic)
        assert topic not in await admin.topic_list()


@pytest.fixture
def with_users(tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    """Starts Apache's NameServer and a broker with users."""
    namesrv = java_namesrv(tmp_path / "namesrv")
    try:
        broker = java_broker(tmp_path / "broker", namesrv.address, **USERS, **JAVA_PROVIDERS)
        try:
            yield namesrv, broker
        finally:
            broker.kill()
    finally:
        namesrv.kill()


@pytest.mark.interop(servers="java")
async def test_apaches_users(with_users: tuple[Server, Server]) -> None:
    namesrv, broker = with_users
    root = Credentials(ROOT, ROOT_PASSWORD)
    async with (
        visitor(namesrv.address, credentials=root) as console,
        AdminClient(namesrv.address, credentials=root) as admin,
    ):
        await console.do("save-user", cluster=CLUSTER, username="alice", password="12345678")
        assert await admin.user(broker.address, "alice") is not None
        rows = {row["name"]: row for row in (await console.json("users"))["table"]["rows"]}
        assert (rows[ROOT]["type"], rows["alice"]["type"], rows["alice"]["rights"]) == ("Super", "Normal", [])
        right = {"cluster": CLUSTER, "username": "alice", "resource": "Topic:allowed"}
        await console.do("save-right", **right, actions="Pub, Get")
        verdicts = (await console.json("rights", user="alice", resource="Topic:allowed"))["verdicts"]
        assert [one["action"] for one in verdicts if one["may"]] == ["Pub", "Get"]
        async with Producer(
            namesrv.address, "console_alice", credentials=Credentials("alice", "12345678"), retry_times=0
        ) as producer:
            await admin.ensure_topic("allowed", queues=1)
            await producer.send(Message("allowed", b"x"))
            await console.do("save-right", **right, actions="Pub", decision="Deny")
            verdicts = (await console.json("rights", user="alice", resource="Topic:allowed"))["verdicts"]
            assert [one["entry"] for one in verdicts if one["action"] == "Pub"] == ["Deny Topic:allowed: Pub"]
            await console.do("delete-right", **right)
            verdicts = (await console.json("rights", user="alice", resource="Topic:allowed"))["verdicts"]
            assert {one["why"] for one in verdicts} == {"none"}
        assert {one["why"] for one in (await console.json("rights", user="bob", resource="Topic:a"))["verdicts"]} == {
            "unknown"
        }
        await console.do("delete-user", cluster=CLUSTER, username="alice", typed="alice")
        assert await admin.user(broker.address, "alice") is None
    async with visitor(namesrv.address, login="cluster") as console:
        for password, status in (("wrong", 403), (ROOT_PASSWORD, 303)):
            form = (await console.client.get("/login")).text
            token = re.search(r'name="csrf" value="([^"]+)"', form)
            assert token is not None
            answer = await console.client.post("/login", data={"csrf": token[1], "name": ROOT, "password": password})
            assert answer.status_code == status, answer.text
        assert (await console.json("overview"))["unasked"] == []
