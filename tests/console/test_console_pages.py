"""The console's first pages: servers, topics, groups; as HTML and as JSON, in two languages."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from console_support import CLUSTER, browser, cluster, html_of, json_of, producer, text_of, visitor
from waiting import until

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.console.language import texts
from gantrymq.console.queries.all_pages import PAGES
from gantrymq.console.settings import Settings
from gantrymq.protocol.bodies.heartbeat import CONSUME_FROM_FIRST_OFFSET
from gantrymq.protocol.message import Message
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

    async def rows(**arguments: Any) -> list[str]:
        table = (await json_of(visitor, "topics", search="CUT-", **arguments))["table"]
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
    row = (await json_of(visitor, "topics", search="cut-b"))["table"]["rows"][0]
    assert row == {
        "name": "cut-b",
        "kind": "topic",
        "message_type": "NORMAL",
        "read_queues": 4,
        "write_queues": 4,
        "perm": "rw",
        "brokers": ["broker-a", "broker-b"],
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
    assert all(0 < queue["oldest_ms"] <= queue["newest_ms"] for queue in page["queues"] if queue["max_offset"])
    assert "with-queues" in await html_of(visitor, "topic", name="with-queues")


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

    consumer = PushConsumer(cluster.name_server, "laggers", consume, consume_from_where=CONSUME_FROM_FIRST_OFFSET)
    consumer.subscribe("lagging")
    async with consumer:
        await until(lambda: len(seen) == 10)
        page = await until(lambda: _members(visitor, "laggers"))
        (member,) = page["members"]
        assert member["subscriptions"] == [{"topic": "lagging", "type": "TAG", "expression": "*"}]
        assert page["subscriptions_agree"]
        assert {queue["member"] for queue in page["queues"] if queue["topic"] == "lagging"} == {member["client_id"]}
        one = await json_of(visitor, "member", group="laggers", client_id=member["client_id"])
        assert [queue["topic"] for queue in one["queues"]].count("lagging") == 4
        assert member["client_id"] in await html_of(visitor, "member", group="laggers", client_id=member["client_id"])
    gone = await visitor.get("/member", params={"group": "laggers", "client_id": "nobody"})
    assert gone.status_code == 502
    assert "no broker reaches" in gone.text
    for number in range(6):
        producer.send(Message("lagging", b"late %d" % number))
    page = await json_of(visitor, "group", name="laggers")
    assert page["behind"] == 6
    assert 0 <= page["seconds"] < 60
    assert "lagging" in await html_of(visitor, "group", name="laggers")

    async def listed() -> Any:
        table = (await json_of(visitor, "groups", search="laggers"))["table"]
        return table["rows"] if table is not None and table["rows"] and table["rows"][0]["behind"] == 6 else None

    (row,) = await until(listed)
    assert row["topics"] == ["lagging"]


async def test_where_a_consumer_hangs(
    visitor: httpx.AsyncClient, cluster: EmbeddedCluster, producer: SyncProducer
) -> None:
    await make_topic(cluster, "hanging")
    producer.send(Message("hanging", b"x"))
    release = asyncio.Event()

    async def wait_for_the_database(message: Message) -> None:
        await release.wait()

    consumer = PushConsumer(
        cluster.name_server, "hangers", wait_for_the_database, consume_from_where=CONSUME_FROM_FIRST_OFFSET
    )
    consumer.subscribe("hanging")
    async with consumer:

        async def hangs() -> Any:
            # Nobody knows the group before the first heartbeat has come to a broker.
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
        for argument in ("search", "name", "address", "sort", "kind"):
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
    used = {page.title for page in PAGES} | {page.menu for page in PAGES if page.menu}
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
