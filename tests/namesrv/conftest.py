"""Fixtures: a NameServer on a free port with its files in the test's directory, and a client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.namesrv.server import NameServer
from gantrymq.remoting.client import RemotingClient


@pytest.fixture
def config(tmp_path: Path) -> NamesrvConfig:
    return NamesrvConfig(
        listen_port=0,
        bind_address="127.0.0.1",
        kv_config_path=tmp_path / "namesrv" / "kvConfig.json",
        config_store_path=tmp_path / "namesrv" / "namesrv.properties",
        scan_not_active_broker_interval=20,
    )


@pytest.fixture
async def server(config: NamesrvConfig) -> AsyncIterator[NameServer]:
    server = NameServer(config)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    client = RemotingClient()
    yield client
    await client.close()
