"""Fixtures: a cluster for all tests of a module, and for each test a proxy with a client's stub."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest
from proxy_support import Rpc
from running_proxy import running_proxy

from gantrymq.client.admin.client import AdminClient
from gantrymq.proxy.proxy import Proxy
from gantrymq.testing.embedded import EmbeddedCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(recall_message_enable=True) as cluster:
        yield cluster


@pytest.fixture
async def admin(cluster: EmbeddedCluster) -> AsyncIterator[AdminClient]:
    async with AdminClient(cluster.name_server) as admin:
        yield admin


@pytest.fixture
async def proxy(cluster: EmbeddedCluster) -> AsyncIterator[Proxy]:
    async with running_proxy(cluster.name_server) as proxy:
        yield proxy


@pytest.fixture
async def rpc(proxy: Proxy) -> AsyncIterator[Rpc]:
    async with grpc.aio.insecure_channel(proxy.address) as channel:
        yield Rpc(channel, f"host@1@0@{uuid.uuid4().hex[:8]}")
