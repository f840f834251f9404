"""A cluster for all tests of a module, and for each test a proxy in front of it with a client's stub."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest
from proxy_support import Rpc

from gantrymq.client.admin.client import AdminClient
from gantrymq.proxy.config import ProxyConfig
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
    proxy = Proxy(
        ProxyConfig(
            namesrv_addr=cluster.name_server, bind_address="127.0.0.1", grpc_server_port=0, remoting_listen_port=0
        )
    )
    await proxy.start()
    yield proxy
    await proxy.stop()


@pytest.fixture
async def rpc(proxy: Proxy) -> AsyncIterator[Rpc]:
    async with grpc.aio.insecure_channel(proxy.address) as channel:
        yield Rpc(channel, f"host@1@0@{uuid.uuid4().hex[:8]}")
