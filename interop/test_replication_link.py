"""Apache's master with our slave, and our master with Apache's slave: equal logs over an unreliable connection.

The broker is Java's. Our side is the store with HaSlave or HaMaster, without a broker.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
from servers import HERE, Server, call, gantry_namesrv, java_broker
from wait_until import until

from gantrymq.client.producing.producer import Producer
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.namesrv import RegisterBrokerRequestHeader
from gantrymq.protocol.message import Message
from gantrymq.remoting.client import RemotingClient

sys.path.insert(0, str(HERE.parent / "tests" / "replication"))

from replication_support import Proxy, log_hash, master_of, opened, put_many, queue_units, slave_of

pytestmark = pytest.mark.interop(feature="replication", servers="java gantry")

LOG_FILE = 4 * 1024 * 1024


def java_log_hash(broker: Server, begin: int, end: int) -> str:
    """Returns a hash of the log files of a Java broker."""
    digest = hashlib.sha256()
    while begin < end:
        base = begin // LOG_FILE * LOG_FILE
        with (broker.directory / "store" / "commitlog" / f"{base:020}").open("rb") as file:
            file.seek(begin - base)
            piece = file.read(min(end, base + LOG_FILE) - begin)
        digest.update(piece)
        begin += len(piece)
    return digest.hexdigest()


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = gantry_namesrv(tmp_path_factory.mktemp("namesrv"))
    yield server
    server.kill()


@pytest.fixture(scope="module")
def java_master(namesrv: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    broker = java_broker(
        tmp_path_factory.mktemp("master"),
        namesrv.address,
        brokerName="java-master",
        brokerRole="SYNC_MASTER",
        mappedFileSizeCommitLog=LOG_FILE,
        haSendHeartbeatInterval=500,
    )
    yield broker
    broker.kill()


async def send(namesrv: Server, broker: Server, topic: str, count: int, chance: Random) -> int:
    """Sends messages in batches. Returns the end of the broker's log after that."""
    async with Producer(namesrv.address, "link", default_topic_queue_nums=4) as producer:
        for _ in range(count // 100):
            batch = [
                Message(topic, b"B" * 20 + chance.randbytes(chance.randrange(400)), tags="a", keys=f"k{n}")
                for n in range(100)
            ]
            await producer.send_batch(batch)
    body = await asyncio.to_thread(lambda: call(broker.address, RequestCode.GET_BROKER_RUNTIME_INFO).body)
    return int(json.loads(body)["table"]["commitLogMaxOffset"])


async def test_java_master_and_a_network_that_breaks(
    namesrv: Server, java_master: Server, tmp_path: Path, topic: str
) -> None:
    chance = Random(1)
    options = {"mapped_file_size_commit_log": LOG_FILE}
    await send(namesrv, java_master, topic, 20_000, chance)
    async with opened(tmp_path / "slave", is_slave=True, **options) as second:
        async with Proxy(java_master.port + 1) as proxy:
            proxy.cut_after = lambda: chance.randrange(300_000) if proxy.cuts < 50 else None
            proxy.most = 5000
            async with slave_of(second, proxy.port) as slave:
                end = await send(namesrv, java_master, topic, 20_000, chance)
                await until(lambda: second.max_physical_offset >= end, 60)
                assert slave.refusal is None
        assert proxy.cuts >= 30
        assert second.min_physical_offset == 0
        assert log_hash(second) == java_log_hash(java_master, 0, second.max_physical_offset)
        units = queue_units(second)
    # After a restart, the store has the same queues.
    async with opened(tmp_path / "slave", **options) as second:
        assert queue_units(second) == units


async def test_java_master_and_damaged_bytes(namesrv: Server, java_master: Server, tmp_path: Path, topic: str) -> None:
    """Bodies have a CRC, and positions are checked. Other damage cannot be detected."""
    chance = Random(2)
    await send(namesrv, java_master, topic, 5000, chance)
    damaged = 0

    def spoil(data: bytes) -> bytes:
        nonlocal damaged
        place = data.find(b"B" * 20)
        if damaged < 20 and place >= 0 and chance.random() < 0.3:
            damaged += 1
            return data[: place + 3] + b"X" + data[place + 4 :]
        return data

    async with opened(tmp_path / "slave", is_slave=True, mapped_file_size_commit_log=LOG_FILE) as second:
        async with Proxy(java_master.port + 1) as proxy:
            proxy.spoil = spoil
            async with slave_of(second, proxy.port):
                end = await send(namesrv, java_master, topic, 1000, chance)
                await until(lambda: second.max_physical_offset >= end, 60)
        assert damaged == 20
        assert log_hash(second) == java_log_hash(java_master, 0, second.max_physical_offset)


async def test_java_master_sends_its_last_file_when_asked(
    namesrv: Server, java_master: Server, tmp_path: Path, topic: str
) -> None:
    end = await send(namesrv, java_master, topic, 20_000, Random(3))
    assert end > LOG_FILE
    async with opened(tmp_path / "slave", is_slave=True, mapped_file_size_commit_log=LOG_FILE) as second:
        async with slave_of(second, java_master.port + 1, sync_from_last_file=True):
            await until(lambda: second.max_physical_offset >= end, 60)
        begin = second.min_physical_offset
        assert begin > 0
        assert begin % LOG_FILE == 0
        assert log_hash(second, begin) == java_log_hash(java_master, begin, second.max_physical_offset)


@pytest.mark.slow
async def test_java_slave_and_a_network_that_breaks(namesrv: Server, tmp_path: Path) -> None:
    """After each cut, Java's slave waits for five seconds."""
    chance = Random(4)
    async with opened(tmp_path / "master", mapped_file_size_commit_log=LOG_FILE) as first:
        put_many(first, 1000, chance)
        async with (
            master_of(first) as master,
            Proxy(master.port) as proxy,
            registered_master(namesrv, "java-slave", f"127.0.0.1:{proxy.port}"),
        ):
            proxy.cut_after = lambda: 200_000 + chance.randrange(1_500_000) if proxy.cuts < 6 else None
            proxy.most = 5000
            # haMasterAddress has no effect, because Java sets it before the replication client exists.
            slave = await asyncio.to_thread(
                java_broker,
                tmp_path / "slave",
                namesrv.address,
                brokerName="java-slave",
                brokerRole="SLAVE",
                brokerId=1,
                mappedFileSizeCommitLog=LOG_FILE,
                haSendHeartbeatInterval=500,
            )
            try:
                await until(lambda: master.slaves.replicated(2) == first.max_physical_offset, 60)
                for _ in range(50):
                    put_many(first, 1000, chance)
                    master.log_grew()
                await until(lambda: master.slaves.replicated(2) == first.max_physical_offset, 100)
                assert proxy.cuts == 6
                assert log_hash(first) == java_log_hash(slave, 0, first.max_physical_offset)
                (status,) = master.status().connections
                assert status.in_sync
                assert status.diff == 0
            finally:
                slave.kill()


@asynccontextmanager
async def registered_master(namesrv: Server, name: str, ha_address: str) -> AsyncIterator[None]:
    """Registers the replication address of a master with a NameServer, for its slaves."""
    header = RegisterBrokerRequestHeader(
        broker_name=name,
        broker_addr="127.0.0.1:1",
        cluster_name="DefaultCluster",
        broker_id=0,
        ha_server_addr=ha_address,
    )
    body = {"topicConfigSerializeWrapper": {"topicConfigTable": {}, "dataVersion": {"counter": 1, "timestamp": 1}}}
    client = RemotingClient()
    try:
        request = RemotingCommand.request(RequestCode.REGISTER_BROKER, header, json.dumps(body).encode())
        await client.call(namesrv.address, request)
        # The registration ends when the connection closes.
        yield
    finally:
        await client.close()
