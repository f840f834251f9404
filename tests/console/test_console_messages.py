"""Messages in the console.

The tests cover messages by time, key, id and offset, bodies of all kinds, the live tail, traces, and dead-letter
messages.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx
import msgspec
import pytest
from console_support import CLUSTER, browser, cluster, html_of, json_of, producer, visitor
from console_support import text_of as text_of_html
from wait_until import until

from gantrymq.client.admin.base import transport_of
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.admin.trace import TraceView
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.client.producing.transaction_producer import LocalTransactionState, TransactionProducer
from gantrymq.console import request_limits
from gantrymq.console.bodies import PREVIEW_BYTES, text_of
from gantrymq.console.cluster_view import ClusterView
from gantrymq.console.queries.messages import timeline
from gantrymq.console.queries.search import SearchArguments, SearchPage, search
from gantrymq.console.request_limits import MAX_BODIES, RequestLimits
from gantrymq.console.settings import Settings
from gantrymq.console.tail import MAX_PER_QUEUE, SHOWN, TailArguments, tail
from gantrymq.errors import ClientError, NoRouteInfo
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.compression import CompressionType
from gantrymq.protocol.message import Message, MessageExt
from gantrymq.protocol.properties import UNIQUE_KEY
from gantrymq.protocol.topic_name import TOOLS_GROUP
from gantrymq.sync import SyncProducer
from gantrymq.system.clock import now_ms
from gantrymq.testing.embedded import EmbeddedCluster

__all__ = ["cluster", "producer", "visitor"]


async def make_topic(cluster: EmbeddedCluster, name: str, queues: int = 2) -> None:
    async with AdminClient(cluster.name_server) as admin:
        await admin.ensure_topic(name, queues=queues)


@pytest.mark.parametrize("order", ["earliest", "newest"])
async def test_by_time_with_page_tokens(
    visitor: httpx.AsyncClient, cluster: EmbeddedCluster, producer: SyncProducer, order: str
) -> None:
    topic = f"paged-{order}"
    await make_topic(cluster, topic, 3)
    sent = [producer.send(Message(topic, b"%d" % number)).msg_id for number in range(50)]
    seen: list[dict[str, Any]] = []
    token = ""
    pages = 0
    while True:
        page = await json_of(visitor, "messages", topic=topic, begin="1", order=order, size=8, token=token)
        assert page["order"] == order
        seen += page["rows"]
        pages += 1
        token = page["token"]
        if token is None:
            break
    assert pages == 7
    assert sorted(row["id"] for row in seen) == sorted(sent)
    times = [row["stored_ms"] for row in seen]
    assert times == sorted(times, reverse=order == "newest")
    late = await json_of(visitor, "messages", topic=topic, begin=str(max(times) + 60_000), order=order)
    assert late["rows"] == []
    until_now = await json_of(visitor, "messages", topic=topic, begin="1", end=str(min(times) - 60_000), order=order)
    assert until_now["rows"] == []
    html = await html_of(visitor, "messages", topic=topic, begin="2020-01-01T00:00", size=8, order=order)
    assert "token=" in html


async def test_the_newest_come_first(
    visitor: httpx.AsyncClient, cluster: EmbeddedCluster, producer: SyncProducer
) -> None:
    await make_topic(cluster, "newest")
    for number in range(40):
        producer.send(Message("newest", b"%d" % number))
    page = await json_of(visitor, "messages", topic="newest", size=8)
    assert page["order"] == "newest"
    assert page["token"] is not None
    times = [row["stored_ms"] for row in page["rows"]]
    assert len(times) == 8
    assert times == sorted(times, reverse=True)


async def test_time_ranges_and_text_in_bodies(
    visitor: httpx.AsyncClient, cluster: EmbeddedCluster, producer: SyncProducer
) -> None:
    await make_topic(cluster, "ranged", 2)
    for number in range(30):
        producer.send(Message("ranged", b'{"order": %d}' % number, keys=[f"key-{number}"]))
    assert len(await _rows(visitor, topic="ranged", span="5m")) == 30
    # A begin overrides the range.
    assert await _rows(visitor, topic="ranged", span="5m", begin=str(now_ms() + 60_000)) == []
    for text, shown in (('"order": 17', [17]), ("key-2", [2, *range(20, 30)]), ("nowhere", [])):
        page = await json_of(visitor, "messages", topic="ranged", search=text)
        assert sorted(int(row["keys"][0].removeprefix("key-")) for row in page["rows"]) == shown
        assert page["looked"] == 30
    for wrong in ({"span": "1y"}, {"order": "random"}):
        answer = await visitor.get("/api/v1/messages", params={"topic": "ranged", **wrong})
        assert answer.status_code == 400
    html = await html_of(visitor, "topic", name="ranged", search="nowhere")
    assert "No message matches" in html
    assert "Remove the filter" in html
    html = await html_of(visitor, "topic", name="ranged")
    assert "key-29" in html
    assert "hx-trigger" not in html


async def test_the_page_of_an_empty_topic_says_what_to_do(visitor: httpx.AsyncClient, cluster: EmbeddedCluster) -> None:
    await make_topic(cluster, "hollow", 1)
    html = await html_of(visitor, "topic", name="hollow")
    assert "echo hello | gantry produce hollow" in html
    assert "gantry consume hollow -g my-group" in await html_of(visitor, "topic", name="hollow", tab="consumers")
    assert "Choose a topic" in await html_of(visitor, "messages")
    # A valid name of a topic that a shell would run as a command.
    await make_topic(cluster, "hollow|reboot", 1)
    assert "gantry produce &#39;hollow|reboot&#39;" in await html_of(visitor, "topic", name="hollow|reboot")
    html = await html_of(visitor, "topic", name="hollow|reboot", tab="consumers")
    assert "gantry consume &#39;hollow|reboot&#39; -g my-group" in html


async def test_queues_that_cannot_be_read(
    visitor: httpx.AsyncClient, cluster: EmbeddedCluster, producer: SyncProducer
) -> None:
    """The page names each queue once, and does not try its older messages."""
    await make_topic(cluster, "unreadable", 1)
    for number in range(60):
        producer.send(Message("unreadable", b"%d" % number))
    async with AdminClient(cluster.name_server) as admin:
        forbidden = SubscriptionGroupConfig(TOOLS_GROUP, consume_enable=False)
        await admin.create_group(forbidden, cluster=CLUSTER)
        try:
            for order in ("newest", "earliest"):
                page = await json_of(visitor, "messages", topic="unreadable", order=order, size=4)
                names = [one["what"] for one in page["unasked"]]
                assert len(names) == len(set(names)) == 2
                assert (page["rows"], page["token"]) == ([], None)
        finally:
            await admin.create_group(msgspec.structs.replace(forbidden, consume_enable=True), cluster=CLUSTER)


async def test_a_key_with_further_filters(
    visitor: httpx.AsyncClient, cluster: EmbeddedCluster, producer: SyncProducer
) -> None:
    await make_topic(cluster, "keyed", 1)
    for number in range(12):
        producer.send(Message("keyed", b"body %d" % number, keys=["shared"]))

    async def indexed() -> Any:
        rows = await _rows(visitor, topic="keyed", key="shared")
        return rows if len(rows) == 12 else None

    times = {row["start"]: row["stored_ms"] for row in await until(indexed)}
    ones = ["body 1", "body 10", "body 11"]
    for arguments, shown, is_cut in (
        ({"order": "earliest"}, list(times), False),
        ({"order": "newest"}, list(times), False),
        ({"order": "earliest", "size": 2}, list(times), True),
        ({"search": "body 1"}, ones, False),
        ({"search": "body 1", "order": "earliest", "size": 1}, ones, True),
        ({"search": "nowhere"}, [], False),
        ({"begin": "1", "order": "earliest"}, list(times), False),
        ({"begin": "1969-12-31T00:00", "end": "1"}, [], False),
    ):
        page = await json_of(visitor, "messages", topic="keyed", key="shared", **arguments)
        assert page["order"] == arguments.get("order", "newest")
        assert page["looked"] == 12 or not is_cut
        expected = sorted((times[start] for start in shown), reverse=page["order"] == "newest")
        # Messages of two brokers can have the same time.
        assert [row["stored_ms"] for row in page["rows"]] == expected[: arguments.get("size")], arguments
        assert {row["start"] for row in page["rows"]} <= set(shown), arguments


async def test_messages_of_a_tag(visitor: httpx.AsyncClient, cluster: EmbeddedCluster, producer: SyncProducer) -> None:
    """The brokers find the messages in their index, so that the number of other messages has no limit."""
    await make_topic(cluster, "tagged", 1)
    for number in range(6):
        tag = "red" if number % 2 else "blue"
        producer.send(Message("tagged", b"body %d" % number, keys=[f"key-{number % 3}"], tags=tag))

    async def indexed() -> Any:
        rows = await _rows(visitor, topic="tagged", tag="red")
        return rows if len(rows) == 3 else None

    assert {row["start"] for row in await until(indexed)} == {"body 1", "body 3", "body 5"}
    assert await _rows(visitor, topic="tagged", tag="re") == []
    assert [row["start"] for row in await _rows(visitor, topic="tagged", tag="red", key="key-0")] == ["body 3"]
    assert [row["start"] for row in await _rows(visitor, topic="tagged", tag="red", search="body 5")] == ["body 5"]


@pytest.mark.parametrize("kind", ["key", "tag"])
async def test_more_messages_than_brokers_return(
    visitor: httpx.AsyncClient, cluster: EmbeddedCluster, producer: SyncProducer, kind: str
) -> None:
    """A broker returns at most 64 messages with a key or tag. The page says what it lacks, and how to continue."""
    topic = f"many-by-{kind}"
    async with AdminClient(cluster.name_server) as admin:
        await admin.create_topic(TopicConfig(topic, 1, 1), broker=cluster.brokers[0])
        await until(lambda: has_route(admin, topic))
    sent = [Message(topic, b"body %d." % number, keys=["shared"], tags="shared") for number in range(70)]
    for message in sent[:6]:
        producer.send(message)
    # Times in the index are in whole seconds.
    later = now_ms() + 2500
    await until(lambda: now_ms() > later)
    for message in sent[6:]:
        producer.send(message)
    chosen = {"topic": topic, kind: "shared", "size": 100}

    async def indexed() -> Any:
        page = await json_of(visitor, "messages", **chosen)
        return page if page["rows"] and page["rows"][0]["start"] == "body 69." else None

    page = await until(indexed)
    assert (len(page["rows"]), page["looked"], page["more"]) == (64, 64, 0)
    assert page["searched_from_ms"] == page["rows"][-1]["stored_ms"]
    html = await html_of(visitor, "messages", search="body 0.", **chosen)
    assert "No message matches" in html
    assert "Only the newest 64 messages with this key or tag were searched. An earlier “To” time continues" in html
    earlier = await json_of(visitor, "messages", search="body 0.", end=str(page["searched_from_ms"] - 1000), **chosen)
    assert [row["start"] for row in earlier["rows"]] == ["body 0."]
    assert earlier["searched_from_ms"] is None
    page = await json_of(visitor, "messages", **chosen | {"size": 10, "order": "earliest"})
    assert (page["rows"][0]["start"], page["more"]) == ("body 6.", 54)
    html = await html_of(visitor, "messages", **chosen | {"size": 10, "order": "earliest"})
    assert "54 more messages match. Change the time range to show them." in html


async def has_route(admin: AdminClient, topic: str) -> bool:
    try:
        return bool((await admin.topic_route(topic)).broker_datas)
    except NoRouteInfo:
        return False


async def test_search_waits_for_other_pages(cluster: EmbeddedCluster, producer: SyncProducer) -> None:
    """The timeout of a search for an id does not include the wait for the pages that read messages."""
    await make_topic(cluster, "awaited", 1)
    message_id = producer.send(Message("awaited", b"x")).msg_id
    limits = RequestLimits()
    view = ClusterView(Settings(cluster.name_server, timeout_ms=500, tables_fresh_s=0.2), limits, None)

    async def found() -> SearchPage | None:
        page = await search(view, SearchArguments(message_id))
        return page if page.messages else None

    try:
        await until(found)
        for _ in range(MAX_BODIES):
            await limits.bodies.acquire()
        searching = asyncio.ensure_future(search(view, SearchArguments(message_id)))
        await asyncio.wait([searching], timeout=1)
        for _ in range(MAX_BODIES):
            limits.bodies.release()
        page = await searching
        assert [row.topic for row in page.messages] == ["awaited"]
        assert page.unasked == []
    finally:
        await view.close()


class ViewedMessages:
    """A hook that counts the requests for a message by its offset."""

    count = 0

    def before_request(self, address: str, request: RemotingCommand) -> None:
        self.count += request.code == RequestCode.VIEW_MESSAGE_BY_ID

    def after_response(self, address: str, request: RemotingCommand, response: RemotingCommand) -> None:
        pass


async def test_search_for_an_offset_id_reads_the_message_once(
    cluster: EmbeddedCluster, producer: SyncProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_topic(cluster, "viewed", 1)
    sent = producer.send(Message("viewed", b"x"))
    viewed = ViewedMessages()
    monkeypatch.setattr(request_limits, "rpc_hooks", lambda credentials: [viewed])
    view = ClusterView(Settings(cluster.name_server), RequestLimits(), None)
    try:

        async def found() -> SearchPage | None:
            page = await search(view, SearchArguments(sent.offset_msg_id))
            return page if page.is_complete else None

        page = await until(found)
        assert [row.id for row in page.messages] == [sent.msg_id]
        assert viewed.count == 1
    finally:
        await view.close()


async def test_search_for_the_id_of_a_grpc_client(
    visitor: httpx.AsyncClient, cluster: EmbeddedCluster, producer: SyncProducer
) -> None:
    await make_topic(cluster, "by-grpc", 1)
    message_id = "01AABBCCDDEEFF00112233445566778899"
    producer.send(Message("by-grpc", b"x", properties={UNIQUE_KEY: message_id}))

    async def found() -> Any:
        return (await json_of(visitor, "search", q=message_id))["messages"]

    (row,) = await until(found)
    assert (row["topic"], row["id"]) == ("by-grpc", message_id)


async def test_search(visitor: httpx.AsyncClient, cluster: EmbeddedCluster, producer: SyncProducer) -> None:
    """The search finds topics, groups, and a message by either of its ids."""
    await make_topic(cluster, "searched-b", 1)
    await make_topic(cluster, "searched", 1)
    result = producer.send(Message("searched", b"x"))
    async with AdminClient(cluster.name_server) as admin:
        await admin.create_group(SubscriptionGroupConfig("searchers"), cluster=CLUSTER)
        await transport_of(admin).api.update_offset(cluster.brokers[0], "searchers", "searched", 0, 0)

    async def known() -> Any:
        page = await json_of(visitor, "search", q="SEARCHE")
        return page if page["is_complete"] and page["topics"] and page["groups"] else None

    page = await until(known)
    assert page["topics"] == ["searched", "searched-b"]
    assert page["groups"] == ["searchers"]
    assert (page["topics_found"], page["groups_found"], page["is_message_id"]) == (2, 1, False)
    for message_id in (result.msg_id, result.offset_msg_id):

        async def found(wanted: str = message_id) -> Any:
            return (await json_of(visitor, "search", q=wanted))["messages"]

        (row,) = await until(found)
        assert (row["topic"], row["id"], row["broker"]) == ("searched", result.msg_id, result.queue.broker_name)
    assert result.msg_id in await html_of(visitor, "search", q=result.msg_id)
    assert "Nothing found" in await html_of(visitor, "search", q="F" * 32)
    assert "searched-b" in await html_of(visitor, "search", q="searched-b")
    assert "Nothing to search for" in await html_of(visitor, "search")
    answer = await visitor.get("/search", params={"q": "x" * 256})
    assert answer.status_code == 400
    assert "at most 255" in answer.text


@pytest.mark.parametrize("token", ["nonsense", "e30", "eyJhIjogImIifQ==", "a" * 5000, "W10="], ids=range(5))
async def test_a_token_that_was_made_up(visitor: httpx.AsyncClient, cluster: EmbeddedCluster, token: str) -> None:
    await make_topic(cluster, "tokens")
    answer = await visitor.get("/api/v1/messages", params={"topic": "tokens", "token": token})
    assert answer.status_code in (200, 400)


async def test_by_key_by_id_and_by_place(
    visitor: httpx.AsyncClient, cluster: EmbeddedCluster, producer: SyncProducer
) -> None:
    await make_topic(cluster, "found")
    result = producer.send(Message("found", b'{"a": [1, 2]}', keys=["order-7"], tags="paid", properties={"who": "me"}))
    by_key = await until(lambda: _rows(visitor, topic="found", key="order-7"))
    by_id = await until(lambda: _rows(visitor, topic="found", id=result.msg_id))
    by_place = (await json_of(visitor, "messages", topic="found", id=result.offset_msg_id))["rows"]
    for rows in (by_key, by_id, by_place):
        assert [row["id"] for row in rows] == [result.msg_id]
        assert rows[0]["broker"] == result.queue.broker_name
    place = {"topic": "found", "broker": result.queue.broker_name, "queue": result.queue.queue_id}
    page = await json_of(visitor, "message", offset=result.queue_offset, **place)
    assert page["body"]["kind"] == "json"
    assert page["body"]["text"] == '{\n  "a": [\n    1,\n    2\n  ]\n}'
    assert page["properties"]["who"] == "me"
    assert page["offset_id"] == result.offset_msg_id
    assert "order-7" in await html_of(visitor, "message", offset=result.queue_offset, **place)
    body = await visitor.get("/message/body", params={**place, "offset": result.queue_offset})
    assert body.content == b'{"a": [1, 2]}'
    assert body.headers["content-type"] == "application/octet-stream"
    assert body.headers["content-disposition"].startswith("attachment")
    missing = await visitor.get("/message", params={**place, "offset": 1000})
    assert missing.status_code == 502
    assert (await visitor.get("/message", params={"topic": "found"})).status_code == 400


async def _rows(visitor: httpx.AsyncClient, **arguments: Any) -> Any:
    return (await json_of(visitor, "messages", **arguments))["rows"]


HOSTILE = [
    b"<script>alert(1)</script>",
    b"</pre></details><img src=x onerror=alert(1)>",
    b'{"a": "</script><script>alert(1)</script>"}',
    b"{{ 7 * 7 }}{% raw %}",
    b"\x00\xff\xfe" * 100,
    "a‮txt.exe‬".encode(),
    b"[" * 200_000,
]


@pytest.mark.parametrize("number", range(len(HOSTILE)))
async def test_hostile_bodies(
    visitor: httpx.AsyncClient, cluster: EmbeddedCluster, producer: SyncProducer, number: int
) -> None:
    topic = f"hostile-%7C-{number}".replace("%7C", "|")
    await make_topic(cluster, topic, 1)
    result = producer.send(
        Message(topic, HOSTILE[number], tags="<b>", properties={"<script>alert(2)</script>": "<img src=x onerror=y>"})
    )
    place = {"topic": topic, "broker": result.queue.broker_name, "queue": result.queue.queue_id, "offset": 0}
    for html in (await html_of(visitor, "message", **place), await html_of(visitor, "messages", topic=topic)):
        assert not re.search(r"<script(?! src=)|<img(?! src=./static/)|onerror=[^&]*>|<b>|‮", html)
        assert "49" not in re.findall(r"<pre[^>]*>(.*?)</pre>", html)


async def test_directional_characters_are_shown_as_code_points(
    visitor: httpx.AsyncClient, cluster: EmbeddedCluster, producer: SyncProducer
) -> None:
    """In keys, tags, names and errors. A form's field has the typed text, and the API the stored text."""
    await make_topic(cluster, "directed", 1)
    message = Message("directed", b"x", keys=["k\u202ey"], tags="t\u2066g", properties={"p\u200fr": "v\u202el"})
    result = producer.send(message)
    place = {"topic": "directed", "broker": result.queue.broker_name, "queue": 0, "offset": result.queue_offset}
    html = await html_of(visitor, "message", **place) + await html_of(visitor, "messages", topic="directed")
    for shown in ("k\\u202ey", "t\\u2066g", "p\\u200fr", "v\\u202el"):
        assert shown in html
    assert not re.search("[\u202e\u2066\u200f]", html)
    rows = (await json_of(visitor, "messages", topic="directed"))["rows"]
    assert (rows[0]["keys"], rows[0]["tags"]) == (["k\u202ey"], "t\u2066g")
    html = await html_of(visitor, "messages", topic="directed", key="k\u202ey")
    assert 'name="key" value="k\u202ey"' in html
    answer = await visitor.get("/message", params={"topic": "no\u202etopic", "id": "x"})
    assert "no\\u202etopic" in answer.text
    assert "\u202e" not in answer.text


async def test_a_body_of_4_mib(visitor: httpx.AsyncClient, cluster: EmbeddedCluster, producer: SyncProducer) -> None:
    await make_topic(cluster, "large", 1)
    body = b"x" * (4 * 1024 * 1024 - 2000)
    result = producer.send(Message("large", body))
    place = {"topic": "large", "broker": result.queue.broker_name, "queue": 0, "offset": result.queue_offset}
    page = await json_of(visitor, "message", **place)
    assert page["body"]["is_cut"]
    assert len(page["body"]["text"]) == PREVIEW_BYTES
    assert len(await html_of(visitor, "message", **place)) < 200_000
    assert len((await visitor.get("/message/body", params=place)).content) == len(body)
    assert len(await html_of(visitor, "messages", topic="large")) < 20_000


def test_text_that_is_cut_within_a_character() -> None:
    kind, text = text_of(b"x" + "é".encode() * 200 + b"\xc3", is_cut=True)
    assert kind == "text"
    assert set(text) == {"x", "é"}
    assert text_of(b"ok\xc3")[0] == "binary"
    assert text_of(b"ok\xff")[0] == "binary"


@pytest.mark.parametrize(
    ("data", "is_cut", "kind", "text"),
    [
        (b'{"a": [], "b": {"c": -1.5e3}}', False, "json", '{\n  "a": [],\n  "b": {\n    "c": -1.5e3\n  }\n}'),
        (b'[1, "a]b', True, "json", '[\n  1,\n  "a]b'),
        (b"[tr", True, "json", "[\n  tr"),
        (b"[1", False, "text", "[1"),
        (b"[not json]", False, "text", "[not json]"),
        (b"[not json, 1", True, "text", "[not json, 1"),
        (b"]" * 40, False, "text", "]" * 40),
        (b"[" * 33 + b"]" * 33, False, "text", "[" * 33 + "]" * 33),
    ],
)
def test_json_is_laid_out(data: bytes, is_cut: bool, kind: str, text: str) -> None:
    assert text_of(data, is_cut=is_cut) == (kind, text)


@pytest.mark.parametrize("compression", list(CompressionType))
async def test_only_the_beginning_of_a_body_is_shown(
    visitor: httpx.AsyncClient, cluster: EmbeddedCluster, compression: CompressionType
) -> None:
    """The rest is available as a download, for any compression."""
    topic = f"begun-{compression}"
    await make_topic(cluster, topic, 1)
    body = b"0123456789abcdef" * (1 << 14)
    async with Producer(cluster.name_server, "begun", compression=compression) as compressing:
        result = await compressing.send(Message(topic, body))
    place = {"topic": topic, "broker": result.queue.broker_name, "queue": 0, "offset": result.queue_offset}
    shown = (await json_of(visitor, "message", **place))["body"]
    assert (shown["kind"], shown["text"], shown["is_cut"]) == ("text", body[:PREVIEW_BYTES].decode(), True)
    answer = await visitor.get("/message/body", params=place)
    assert answer.content == body
    assert answer.headers["content-length"] == str(len(body))


# -- live tail ----------------------------------------------------------------------------------------------------


async def test_live_tail_is_bounded(cluster: EmbeddedCluster, producer: SyncProducer) -> None:
    await make_topic(cluster, "followed", 1)
    settings = Settings(cluster.name_server)
    view = ClusterView(settings, RequestLimits(), None)
    producer.send(Message("followed", b"before"))
    rounds = tail(view, TailArguments(topic="followed"))
    try:
        first = asyncio.ensure_future(anext(rounds))
        sent = 0

        async def told() -> bool:
            nonlocal sent
            # The tail begins at the current end offsets and shows all later messages.
            producer.send(Message("followed", b"%d" % sent))
            sent += 1
            return first.done()

        await until(told)
        one = await first
        assert 0 < len(one.rows) <= SHOWN
        assert all(row.start != "before" for row in one.rows)
        for number in range(4 * MAX_PER_QUEUE):
            producer.send(Message("followed", b"many %d" % number))
        shown = left_out = 0
        while shown + left_out < 4 * MAX_PER_QUEUE:
            one = await anext(rounds)
            shown += len(one.rows)
            left_out += one.left_out
            assert len(one.rows) <= SHOWN
        assert left_out >= MAX_PER_QUEUE
        assert f"many {4 * MAX_PER_QUEUE - 1}" in [row.start for row in one.rows]
    finally:
        await rounds.aclose()
        await view.close()


async def test_live_tail_with_a_filter(cluster: EmbeddedCluster, producer: SyncProducer) -> None:
    await make_topic(cluster, "filtered", 1)
    view = ClusterView(Settings(cluster.name_server), RequestLimits(), None)
    rounds = tail(view, TailArguments(topic="filtered", filter="good"))
    try:
        first = asyncio.ensure_future(anext(rounds))

        async def told() -> bool:
            producer.send(Message("filtered", b"no", tags="bad"))
            producer.send(Message("filtered", b"yes", tags="good"))
            return first.done()

        await until(told)
        assert {row.tags for row in (await first).rows} == {"good"}
    finally:
        await rounds.aclose()
        await view.close()


async def test_a_tail_of_nothing(cluster: EmbeddedCluster) -> None:
    view = ClusterView(Settings(cluster.name_server), RequestLimits(), None)
    with pytest.raises(ClientError):
        await anext(tail(view, TailArguments()))
    with pytest.raises(ClientError, match="nowhere"):
        await anext(tail(view, TailArguments(topic="nowhere")))
    await view.close()
    async with browser(Settings(cluster.name_server)) as visitor:
        answer = await visitor.get("/tail/stream", params={"topic": "nowhere"})
        assert answer.headers["content-type"].startswith("text/event-stream")
        first, second, _ = answer.text.split("\n\n")
        assert "nowhere" in json.loads(first.removeprefix("data: "))["problem"]
        assert second.startswith("event: over")


# -- traces and dead-letter messages --------------------------------------------------------------------------------


def test_a_timeline() -> None:
    send = TraceView("Pub", "1", "p", "a", 1000, 10, True)
    consumed = TraceView("SubAfter", "1", "c", "b", 1100, 40, False)
    first, second = timeline([consumed, send])
    assert (first.type, first.began_ms, first.begin) == ("send", 1000, 0.0)
    assert (second.type, second.began_ms, second.begin, second.length) == ("consume", 1060, 0.6, 0.4)
    old = TraceView("SubAfter", "1", "c", "b", 0, 40, True)
    assert timeline([old])[0].begin == 0.0
    end = TraceView("EndTransaction", "1", "p", "a", 1020, 0, True, transaction_state="COMMIT_MESSAGE")
    again = TraceView("SubAfter", "1", "c", "b", 1200, 10, True)
    other = TraceView("SubAfter", "1", "d", "b", 1300, 10, True)
    steps = timeline([send, end, other, again, consumed])
    assert [(step.type, step.attempt, step.state) for step in steps] == [
        ("send", 0, ""),
        ("end", 0, "COMMIT_MESSAGE"),
        ("consume", 1, ""),
        ("consume", 2, ""),
        ("consume", 1, ""),
    ]


class Committing:
    def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE


async def test_the_whole_way_of_a_message(visitor: httpx.AsyncClient, cluster: EmbeddedCluster) -> None:
    """Each step is shown: transaction, store, failed consumption, and second consumption."""
    await make_topic(cluster, "travelled", 1)
    tries: list[bytes] = []

    async def consume(message: Message) -> None:
        tries.append(message.body)
        if len(tries) == 1:
            raise ValueError("not yet")

    # In an orderly group, the next attempt follows at once.
    consumer = PushConsumer(
        cluster.name_server,
        "travellers",
        consume,
        orderly=True,
        suspend=0.05,
        start_from="earliest",
        enable_trace=True,
    )
    consumer.subscribe("travelled")
    async with (
        consumer,
        TransactionProducer(cluster.name_server, "agency", Committing(), enable_trace=True) as producer,
    ):
        result = await producer.send_in_transaction(Message("travelled", b"go"))
        await until(lambda: len(tries) == 2)

        async def all_told() -> Any:
            page = await json_of(visitor, "traces", id=result.result.msg_id)
            return page if len(page["steps"]) == 5 else None

        page = await until(all_told)
    steps = {(step["type"], step["attempt"]): step for step in page["steps"]}
    assert steps.keys() == {("send", 0), ("store", 0), ("end", 0), ("consume", 1), ("consume", 2)}
    assert steps["end", 0]["state"] == "COMMIT_MESSAGE"
    assert [steps["consume", attempt]["success"] for attempt in (1, 2)] == [False, True]
    assert steps["send", 0]["group"] == "agency"
    assert steps["store", 0]["client"] in cluster.brokers
    assert page["unasked"] == []
    html = await html_of(visitor, "traces", id=result.result.msg_id)
    assert "attempt 2" in html
    assert "end COMMIT_MESSAGE" in html


async def test_traces_that_are_not_there(visitor: httpx.AsyncClient) -> None:
    page = await json_of(visitor, "traces", id="0A")
    assert page["steps"] == []
    assert page["problem"]
    assert "0A" in await html_of(visitor, "traces", id="0A")


async def test_dead_letters(visitor: httpx.AsyncClient, cluster: EmbeddedCluster, producer: SyncProducer) -> None:
    await make_topic(cluster, "deadly")
    producer.send(Message("deadly", b"poison", keys=["k"]))

    async def fail(message: Message) -> None:
        raise ValueError("poison")

    consumer = PushConsumer(
        cluster.name_server,
        "mourners",
        fail,
        start_from="earliest",
        max_reconsume_times=0,
    )
    consumer.subscribe("deadly")
    async with consumer:

        async def died() -> Any:
            page = await json_of(visitor, "dead-letters", search="mourners")
            return page if page["table"] is not None and page["table"]["rows"] and page["letters"] else None

        page = await until(died)
    (row,) = page["table"]["rows"]
    assert (row["group"], row["letters"]) == ("mourners", 1)
    assert 0 < row["oldest_ms"] <= row["newest_ms"]
    assert "mourners" in await html_of(visitor, "dead-letters")
    overview = await json_of(visitor, "overview")
    assert overview["dead_letters"] == 1
    assert [(row["group"], row["letters"]) for row in overview["dead_letter_queues"]] == [("mourners", 1)]
    shown = text_of_html(await html_of(visitor, "overview"))
    assert "Groups with the most dead letters Group Dead letters Newest mourners" in shown
    answer = await visitor.get("/dead-letters/export", params={"group": "mourners"})
    (line,) = answer.text.splitlines()
    letter = msgspec.json.decode(line)
    assert (letter["topic"], letter["body"]["text"], letter["keys"]) == ("deadly", "poison", ["k"])
    assert (await visitor.get("/dead-letters/export", params={"group": "nobody"})).text == ""
