"""Links between our brokers, encrypted."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path
from random import Random

import pytest
from replication_support import log_hash, opened, put_many
from waiting import until

from gantrymq.remoting.tls import TlsConfig, TlsMode
from gantrymq.replication.config import ReplicationConfig
from gantrymq.replication.master import HaMaster
from gantrymq.replication.slave import HaSlave

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command makes the certificate")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    directory = tmp_path_factory.mktemp("tls")
    key, cert = directory / "key.pem", directory / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
        check=True,
        capture_output=True,
        timeout=60,
    )  # fmt: skip
    return cert, key


@pytest.mark.parametrize("is_plain", [False, True], ids=["tls", "plain"])
async def test_master_that_demands_tls(tmp_path: Path, certificate: tuple[Path, Path], is_plain: bool) -> None:
    cert, key = certificate
    tls = TlsConfig(tls_server_mode=TlsMode.ENFORCING, tls_server_cert_path=cert, tls_server_key_path=key)
    context = None if is_plain else ssl.create_default_context(cafile=cert)
    async with opened(tmp_path / "a") as first, opened(tmp_path / "b", is_slave=True) as second:
        put_many(first, 5000, Random(1))
        master = HaMaster(first, ReplicationConfig(), host="127.0.0.1", tls=tls)
        slave = HaSlave(second, ReplicationConfig(), broker_id=1, ssl_context=context)
        await master.start()
        try:
            slave.set_master(f"127.0.0.1:{master.port}")
            await slave.start()
            if is_plain:
                # It comes again and again, and is never let in.
                await until(lambda: slave._pause_s >= 0.3)
                assert not master.slaves
                assert second.max_physical_offset == 0
            else:
                await until(lambda: master.slaves.replicated(2) == first.max_physical_offset)
                assert log_hash(first) == log_hash(second)
        finally:
            await slave.stop()
            await master.stop()
