"""Encrypted links between GantryMQ brokers."""

from __future__ import annotations

import ssl
from pathlib import Path
from random import Random

import pytest
from replication_support import Proxy, log_hash, opened, put_many
from wait_until import until

from gantrymq.remoting.listener import ListenOptions
from gantrymq.remoting.tls import TlsConfig, TlsMode
from gantrymq.replication.config import ReplicationConfig
from gantrymq.replication.master import HaMaster
from gantrymq.replication.slave import HaSlave


@pytest.mark.parametrize("is_plain", [False, True], ids=["tls", "plain"])
async def test_master_that_demands_tls(tmp_path: Path, certificate: tuple[Path, Path], is_plain: bool) -> None:
    cert, key = certificate
    tls = TlsConfig(tls_server_mode=TlsMode.ENFORCING, tls_server_cert_path=cert, tls_server_key_path=key)
    context = None if is_plain else ssl.create_default_context(cafile=cert)
    async with opened(tmp_path / "a") as first, opened(tmp_path / "b", is_slave=True) as second:
        put_many(first, 5000, Random(1))
        master = HaMaster(first, ReplicationConfig(), ListenOptions("127.0.0.1"), tls=tls)
        slave = HaSlave(second, ReplicationConfig(), broker_id=1, ssl_context=context)
        await master.start()
        async with Proxy(master.port) as proxy:
            try:
                slave.set_master(f"127.0.0.1:{proxy.port}")
                await slave.start()
                if is_plain:
                    # The slave retries, and is refused each time.
                    await until(lambda: proxy.accepted > 2)
                    assert not master.slaves
                    assert second.max_physical_offset == 0
                else:
                    await until(lambda: master.slaves.replicated(2) == first.max_physical_offset)
                    assert log_hash(first) == log_hash(second)
            finally:
                await slave.stop()
                await master.stop()
