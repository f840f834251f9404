"""Runs a proxy in this process on free local ports, for tests of clients and of the proxy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.proxy import Proxy

HOST = "127.0.0.1"


def proxy_config(name_server: str, **more: Any) -> ProxyConfig:
    """Returns a proxy configuration. `more` are fields of ProxyConfig."""
    return ProxyConfig(namesrv_addr=name_server, bind_address=HOST, grpc_server_port=0, remoting_listen_port=0, **more)


@asynccontextmanager
async def running_proxy(name_server: str, **more: Any) -> AsyncIterator[Proxy]:
    """Starts a proxy and stops it at the end."""
    proxy = Proxy(proxy_config(name_server, **more))
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
