"""Tests of reads with access control, and of reads and writes with TLS only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from gantrymq.arrow.columns import ARROW_TYPES
from gantrymq.auth.config import AuthConfig
from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig
from gantrymq.client.credentials import Credentials
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import BrokerError, ConnectFailed
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.namesrv.server import NameServer
from gantrymq.protocol.message import Message
from gantrymq.remoting.tls import TlsMode
from gantrymq.spark.datasource import RocketMQDataSource
from gantrymq.spark.options import ReadOptions
from gantrymq.spark.reader import RocketMQBatchReader
from gantrymq.store.config import StoreConfig
from gantrymq.testing.embedded import EmbeddedCluster

BODY = pa.schema([("body", ARROW_TYPES["body"])])
KEYS = {"accesskey": "reader-key", "secretkey": "reader-secret"}
ACCOUNTS = """
accounts:
  - accessKey: reader-key
    secretKey: reader-secret
    admin: true
"""


def bodies(name_server: str, **more: str) -> list[bytes]:
    options = {"nameserver": name_server, "subscribe": "kept", "retrytimeoutms": "0"} | more
    assert RocketMQDataSource(options).schema().names
    reader = RocketMQBatchReader(ReadOptions.parse(options), BODY)
    partitions = reader.partitions()
    return [b for p in partitions for batch in reader.read(p) for b in batch.column("body").to_pylist()]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    accounts = tmp_path_factory.mktemp("acl") / "plain_acl.yml"
    accounts.write_text(ACCOUNTS)

    async def send(name_server: str) -> None:
        credentials = Credentials(KEYS["accesskey"], KEYS["secretkey"])
        async with Producer(name_server, "senders", default_topic_queue_nums=1, credentials=credentials) as producer:
            await producer.send(Message("kept", b"secret"))

    with EmbeddedCluster(auth=AuthConfig(acl_enable=True, plain_acl_file=accounts)) as cluster:
        asyncio.run(send(cluster.name_server))
        yield cluster


def test_requests_are_signed(guarded: EmbeddedCluster) -> None:
    assert bodies(guarded.name_server, **KEYS) == [b"secret"]


@pytest.mark.parametrize("keys", [{}, KEYS | {"secretkey": "guessed"}, KEYS | {"accesskey": "somebody"}])
def test_others_are_refused(guarded: EmbeddedCluster, keys: dict[str, str]) -> None:
    with pytest.raises(BrokerError):
        bodies(guarded.name_server, **keys)


@pytest.fixture
async def tls_only(certificate: tuple[Path, Path], tmp_path: Path) -> AsyncIterator[str]:
    """Yields the address of a NameServer that, like its broker, accepts only TLS connections."""
    cert, key = certificate
    tls: dict[str, Any] = {
        "tls_server_mode": TlsMode.ENFORCING,
        "tls_server_cert_path": cert,
        "tls_server_key_path": key,
        "tls_enable": True,
        "tls_client_auth_server": True,
        "tls_client_trust_cert_path": cert,
    }
    name_server = NameServer(
        NamesrvConfig(
            bind_address="127.0.0.1",
            listen_port=0,
            kv_config_path=tmp_path / "kv.json",
            config_store_path=tmp_path / "namesrv.properties",
            **tls,
        )
    )
    await name_server.start()
    broker = Broker(
        BrokerConfig(
            bind_address="127.0.0.1",
            broker_ip1="127.0.0.1",
            listen_port=0,
            namesrv_addr=[name_server.address],
            store=StoreConfig(store_path_root_dir=tmp_path / "store", mapped_file_size_commit_log=16 * 1024 * 1024),
            **tls,
        )
    )
    await broker.start()
    yield name_server.address
    await broker.stop()
    await name_server.stop()


@pytest.mark.spark
@pytest.mark.parametrize("transactional", ["false", "true"])
async def test_tls(spark: SparkSession, tls_only: str, certificate: tuple[Path, Path], transactional: str) -> None:
    tls = {"tls.enable": "true", "tls.client.authServer": "true", "tls.client.trustCertPath": str(certificate[0])}
    rows = [(f"key-{n}", f"body-{n}") for n in range(50)]

    def write(**options: str) -> None:
        df = spark.createDataFrame(rows, "keys string, body string")
        target = df.write.format("rocketmq").options(nameServer=tls_only, topic="kept", retryTimeoutMs="0", **options)
        target.mode("append").save()

    def read() -> list[tuple[str, str]]:
        source = spark.read.format("rocketmq").options(nameServer=tls_only, subscribe="kept", **tls)
        return sorted((row.keys, bytes(row.body).decode()) for row in source.load().select("keys", "body").collect())

    with pytest.raises(Exception, match="closed before the answer"):
        await asyncio.to_thread(write)
    await asyncio.to_thread(lambda: write(**tls, transactional=transactional))
    assert await asyncio.to_thread(read) == sorted(rows)
    # Without the trusted certificate, the client cannot verify the server's certificate.
    with pytest.raises(ConnectFailed, match="certificate"):
        await asyncio.to_thread(lambda: bodies(tls_only, **{n: v for n, v in tls.items() if "trust" not in n}))
