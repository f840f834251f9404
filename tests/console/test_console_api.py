"""The JSON API: it contains the data of all pages, and the OpenAPI document describes it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
import msgspec
import pytest
from console_support import browser, cluster, producer, visitor
from constants import change_constant
from wait_until import until

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.console.cluster_view import ClusterView
from gantrymq.console.pages import API, Page
from gantrymq.console.queries.all_pages import PAGES
from gantrymq.console.settings import Settings
from gantrymq.errors import BrokerError, ClientError
from gantrymq.protocol.message import Message
from gantrymq.protocol.properties import TIMER_DELAY_MS
from gantrymq.sync import SyncProducer
from gantrymq.testing.embedded import EmbeddedCluster

__all__ = ["cluster", "producer", "visitor"]

#: Part of a page that is not from the cluster: the token of its forms.
_TOKEN = re.compile(r'(name="csrf" value=)"[^"]*"')


class Once:
    """A page that runs its query once. Later calls return the stored result, decoded from its JSON."""

    def __init__(self, page: Page) -> None:
        self.kept: Any = None
        self.as_json = False
        self.page = replace(page, query=self._query)
        self._original = page

    async def _query(self, view: ClusterView, arguments: Any) -> Any:
        if self.kept is None:
            self.kept = await self._original.query(view, arguments)
        if self.as_json:
            return msgspec.json.decode(msgspec.json.encode(self.kept), type=self._original.result)
        return self.kept


@asynccontextmanager
async def member_of(cluster: EmbeddedCluster, group: str, topic: str) -> AsyncIterator[str]:
    """Yields the client id of a consumer that fails for some messages."""

    async def consume(message: Message) -> None:
        if message.body == b"1":
            raise ValueError("not this one")

    consumer = PushConsumer(cluster.name_server, group, consume, start_from="earliest", max_reconsume_times=0)
    consumer.subscribe(topic)
    async with consumer, AdminClient(cluster.name_server) as admin:

        async def connected() -> list[Any]:
            with suppress(ClientError, BrokerError):
                return (await admin.consumer_connection(group)).connection_set
            return []

        (one,) = await until(connected)
        yield one.client_id


async def test_the_api_has_all_that_a_page_shows(
    cluster: EmbeddedCluster, producer: SyncProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each page's HTML is the same when it is rendered from its JSON only."""
    async with AdminClient(cluster.name_server) as admin:
        await admin.ensure_topic("shown", queues=1)
    for number in range(3):
        producer.send(Message("shown", b"%d" % number, keys=["k"], tags="t", properties={"p": "v"}))
    producer.send(Message("shown", b"later", delay_level=17))
    producer.send(Message("shown", b"timed", properties={TIMER_DELAY_MS: "3600000"}))
    pages = {page.name: Once(page) for page in PAGES}
    change_constant(monkeypatch, "app.PAGES", tuple(one.page for one in pages.values()))
    settings = Settings(cluster.name_server, tables_fresh_s=0.1)
    async with member_of(cluster, "shown-to", "shown") as client_id, browser(settings) as visitor:

        async def html_of(name: str) -> str:
            answer = await visitor.get(f"/{name}", params=arguments.get(name, {}))
            assert answer.status_code == 200, answer.text
            return _TOKEN.sub(r"\1", answer.text)

        async def json_of(name: str) -> Any:
            """Returns the current JSON, or None while the data is gathered."""
            pages[name].kept = None
            page = (await visitor.get(f"{API}/{name}", params=arguments.get(name, {}))).json()
            return None if page.get("table", page) is None else page

        async def letters() -> Any:
            page = await json_of("dead-letter-messages")
            return page["rows"]

        arguments: dict[str, dict[str, Any]] = {
            "broker": {"address": cluster.brokers[0]},
            "topic": {"name": "shown"},
            "group": {"name": "shown-to"},
            "lite-topics": {"topic": "shown", "lite_topic": "one"},
            "lite-group": {"name": "shown-to"},
            "member": {"group": "shown-to", "client_id": client_id},
            "messages": {"topic": "shown"},
            "tail": {"topic": "shown"},
            "traces": {"id": "0A"},
            "dead-letter-messages": {"group": "shown-to"},
            "due": {"topic": "shown"},
            "history": {"group": "shown-to", "span": "15m"},
            "rights": {"user": "alice", "resource": "Topic:shown"},
        }
        (letter,) = await until(letters)
        place = {"broker": letter["broker"], "queue": letter["queue_id"], "offset": letter["offset"]}
        arguments["message"] = {"topic": "%DLQ%shown-to", **place}
        for name, one in pages.items():
            await until(partial(json_of, name))
            shown = await html_of(name)
            one.as_json = True
            assert await html_of(name) == shown, name
            answer = await visitor.get(f"{API}/{name}", params=arguments.get(name, {}))
            assert answer.status_code == 200
            assert answer.content == msgspec.json.encode(one.kept), name


async def test_openapi(visitor: httpx.AsyncClient) -> None:
    document = (await visitor.get(f"{API}/openapi.json")).json()
    assert set(document["paths"]) == {f"{API}/{page.name}" for page in PAGES}
    operations = [path["get"] for path in document["paths"].values()]
    assert len({operation["operationId"] for operation in operations}) == len(PAGES)
    for page, operation in zip(PAGES, operations, strict=True):
        parameters = {one["name"]: one for one in operation["parameters"]}
        assert parameters.keys() == {field.encode_name for field in msgspec.structs.fields(page.arguments)}
        assert all(one["in"] == "query" and one["schema"] for one in parameters.values())
    required = {page.name: _required(document, page.name) for page in PAGES}
    assert required["topic"] == ["name"]
    assert required["topics"] == []
    # Every reference has a target, and every schema is referenced.
    assert set(_references(document)) == {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}


def _required(document: Any, name: str) -> list[str]:
    return [one["name"] for one in document["paths"][f"{API}/{name}"]["get"]["parameters"] if one["required"]]


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(reference := part.get("$ref"), str):
            yield reference
        yield from (found for one in part.values() for found in _references(one))
    elif isinstance(part, list):
        yield from (found for one in part for found in _references(one))
