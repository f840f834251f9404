"""Controller mode over an unreliable connection: Apache's master with our slave, and our master with Apache's slave.

Our side is the store with HaSlave or HaMaster, without a broker. The controller is this project's.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from random import Random

import pytest
from controllers import NAME, gantry_controller, in_sync, replicated_broker
from servers import HERE, Server, call, gantry_namesrv
from wait_until import until, wait_until

from gantrymq.background.repeating import Repeating
from gantrymq.client.producing.producer import Producer
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.message import Message
from gantrymq.remoting.listener import ListenOptions
from gantrymq.replication.autoswitch_frames import Hello
from gantrymq.replication.autoswitch_link import AutoSwitchLink
from gantrymq.replication.config import ReplicationConfig
from gantrymq.replication.epoch_file import NAME as EPOCHS
from gantrymq.replication.epoch_file import EpochFile
from gantrymq.replication.epochs import Epoch
from gantrymq.replication.log_transfer import AutoSwitchLogTransfer
from gantrymq.replication.master import HaMaster
from gantrymq.replication.slave import HaSlave

sys.path.insert(0, str(HERE.parent / "tests" / "replication"))
sys.path.insert(0, str(HERE.parent / "tests" / "controller"))

from controller_support import Broker
from replication_support import Proxy, log_hash, opened, put_many
from test_replication_link import registered_master

pytestmark = pytest.mark.interop(feature="replication", servers="java gantry")

#: Value that servers.py sets for Java's brokers.
LOG_FILE = 64 * 1024 * 1024


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    """Starts our NameServer and our controller."""
    with ExitStack() as stack:
        namesrv = gantry_namesrv(tmp_path / "namesrv")
        stack.callback(namesrv.kill)
        controller = gantry_controller(tmp_path / "controller")
        stack.callback(controller.kill)
        yield namesrv, controller


@pytest.fixture
def java_master(servers: tuple[Server, Server], tmp_path: Path) -> Iterator[Server]:
    """Starts Apache's broker as the master of its set."""
    namesrv, controller = servers
    broker = replicated_broker(tmp_path / "master", namesrv.address, controller.address)
    try:
        wait_until(lambda: list(in_sync(controller.address).values()) == [broker.address], 60)
        yield broker
    finally:
        broker.kill()


async def send(namesrv: Server, broker: Server, topic: str, count: int, chance: Random) -> int:
    """Sends messages in batches. Returns the end of the broker's log after that."""
    async with Producer(namesrv.address, "link", default_topic_queue_nums=4) as producer:
        for _ in range(count // 100):
            await producer.send_batch(
                [Message(topic, b"B" + chance.randbytes(chance.randrange(400))) for _ in range(100)]
            )
    body = await asyncio.to_thread(lambda: call(broker.address, RequestCode.GET_BROKER_RUNTIME_INFO).body)
    return int(json.loads(body)["table"]["commitLogMaxOffset"])


async def test_java_master_and_a_network_that_breaks(
    servers: tuple[Server, Server], java_master: Server, tmp_path: Path, topic: str
) -> None:
    namesrv, broker = servers[0], java_master
    chance = Random(1)
    await send(namesrv, broker, topic, 5000, chance)
    async with opened(tmp_path / "slave", is_slave=True, mapped_file_size_commit_log=LOG_FILE) as store:
        file = EpochFile(tmp_path / "slave")

        def link() -> AutoSwitchLink:
            return AutoSwitchLink(store, Hello(2), file)

        async with Proxy(broker.port + 1) as proxy:
            proxy.cut_after = lambda: chance.randrange(150_000) if proxy.cuts < 30 else None
            proxy.most = 5000
            slave = HaSlave(store, ReplicationConfig(), broker_id=2, new_link=link)
            slave.set_master(f"127.0.0.1:{proxy.port}")
            await slave.start()
            try:
                end = await send(namesrv, broker, topic, 20_000, chance)
                await until(lambda: store.max_physical_offset >= end, 60)
                assert slave.refusal is None
            finally:
                await slave.stop()
            assert proxy.cuts >= 20
        assert log_hash(store) == java_log_hash(broker, store.max_physical_offset)
        assert (tmp_path / "slave" / EPOCHS).read_text() == (broker.directory / "store" / EPOCHS).read_text()


@pytest.mark.slow
async def test_java_slave_and_a_network_that_breaks(servers: tuple[Server, Server], tmp_path: Path) -> None:
    """After each cut, Java's slave waits for five seconds."""
    namesrv, controller = servers
    chance = Random(2)
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(opened(tmp_path / "master", mapped_file_size_commit_log=LOG_FILE))
        file = EpochFile(tmp_path / "master")
        master = HaMaster(
            store,
            ReplicationConfig(),
            ListenOptions("127.0.0.1"),
            log_transfer=lambda: AutoSwitchLogTransfer(store, file.epochs, lambda: master.slaves.replicated(2)),
        )
        await master.start()
        stack.push_async_callback(master.stop)
        proxy = await stack.enter_async_context(Proxy(master.port))
        proxy.cut_after = lambda: 200_000 + chance.randrange(1_000_000) if proxy.cuts < 4 else None

        broker = Broker(controller, at="127.0.0.1:1")
        stack.push_async_callback(broker.die)
        await broker.start()
        elected = await broker.elect()
        assert elected.master_broker_id == broker.broker_id
        beating = Repeating("heartbeat", broker.heartbeat, 2.0)
        beating.start()
        stack.callback(beating.cancel)
        file.epochs.append(Epoch(elected.master_epoch or 0, 0))
        put_many(store, 1000, chance)
        await stack.enter_async_context(registered_master(namesrv, NAME, f"127.0.0.1:{proxy.port}"))

        slave = await asyncio.to_thread(replicated_broker, tmp_path / "slave", namesrv.address, controller.address)
        stack.callback(slave.kill)
        await until(lambda: master.slaves.replicated(2) == store.max_physical_offset, 60)
        file.epochs.append(Epoch(9, store.max_physical_offset))
        for _ in range(30):
            put_many(store, 1000, chance)
            master.log_grew()
        await until(lambda: master.slaves.replicated(2) == store.max_physical_offset, 60)
        assert proxy.cuts == 4
        assert log_hash(store) == java_log_hash(slave, store.max_physical_offset)
        assert (slave.directory / "store" / EPOCHS).read_text() == file.epochs.encode()


def java_log_hash(broker: Server, end: int) -> str:
    """Returns a hash of the first log file of a Java broker."""
    data = (broker.directory / "store" / "commitlog" / f"{0:020}").read_bytes()
    return hashlib.sha256(data[:end]).hexdigest()
