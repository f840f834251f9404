"""The console in this process, called by httpx, with an embedded cluster."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from gantrymq.client.producing.producer import Producer
from gantrymq.console.app import Console
from gantrymq.console.settings import Settings
from gantrymq.sync import SyncProducer
from gantrymq.testing.embedded import EmbeddedCluster

CLUSTER = "DefaultCluster"


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """Starts a cluster with two brokers."""
    with EmbeddedCluster(2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def producer(cluster: EmbeddedCluster) -> Iterator[SyncProducer]:
    with SyncProducer(Producer(cluster.name_server, "producers")) as producer:
        yield producer


@asynccontextmanager
async def browser(settings: Settings, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Yields an HTTP client of a console with these settings."""
    app = Console(settings).app
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://127.0.0.1", **options) as client,
    ):
        yield client


@pytest.fixture
async def visitor(cluster: EmbeddedCluster) -> AsyncIterator[httpx.AsyncClient]:
    async with browser(Settings(cluster.name_server, tables_fresh_s=0.2)) as client:
        yield client


async def json_of(client: httpx.AsyncClient, page: str, /, **arguments: Any) -> Any:
    """Returns the page's JSON."""
    answer = await client.get(f"/api/v1/{page}", params=arguments)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def html_of(client: httpx.AsyncClient, page: str, /, **arguments: Any) -> str:
    """Returns the page's HTML, and checks its security headers."""
    answer = await client.get(f"/{page}", params=arguments)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    return answer.text


def text_of(html: str) -> str:
    """Returns the visible text of a page."""
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())
