"""Pages of clients: producers, streams that only commit, joining and leaving members, clients of a proxy."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
from console_support import CLUSTER, browser, cluster, html_of, json_of, producer, visitor
from wait_until import until

from gantrymq.client.admin.base import transport_of
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.console.cluster_view import ClusterView
from gantrymq.console.history import MAX_REBALANCES, History, Rebalance
from gantrymq.console.queries.groups import Member, add_running_info, trend
from gantrymq.console.queries.streams import Query, last_reports
from gantrymq.console.request_limits import RequestLimits
from gantrymq.console.sampler import GROUPS_PER_SAMPLE, GroupMembers, Sampler
from gantrymq.console.settings import Settings
from gantrymq.errors import BrokerError, ClientError
from gantrymq.protocol.bodies.consumer import PROP_CLIENT_VERSION, PROP_PROXY_CLIENT_LANGUAGE, ConsumerRunningInfo
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.message import Message
from gantrymq.sync import SyncProducer
from gantrymq.system.clock import now_ms
from gantrymq.testing.embedded import EmbeddedCluster

__all__ = ["cluster", "producer", "visitor"]


async def test_producers(visitor: httpx.AsyncClient, cluster: EmbeddedCluster) -> None:
    async with AdminClient(cluster.name_server) as admin:
        await admin.ensure_topic("produced", queues=1)
    async with Producer(cluster.name_server, "makers") as one:
        await one.send(Message("produced", b"x"))

        async def known() -> Any:
            page = await json_of(visitor, "producers", search="makers")
            return page["table"]["rows"]

        (row,) = await until(known)
        assert row["group"] == "makers"
        assert "@" in row["client_id"]
        assert row["version"].startswith("V5")
        assert set(row["brokers"]) <= {"broker-a", "broker-b"}
        assert row["client_id"] in await html_of(visitor, "producers")


async def test_streams(visitor: httpx.AsyncClient, cluster: EmbeddedCluster, producer: SyncProducer) -> None:
    """A group without members that commits is a stream. A group with a connected consumer is not."""
    async with AdminClient(cluster.name_server) as admin:
        for topic in ("streamed", "spark-progress"):
            await admin.ensure_topic(topic, queues=1)
        await admin.create_group(SubscriptionGroupConfig("a-stream"), cluster=CLUSTER)
        for number in range(4):
            producer.send(Message("streamed", b"%d" % number))
        for address in cluster.brokers:
            await transport_of(admin).api.update_offset(address, "a-stream", "streamed", 0, 1)
    for progress in (
        {"id": "q1", "name": "to the lake", "batchId": 7, "numInputRows": 70, "inputRowsPerSecond": 10.5},
        {"id": "q1", "name": "to the lake", "batchId": 8, "numInputRows": 80, "durationMs": {"triggerExecution": 90}},
        {"id": "q2", "batchId": 1},
        ["not", "a", "query"],
    ):
        producer.send(Message("spark-progress", json.dumps(progress).encode()))
    for body in (b"{", b'{"id": "\xcf"}'):
        producer.send(Message("spark-progress", body))

    async def consume(message: Message) -> None:
        pass

    consumer = PushConsumer(cluster.name_server, "no-stream", consume)
    consumer.subscribe("streamed")
    async with consumer:

        async def known() -> Any:
            page = await json_of(visitor, "streams", progress="spark-progress")
            return page if page["table"] is not None and page["table"]["rows"] else None

        page = await until(known)
        assert [row["name"] for row in page["table"]["rows"]] == ["a-stream"]
        assert page["table"]["rows"][0]["topics"] == ["streamed"]
        queries = {query["id"]: query for query in page["queries"]}
        assert set(queries) == {"q1", "q2"}
        assert (queries["q1"]["batch"], queries["q1"]["rows"], queries["q1"]["took_ms"]) == (8, 80, 90)
        assert queries["q2"]["name"] == "q2"
        html = await html_of(visitor, "streams", progress="spark-progress")
        assert "to the lake" in html
        assert "a-stream" in html
    nowhere = await json_of(visitor, "streams", progress="nowhere")
    assert [unasked["what"] for unasked in nowhere["unasked"]] == ["nowhere"]


def test_two_batches_of_a_query_in_one_millisecond() -> None:
    """The reports were sent to two brokers, so the order in which they are read has no meaning."""
    seventh, eighth = (Query("q1", "to the lake", 1000, batch, 70, 0.0, 0.0, 90) for batch in (7, 8))
    assert last_reports([seventh, eighth]) == last_reports([eighth, seventh]) == [eighth]
    anew = Query("q1", "to the lake", 1001, 0, 70, 0.0, 0.0, 90)
    assert last_reports([anew, eighth]) == [anew]


async def test_members_come_and_go(cluster: EmbeddedCluster, visitor: httpx.AsyncClient) -> None:
    async with AdminClient(cluster.name_server) as admin:
        await admin.ensure_topic("moving", queues=1)
    history = History(None)
    view = ClusterView(Settings(cluster.name_server, tables_fresh_s=0.0), RequestLimits(), None, history)
    sampler = Sampler(view, history)

    async def consume(message: Message) -> None:
        pass

    try:
        consumer = PushConsumer(cluster.name_server, "movers", consume)
        consumer.subscribe("moving")
        async with consumer, AdminClient(cluster.name_server) as admin:

            async def connected() -> list[str]:
                with suppress(ClientError, BrokerError):
                    return [one.client_id for one in (await admin.consumer_connection("movers")).connection_set]
                return []

            (client_id,) = await until(connected)

            # The group exists after its first offsets, and is then sampled for the first time.
            async def looked_at() -> bool:
                await sampler.sample()
                return "movers" in sampler.members

            await until(looked_at)
            assert await history.rebalances("movers", 10) == []

        async def left() -> Any:
            await sampler.sample()
            return await history.rebalances("movers", 10)

        (change,) = await until(left)
        assert (change.came, change.left, change.members) == ([], [client_id], 0)
    finally:
        await view.close()
        await history.close()
    assert "No rebalances recorded" in await html_of(visitor, "group", name="movers")


async def test_rebalances_on_the_page(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    async with AdminClient(cluster.name_server) as admin:
        await admin.create_group(SubscriptionGroupConfig("shown"), cluster=CLUSTER)
        await admin.ensure_topic("of-shown", queues=1)
        await transport_of(admin).api.update_offset(cluster.brokers[0], "shown", "of-shown", 0, 0)
    # An earlier console has recorded it here.
    history = History(tmp_path)
    now = now_ms()
    await history.add_rebalances({"shown": Rebalance(now, ["one<b>"], [], 1)})
    await history.close()
    async with browser(Settings(cluster.name_server, directory=tmp_path, tables_fresh_s=0.2)) as visitor:
        page = await json_of(visitor, "group", name="shown")
        assert page["rebalances"] == [{"at_ms": now, "came": ["one<b>"], "left": [], "members": 1}]
        assert "one&lt;b&gt;" in await html_of(visitor, "group", name="shown")


async def test_a_trend(cluster: EmbeddedCluster) -> None:
    history = History(None)
    view = ClusterView(Settings(cluster.name_server), RequestLimits(), None, history)
    try:
        now = now_ms() / 1000
        await history.add(now - 2000, {"group/g/lag": 9999.0})
        assert await trend(view, "g") is None
        await history.add(now - 600, {"group/g/lag": 100.0, "group/h/lag": 1.0})
        assert await trend(view, "g") is None
        await history.add(now - 300, {"group/g/lag": 250.0})
        assert await trend(view, "g") == 0.5
    finally:
        await view.close()
        await history.close()


async def test_rebalances_are_bounded() -> None:
    history = History(None)
    many = [f"member-{number}" for number in range(1000)]
    await history.add_rebalances({"g": Rebalance(1000, many, many, 1000)})
    (one,) = await history.rebalances("g", 10)
    assert (len(one.came), len(one.left), one.members) == (20, 20, 1000)
    await history.add_rebalances({f"g{number}": Rebalance(2000, ["a"], [], 1) for number in range(MAX_REBALANCES)})
    assert await history.rebalances("g", 10) == []
    assert len(await history.rebalances("g5", 10)) == 1
    await history.thin(90 * 86400)
    assert await history.rebalances("g5", 10) == []
    await history.close()


def test_groups_take_turns() -> None:
    seen = GroupMembers()
    groups = [f"g{number:03d}" for number in range(2 * GROUPS_PER_SAMPLE + 10)]
    looked_at: set[str] = set()
    for _ in range(3):
        now = seen.next_groups(groups)
        assert len(now) == GROUPS_PER_SAMPLE
        looked_at |= set(now)
    assert looked_at == set(groups)
    assert seen.next_groups(["a", "b"]) == ["a", "b"]


def test_what_is_a_rebalance() -> None:
    seen = GroupMembers()
    assert seen.seen("g", ["a"], 1) is None
    assert seen.seen("g", ["a"], 2) is None
    assert seen.seen("g", ["b", "a"], 3) == Rebalance(3, ["b"], [], 2)
    assert seen.seen("g", [], 4) == Rebalance(4, [], ["a", "b"], 0)
    # A removed group starts again.
    seen.next_groups([])
    assert seen.seen("g", ["c"], 5) is None


def test_a_member_that_a_proxy_speaks_for() -> None:
    member = Member("c", "10.0.0.1:5", "PYTHON", "V5_5_0")
    properties = {PROP_CLIENT_VERSION: "JAVA 5.0.8", PROP_PROXY_CLIENT_LANGUAGE: "JAVA"}
    add_running_info(member, ConsumerRunningInfo(properties=properties))
    assert (member.language, member.version, member.by_proxy) == ("JAVA", "5.0.8", True)
    for version in ("V5_5_0", "GantryMQ 0.1.0"):
        other = Member("c", "10.0.0.1:5", "JAVA", "V5_5_0")
        add_running_info(other, ConsumerRunningInfo(properties={PROP_CLIENT_VERSION: version}))
        assert (other.language, other.version, other.by_proxy) == ("JAVA", "V5_5_0", False)
