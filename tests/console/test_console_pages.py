"""The main pages of the console: servers, topics and groups, as HTML and as JSON, in two languages."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from time import time
from typing import Any

import httpx
import pytest
from console_support import CLUSTER, browser, cluster, html_of, json_of, producer, text_of, visitor
from wait_until import until

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.console.language import texts
from gantrymq.console.queries.all_pages import PAGES
from gantrymq.console.queries.group_state import STATES, state_of
from gantrymq.console.settings import Settings
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.message import Message, MessageQueue
from gantrymq.sync import SyncProducer
from gantrymq.testing.embedded import EmbeddedCluster

__all__ = ["cluster", "producer", "visitor"]

TEMPLATES = Path(__file__).parents[2] / "src" / "gantrymq" / "console" / "templates"


async def make_topic(cluster: EmbeddedCluster, name: str, queues: int = 2) -> None:
    async with AdminClient(cluster.name_server) as admin:
        await admin.ensure_topic(name, queues=queues)


async def test_overview(visitor: httpx.AsyncClient, cluster: EmbeddedCluster) -> None:
    async def known() -> Any:
        page = await json_of(visitor, "overview")
        return page if page["groups"] is not None and page["findings"] is not None else None

    page = await until(known)
    assert page["name_servers"] == [cluster.name_server]
    assert sorted(broker["address"] for broker in page["brokers"]) == sorted(cluster.brokers)
    assert all(broker["version"].startswith("V5") for broker in page["brokers"])
    assert page["unasked"] == []
    html = await html_of(visitor, "overview")
    assert "broker-a" in html
    assert 'aria-current="page"' in html


async def test_the_navigation(visitor: httpx.AsyncClient, cluster: EmbeddedCluster) -> None:
    """Each page of a section has breadcrumbs, and the menu marks it or its parent."""
    await make_topic(cluster, "crumbed")
    html = await html_of(visitor, "topic", name="crumbed")
    assert re.findall(r"<h2 id=\"menu-\d\">(\w+)</h2>", html) == ["Data", "Consumers", "Cluster", "Security"]
    crumbs = html.partition('aria-label="Breadcrumbs"')[2].partition("</nav>")[0]
    assert text_of(f"<nav{crumbs}") == "Data Topics crumbed"
    assert '<a href="/topics" aria-current="true">' in html
    assert 'popovertarget="menu"' in html
    assert '<a href="/topics" aria-current="page">' in await html_of(visitor, "topics")
    assert "No broker has a controller" in await html_of(visitor, "controllers")


@pytest.mark.parametrize(
    ("lag", "seconds", "tps", "members", "growth", "state"),
    [
        (0, None, 0.0, None, None, "up to date"),
        (0, None, 0.0, 0, None, "idle"),
        (5, 2.0, 1.0, 1, None, "consuming"),
        (5, None, 0.0, None, None, "stalled"),
        (5, None, 0.0, 1, None, "stalled"),
        (5, None, 1.0, 1, None, "consuming"),
        (5, 600.0, 0.0, 1, 1.0, "stalled"),
        (5, 600.0, 3.0, 1, 1.0, "lagging"),
        (5, 600.0, 3.0, 1, None, "lagging"),
        (5, 600.0, 3.0, 1, -1.0, "catching up"),
        (5, 2.0, 3.0, 0, -1.0, "no members"),
    ],
)
def test_the_state_of_a_group(
    lag: int, seconds: float | None, tps: float, members: int | None, growth: float | None, state: str
) -> None:
    assert state_of(lag, seconds, tps, members, growth) == state


async def test_the_root_is_the_overview(visitor: httpx.AsyncClient) -> None:
    answer = await visitor.get("/")
    assert (answer.status_code, answer.headers["location"]) == (307, "/overview")


async def test_broker(visitor: httpx.AsyncClient, cluster: EmbeddedCluster) -> None:
    page = await json_of(visitor, "broker", address=cluster.brokers[0])
    assert page["config"]["brokerName"] == "broker-a"
    assert page["runtime"]["brokerActive"] == "true"
    assert "brokerName" in await html_of(visitor, "broker", address=cluster.brokers[0])


async def test_no_server_is_asked_but_those_of_the_cluster(visitor: httpx.AsyncClient) -> None:
    answer = await visitor.get("/broker", params={"address": "10.1.2.3:80"})
    assert answer.status_code == 502
    assert "no broker at" in answer.text


async def test_topics_are_cut_searched_and_sorted_here(visitor: httpx.AsyncClient, cluster: EmbeddedCluster) -> None:
    for queues, name in enumerate(("cut-a", "cut-b", "cut-c"), 1):
        await make_topic(cluster, name, queues)

    async def table_of(arguments: dict[str, Any]) -> Any:
        return (await json_of(visitor, "topics", search="CUT-", **arguments))["table"]

    async def rows(**arguments: Any) -> list[str]:
        table = await until(lambda: table_of(arguments))
        assert table["found"] == 3
        assert table["total"] >= 3
        return [row["name"] for row in table["rows"]]

    assert await rows() == ["cut-a", "cut-b", "cut-c"]
    assert await rows(sort="-write_queues", size=2) == ["cut-c", "cut-b"]
    assert await rows(sort="-write_queues", size=2, page=2) == ["cut-a"]
    assert await rows(sort="nonsense", page=99) == ["cut-a", "cut-b", "cut-c"]
    html = await html_of(visitor, "topics", search="cut-", size=2)
    assert "cut-a" in html
    assert "cut-c" not in html
    assert "Page 1 of 2" in html

    async def with_figures() -> Any:
        (row,) = (await table_of({}))["rows"][1:2]
        return row if row["messages"] is not None and row["groups"] is not None and row["retention_h"] else None

    assert await until(with_figures) == {
        "name": "cut-b",
        "kind": "topic",
        "message_type": "NORMAL",
        "read_queues": 4,
        "write_queues": 4,
        "perm": "rw",
        "brokers": ["broker-a", "broker-b"],
        "lag": None,
        "groups": 0,
        "messages": 0,
        "in_tps": 0.0,
        "bytes": 0,
        "retention_h": 72,
        "newest_ms": 0,
    }


async def test_topic_with_its_queues(
    visitor: httpx.AsyncClient, cluster: EmbeddedCluster, producer: SyncProducer
) -> None:
    await make_topic(cluster, "with-queues")
    for number in range(8):
        producer.send(Message("with-queues", b"%d" % number))
    page = await json_of(visitor, "topic", name="with-queues")
    assert page["messages"] == 8
    assert page["clusters"] == [CLUSTER]
    assert len(page["queues"]) == 4
    assert len(page["found"]["rows"]) == 8
    # Only the tab with the queues queries each of them for its oldest message.
    assert all(queue["oldest_ms"] is None for queue in page["queues"])
    queues = (await json_of(visitor, "topic", name="with-queues", tab="queues"))["queues"]
    assert all(0 < queue["oldest_ms"] <= queue["newest_ms"] for queue in queues if queue["max_offset"])
    for tab in ("messages", "queues", "consumers", "settings"):
        html = await html_of(visitor, "topic", name="with-queues", tab=tab)
        assert re.search(r'aria-current="page">(Messages|Queues|Consumer groups|Settings)</a>', html)
    assert (await visitor.get("/topic", params={"name": "with-queues", "tab": "nowhere"})).status_code == 400
    now = time() * 1000

    async def listed() -> Any:
        table = (await json_of(visitor, "topics", search="with-queues"))["table"]
        return table["rows"][0] if table is not None and table["rows"] and table["rows"][0]["bytes"] else None

    row = await until(listed)
    assert row["messages"] == 8
    assert now - 60_000 < row["newest_ms"] < now + 60_000
    # The mean size of a record of 1 byte, with its header and properties.
    assert 8 * 100 < row["bytes"] < 8 * 400


async def test_a_cluster_without_topics() -> None:
    """The page names a command that creates one."""
    with EmbeddedCluster() as empty:
        async with browser(Settings(empty.name_server, tables_fresh_s=0.1)) as visitor:

            async def listed() -> bool:
                return "The cluster has no topics" in await html_of(visitor, "topics")

            await until(listed)
            assert f"gantry admin updateTopic -t orders -c {CLUSTER}<" in await html_of(visitor, "topics")


async def test_an_unknown_topic(visitor: httpx.AsyncClient) -> None:
    assert (await visitor.get("/topic", params={"name": "nowhere"})).status_code == 404
    answer = await visitor.get("/api/v1/topic", params={"name": "nowhere"})
    assert answer.status_code == 404
    assert "nowhere" in answer.json()["error"]


async def test_group_that_lags(visitor: httpx.AsyncClient, cluster: EmbeddedCluster, producer: SyncProducer) -> None:
    await make_topic(cluster, "lagging")
    for number in range(10):
        producer.send(Message("lagging", b"%d" % number))
    seen: list[bytes] = []

    async def consume(message: Message) -> None:
        seen.append(message.body)

    consumer = PushConsumer(cluster.name_server, "laggers", consume, start_from="earliest")
    consumer.subscribe("lagging")
    async with consumer:
        await until(lambda: len(seen) == 10)
        page = await until(lambda: _members(visitor, "laggers"))
        (member,) = page["members"]
        assert member["subscriptions"] == [{"topic": "lagging", "type": "TAG", "expression": "*"}]
        assert not member["by_proxy"]
        assert page["subscriptions_agree"]
        assert (page["state"], page["lag_without_member"], member["lag"]) == ("up to date", 0, 0)
        assert {queue["member"] for queue in page["queues"] if queue["topic"] == "lagging"} == {member["client_id"]}
        one = await json_of(visitor, "member", group="laggers", client_id=member["client_id"])
        assert [queue["topic"] for queue in one["queues"]].count("lagging") == 4
        assert member["client_id"] in await html_of(visitor, "member", group="laggers", client_id=member["client_id"])
    gone = await visitor.get("/member", params={"group": "laggers", "client_id": "nobody"})
    assert gone.status_code == 502
    assert "no broker has a connection" in gone.text
    for number in range(6):
        producer.send(Message("lagging", b"late %d" % number))
    page = await json_of(visitor, "group", name="laggers")
    assert page["lag"] == page["lag_without_member"] == 6
    assert (page["state"], page["dead_letters"]) == ("no members", 0)
    html = await html_of(visitor, "group", name="laggers")
    assert '<span class="badge bad">no members</span>' in html
    assert "gantry consume lagging -g laggers" in html
    assert 0 <= page["seconds"] < 60
    assert "lagging" in await html_of(visitor, "group", name="laggers")

    async def listed() -> Any:
        table = (await json_of(visitor, "groups", search="laggers"))["table"]
        return table["rows"] if table is not None and table["rows"] and table["rows"][0]["lag"] == 6 else None

    (row,) = await until(listed)
    assert row["topics"] == ["lagging"]


async def test_expired_messages_are_no_lag(
    visitor: httpx.AsyncClient, cluster: EmbeddedCluster, producer: SyncProducer
) -> None:
    address, queue = cluster.brokers[0], MessageQueue("expiring", "broker-a", 0)
    async with AdminClient(cluster.name_server) as admin:
        await admin.create_topic(TopicConfig("expiring", 1, 1), broker=address)
        producer.send(Message("expiring", b"consumed"), queue=queue)
        seen: list[bytes] = []

        async def consume(message: Message) -> None:
            seen.append(message.body)

        consumer = PushConsumer(cluster.name_server, "expirers", consume, start_from="earliest")
        consumer.subscribe("expiring")
        async with consumer:
            await until(lambda: seen == [b"consumed"])
        for _ in range(2):
            producer.send(Message("expiring", b"old"), queue=queue)
        sent = time()
        await until(lambda: time() > sent + 0.1)
        sent = time()
        producer.send(Message("expiring", b"new"), queue=queue)
        assert (await json_of(visitor, "group", name="expirers"))["lag"] == 3
        await admin.create_topic(TopicConfig("expiring", 1, 1, attributes={"+retention.bytes": "1"}), broker=address)
        # Makes the broker clean its store at once, and not after 10 s.
        await admin.delete_expired_commit_log([address])

        async def clipped() -> Any:
            page = await json_of(visitor, "group", name="expirers")
            return page if page["lag"] == 1 else None

        page = await until(clipped)
    # The age is that of the oldest message that has not expired. Store times are in whole milliseconds.
    assert page["seconds"] <= time() - sent + 0.001
    (row,) = [row for row in page["queues"] if row["topic"] == "expiring"]
    assert (row["consumed"], row["lag"]) == (1, 1)


async def test_where_a_consumer_hangs(
    visitor: httpx.AsyncClient, cluster: EmbeddedCluster, producer: SyncProducer
) -> None:
    await make_topic(cluster, "hanging")
    producer.send(Message("hanging", b"x"))
    release = asyncio.Event()

    async def wait_for_the_database(message: Message) -> None:
        await release.wait()

    consumer = PushConsumer(cluster.name_server, "hangers", wait_for_the_database, start_from="earliest")
    consumer.subscribe("hanging")
    async with consumer:

        async def hangs() -> Any:
            # Brokers have no such group until its first heartbeat.
            answer = await visitor.get("/api/v1/group", params={"name": "hangers"})
            members = answer.json().get("members", [])
            if not members:
                return None
            page = await json_of(visitor, "member", group="hangers", client_id=members[0]["client_id"])
            return page if page["stacks"] else None

        page = await until(hangs)
        assert "wait_for_the_database" in page["stacks"]
        html = await html_of(visitor, "member", group="hangers", client_id=page["client_id"])
        assert "wait_for_the_database" in html
        release.set()


async def _members(visitor: httpx.AsyncClient, group: str) -> Any:
    page = await json_of(visitor, "group", name=group)
    owners = [queue["member"] for queue in page["queues"] if queue["topic"] == "lagging"]
    return page if len(owners) == 4 and all(owners) else None


async def test_a_name_server_that_is_gone_is_an_error_page() -> None:
    async with browser(Settings("127.0.0.1:1", timeout_ms=500)) as visitor:
        answer = await visitor.get("/overview")
        assert answer.status_code == 502
        assert "127.0.0.1:1" in answer.text
        assert (await visitor.get("/api/v1/overview")).json()["error"]


async def test_arguments_that_make_no_sense(visitor: httpx.AsyncClient) -> None:
    assert (await visitor.get("/topics", params={"page": "many"})).status_code == 400
    assert (await visitor.get("/topic")).status_code == 400
    assert (await visitor.get("/nowhere")).status_code == 404
    assert (await visitor.get("/api/v1/nowhere")).status_code == 404


async def test_a_name_is_never_markup(visitor: httpx.AsyncClient) -> None:
    nasty = "<script>alert(1)</script>\"'"
    for page in PAGES:
        for argument in (
            "search",
            "name",
            "address",
            "sort",
            "kind",
            "q",
            "topic",
            "group",
            "tab",
            "key",
            "span",
            "token",
        ):
            html = (await visitor.get(f"/{page.name}", params={argument: nasty})).text
            assert "<script>alert" not in html, page.name
            assert "{{" not in html


async def test_chinese(visitor: httpx.AsyncClient, cluster: EmbeddedCluster) -> None:
    html = await html_of(visitor, "overview")
    assert '<html lang="en">' in html
    answer = await visitor.get("/language", params={"to": "zh", "back": "/topics"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/topics")
    html = await html_of(visitor, "topics")
    assert '<html lang="zh-CN">' in html
    assert "主题" in text_of(html)
    visitor.cookies.clear()
    html = (await visitor.get("/overview", headers={"accept-language": "zh-CN,zh;q=0.9,en;q=0.8"})).text
    assert "总览" in html
    for elsewhere in ("//elsewhere.example", "https://elsewhere.example", "/\\elsewhere.example"):
        answer = await visitor.get("/language", params={"to": "zh", "back": elsewhere})
        assert answer.headers["location"] == "/"


def test_every_text_is_there_in_chinese() -> None:
    used = {text for page in PAGES for text in (page.title, page.menu, page.section) if text} | {*STATES}
    for template in TEMPLATES.glob("*.html"):
        text = template.read_text()
        used |= {found for _, found in re.findall(r"""\b_\((["'])(.*?)\1""", text)}
    assert len(used) > 50
    assert sorted(used - set(texts("zh"))) == []


async def test_other_names_of_this_machine_are_refused(visitor: httpx.AsyncClient) -> None:
    answer = await visitor.get("/overview", headers={"host": "rebound.example:8180"})
    assert answer.status_code == 421
    for name in ("localhost:8180", "127.0.0.1", "[::1]:8180"):
        assert (await visitor.get("/overview", headers={"host": name})).status_code == 200


async def test_files_come_with_the_console(visitor: httpx.AsyncClient) -> None:
    for name in ("htmx.min.js", "console.js", "console.css", "uPlot.min.js", "uPlot.min.css", "icon.svg"):
        answer = await visitor.get(f"/static/{name}")
        assert answer.status_code == 200
        assert answer.headers["x-content-type-options"] == "nosniff"
    html = await html_of(visitor, "overview")
    assert not re.findall(r'(?:src|href)="(?:https?:)?//', html)
    assert "style=" not in html
    assert not re.findall(r"<script(?![^>]*src=)", html)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "::"])
def test_without_a_login_only_this_machine(host: str) -> None:
    from gantrymq.errors import ConfigError

    with pytest.raises(ConfigError, match="without a login"):
        Settings("127.0.0.1:9876", host=host).check()
