"""The console with a broker that accepts connections and never responds."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from console_support import CLUSTER, browser, html_of, json_of
from wait_until import until

from gantrymq.client.admin.base import transport_of
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.producing.producer import Producer
from gantrymq.console.queries.all_pages import PAGES
from gantrymq.console.settings import Settings
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.bodies.topic_config import (
    PERM_WRITE,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    encode_register_body,
)
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.namesrv import RegisterBrokerRequestHeader
from gantrymq.protocol.message import Message
from gantrymq.protocol.message_id import encode_offset_message_id
from gantrymq.testing.embedded import EmbeddedCluster

TIMEOUT_MS = 800


@dataclass
class Setup:
    """A console's HTTP client, and the address of the broker that never responds."""

    visitor: httpx.AsyncClient
    hung: str
    #: The id of a message on the other broker.
    message_id: str

    @property
    def offset_message_id(self) -> str:
        """Id of a message on that broker."""
        host, _, port = self.hung.partition(":")
        return encode_offset_message_id(socket.inet_aton(host) + int(port).to_bytes(4, "big"), 0)


async def register(admin: AdminClient, name_server: str, address: str) -> None:
    """Registers a broker at an address, which has the topics orders and quiet."""
    header = RegisterBrokerRequestHeader(
        broker_name="hung", broker_addr=address, cluster_name=CLUSTER, ha_server_addr=address, broker_id=0
    )
    # As each broker does, it also has a topic with its own name. A single topic would be an update.
    topics = {name: TopicConfig(name, 2, 2) for name in ("orders", "quiet", "hung")}
    body = encode_register_body(RegisterBrokerBody(TopicConfigTable(topics)))
    await transport_of(admin).remoting.call(
        name_server, RemotingCommand.request(RequestCode.REGISTER_BROKER, header, body)
    )


@pytest.fixture
async def setup() -> AsyncIterator[Setup]:
    """Starts a cluster of a broker and one that never responds, and its console."""

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    with EmbeddedCluster() as cluster:
        # The NameServer removes a broker when the connection that registered it closes.
        async with AdminClient(cluster.name_server) as admin:
            for topic in ("orders", "quiet", "sealed", "%RETRY%sealers"):
                await admin.ensure_topic(topic, queues=2)
            for group in ("billing", "sealers"):
                await admin.create_group(SubscriptionGroupConfig(group), cluster=CLUSTER)
            await transport_of(admin).api.update_offset(cluster.brokers[0], "billing", "orders", 0, 0)
            await transport_of(admin).api.update_offset(cluster.brokers[0], "sealers", "sealed", 0, 0)
            async with Producer(cluster.name_server, "producers") as producer:
                for number in range(20):
                    result = await producer.send(Message("orders", b"%d" % number, keys=["key"]))
                for _ in range(4):
                    await producer.send(Message("quiet", b"x"))
                    await producer.send(Message("sealed", b"x"))
            # The console cannot read the next message of the group, so its age is unknown.
            await admin.update_topic_perm("sealed", PERM_WRITE, cluster=CLUSTER)
            await register(admin, cluster.name_server, address)
            settings = Settings(cluster.name_server, tables_fresh_s=0.1, timeout_ms=TIMEOUT_MS)
            async with browser(settings, timeout=60) as client:
                yield Setup(client, address, result.msg_id)
    server.close()


async def test_pages_do_not_wait_for_a_hung_broker(setup: Setup) -> None:
    """Each page loads, or says why not."""
    ids = {"id": "F" * 32, "topic": "orders"}
    arguments: dict[str, list[dict[str, Any]]] = {
        "topic": [{"name": "orders", "tab": tab} for tab in ("messages", "queues", "consumers", "settings")],
        "messages": [{"topic": "orders"}, {"topic": "orders", "search": "7"}, {"topic": "orders", "span": "1h"}],
        "group": [{"name": "billing"}],
        "lite-topics": [{}, {"topic": "orders", "lite_topic": "one"}],
        "lite-group": [{"name": "billing"}],
        "search": [{"q": "order"}, {"q": ids["id"]}, {"q": setup.offset_message_id}],
        "dead-letter-messages": [{"group": "billing"}],
        "broker": [{"address": setup.hung}],
        "member": [{"group": "billing", "client_id": "nobody"}],
        "traces": [{"id": ids["id"]}],
        "message": [ids],
        "rights": [{"user": "alice", "resource": "Topic:orders"}],
    }
    took: dict[str, float] = {}
    for _ in range(2):
        for page in PAGES:
            for given in arguments.get(page.name, [{}]):
                began = time.monotonic()
                answer = await setup.visitor.get(f"/{page.name}", params=given)
                took[str(answer.url)] = time.monotonic() - began
                assert answer.status_code in (200, 404, 502), answer.url
    # The second visit, when the circuit of the broker is open.
    slow = {url: round(seconds, 2) for url, seconds in took.items() if seconds > 1.5}
    assert slow == {}


async def test_what_a_hung_broker_leaves(setup: Setup) -> None:
    async def found() -> Any:
        page = await json_of(setup.visitor, "topic", name="orders")
        return page if page["found"] is not None and len(page["found"]["rows"]) == 20 else None

    page = await until(found)
    assert any(one["what"].startswith("hung:") for one in page["unasked"])
    page = await json_of(setup.visitor, "search", q=setup.offset_message_id)
    assert [one["what"] for one in page["unasked"]] == [setup.hung]


async def test_results_of_the_healthy_broker(setup: Setup) -> None:
    """The search, the filters of messages and the figures show them, and name the hung broker."""

    async def found(page: str, **arguments: Any) -> Any:
        return await json_of(setup.visitor, page, **arguments)

    async def by_key() -> bool:
        page = await found("messages", topic="orders", key="key")
        assert [one["what"] for one in page["unasked"]] == [setup.hung]
        return len(page["rows"]) == 20

    await until(by_key)
    for name, arguments in (
        ("messages", {"topic": "orders", "id": setup.message_id}),
        ("topic", {"name": "orders", "id": setup.message_id}),
    ):
        page = await found(name, **arguments)
        assert setup.hung in [one["what"] for one in page["unasked"]]
        (row,) = (page["found"] if name == "topic" else page)["rows"]
        assert row["id"] == setup.message_id

    async def by_search() -> Any:
        page = await found("search", q=setup.message_id)
        return page if page["messages"] else None

    page = await until(by_search)
    assert [row["id"] for row in page["messages"]] == [setup.message_id]
    assert [one["what"] for one in page["unasked"]] == [setup.hung]
    page = await found("message", topic="orders", id=setup.message_id)
    assert page["body"]["text"] == "19"
    assert setup.hung in [one["what"] for one in page["unasked"]]

    async def figures() -> Any:
        page = await found("topics", search="orders")
        rows = page["table"]["rows"] if page["table"] is not None else []
        return page if rows and rows[0]["messages"] is not None and rows[0]["retention_h"] is not None else None

    # Less than the time for which an incomplete result of the retention times would be cached.
    page = await until(figures, 30)
    (row,) = page["table"]["rows"]
    assert (row["messages"], row["retention_h"]) == (20, 72)
    assert setup.hung in [one["what"] for one in page["unasked"]]


async def test_texts_of_incomplete_pages(setup: Setup) -> None:
    """Pages do not draw conclusions from missing responses."""
    html = await html_of(setup.visitor, "topic", name="orders")
    assert "All its messages are deleted. This cannot be undone." in html
    assert (await json_of(setup.visitor, "topic", name="orders"))["messages"] is None

    async def stored() -> Any:
        return (await json_of(setup.visitor, "messages", topic="quiet"))["rows"]

    (row, *_) = await until(stored)
    place = {"topic": "quiet", "broker": row["broker"], "queue": row["queue_id"], "offset": row["offset"]}
    html = await html_of(setup.visitor, "message", **place)
    assert "This page is incomplete" in html
    assert "No consumer group subscribes to this topic." not in html

    async def searched() -> str:
        html = await html_of(setup.visitor, "search", q="nowhere")
        return html if "Querying the brokers" not in html else ""

    html = await until(searched)
    assert "This page is incomplete" in html
    assert "Nothing found" not in html

    async def stalled() -> bool:
        page = await json_of(setup.visitor, "group", name="sealers")
        return (page["state"], page["members"]) == ("stalled", [])

    await until(stalled)
    html = await html_of(setup.visitor, "group", name="sealers")
    assert "Members are connected" not in html
