"""A slave's log equals its master's, byte by byte, even if the connection is often cut or damaged.

Brokers of both kinds run as processes, in all four pairs, with and without a controller. The slave connects to a
proxy. Other proxies replace the master's address in the responses of NameServer, controller and master. The long
test has 1,000,000 messages and 100 cuts: `pytest interop/test_log_equality.py -k 1m`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from controllers import NAME, gantry_controller, in_sync
from servers import HERE, Server, call, gantry_broker, gantry_namesrv, java_broker
from wait_until import until

from gantrymq.client.producing.producer import Producer
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.message import Message
from gantrymq.replication.epoch_file import NAME as EPOCHS

sys.path.insert(0, str(HERE.parent / "tests" / "replication"))

from replication_support import Proxy

pytestmark = pytest.mark.interop(feature="replication", servers="{pair}")

LOG_FILE = 64 * 1024 * 1024
#: MASTER-SLAVE.
PAIRS = {
    "java-java": (java_broker, java_broker),
    "gantry-java": (gantry_broker, java_broker),
    "java-gantry": (java_broker, gantry_broker),
    "gantry-gantry": (gantry_broker, gantry_broker),
}
#: Start of each body. Only bodies are damaged, because records have a checksum of them.
MARK = b"B" * 20
BATCH = 200
SEND_S = 60
_PLACE = re.compile(rb'"(haServerAddr|masterHaAddress|masterAddress|controllerLeaderAddress)":"127\.0\.0\.1:(\d{5})"')
#: Approximate size of a record without its body and topic.
_RECORD = 91 + 2 * 30


class Renaming(Proxy):
    """A proxy that replaces broker addresses. `learn(name, port)` returns the new port for a field."""

    def __init__(self, target: int, learn: Callable[[str, int], int]) -> None:
        super().__init__(target)
        self._learn = learn

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: int | None) -> None:
        def renamed(found: re.Match[bytes]) -> bytes:
            port = b"%d" % self._learn(found[1].decode(), int(found[2]))
            # The length of the frame must not change.
            assert len(port) == len(found[2])
            return b'"%b":"127.0.0.1:%b"' % (found[1], port)

        with suppress(OSError):
            while data := await reader.read(1 << 20):
                writer.write(_PLACE.sub(renamed, data))
                await writer.drain()


@dataclass
class Pair:
    namesrv: Server
    master: Server
    slave: Server
    #: The proxy for the log.
    proxy: Proxy


@asynccontextmanager
async def running(directory: Path, pair: str, *, controlled: bool) -> AsyncIterator[Pair]:
    start_master, start_slave = PAIRS[pair]
    async with AsyncExitStack() as stack:

        async def begin(start: Callable[..., Server], *args: object, **keys: Any) -> Server:
            server = await asyncio.to_thread(start, *args, **keys)
            stack.callback(server.kill)
            return server

        namesrv = await begin(gantry_namesrv, directory / "namesrv")
        link, main = Proxy(0), Renaming(0, lambda name, port: learn(name, port))
        for proxy in (link, main):
            await stack.enter_async_context(proxy)

        def learn(name: str, port: int) -> int:
            """Stores the master's own port, and returns the proxy's port for the brokers."""
            target = main if name == "masterAddress" else link
            target.target = port
            return target.port

        to_namesrv = await stack.enter_async_context(Renaming(namesrv.port, learn))
        keys: dict[str, Any] = {
            "brokerName": NAME,
            # Java's brokers accept slaves at this address.
            "brokerIP2": "127.0.0.1",
            "mappedFileSizeCommitLog": LOG_FILE,
            "fastListenEnable": "true",
            "timerWheelEnable": "false",
            "haSendHeartbeatInterval": 500,
            "inSyncReplicas": 1,
        }
        of_master, of_slave = {"brokerRole": "ASYNC_MASTER"}, {"brokerRole": "SLAVE", "brokerId": 1}
        if controlled:
            controller = await begin(gantry_controller, directory / "controller")
            to_controller = await stack.enter_async_context(
                Renaming(
                    controller.port,
                    # Requests to the leader use its real address.
                    lambda name, port: to_controller.port if name == "controllerLeaderAddress" else learn(name, port),
                )
            )
            keys |= {"enableControllerMode": "true", "brokerId": -1, "brokerRole": "SLAVE"}
            of_master = {"controllerAddr": controller.address}
            # Java's broker gets the master's replication address from a NameServer, ours from the master.
            is_ours = start_slave is gantry_broker
            of_slave = {"controllerAddr": f"127.0.0.1:{to_controller.port}" if is_ours else controller.address}
        master = await begin(start_master, directory / "master", f"127.0.0.1:{to_namesrv.port}", **(keys | of_master))
        if controlled:
            await until(lambda: list(in_sync(controller.address).values()) == [master.address], 60)
        slave = await begin(start_slave, directory / "slave", namesrv.address, **(keys | of_slave))
        yield Pair(namesrv, master, slave, link)


def end_of(broker: Server) -> int:
    body = call(broker.address, RequestCode.GET_BROKER_RUNTIME_INFO).body
    return int(json.loads(body)["table"]["commitLogMaxOffset"])


def log_hash(broker: Server, begin: int, end: int) -> str:
    digest = hashlib.sha256()
    while begin < end:
        base = begin // LOG_FILE * LOG_FILE
        with (broker.directory / "store" / "commitlog" / f"{base:020}").open("rb") as file:
            file.seek(begin - base)
            piece = file.read(min(end, base + LOG_FILE) - begin)
        assert piece
        digest.update(piece)
        begin += len(piece)
    return digest.hexdigest()


def first_offset(broker: Server) -> int:
    return min(int(file.name) for file in (broker.directory / "store" / "commitlog").iterdir())


async def send(pair: Pair, topic: str, count: int, chance: Random) -> None:
    async with Producer(pair.namesrv.address, "equality", default_topic_queue_nums=4) as producer:
        for _ in range(count // BATCH):
            await producer.send_batch(
                [Message(topic, MARK + chance.randbytes(chance.randrange(200)), keys=f"k{n}") for n in range(BATCH)],
                timeout=SEND_S,
            )


async def equal(pair: Pair, timeout_s: float) -> None:
    """Waits until the slave has the whole log of the master, and compares both."""
    end = await asyncio.to_thread(end_of, pair.master)

    async def is_there() -> bool:
        return await asyncio.to_thread(end_of, pair.slave) >= end

    await until(is_there, timeout_s)
    begin = first_offset(pair.slave)
    of_both = [await asyncio.to_thread(log_hash, broker, begin, end) for broker in (pair.master, pair.slave)]
    assert of_both[0] == of_both[1]
    epochs = [broker.directory / "store" / EPOCHS for broker in (pair.master, pair.slave)]
    assert epochs[0].exists() == epochs[1].exists()
    if epochs[0].exists():
        assert epochs[0].read_text() == epochs[1].read_text()


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("controlled", [False, True], ids=["plain", "controller"])
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize(
    ("count", "cuts"), [(20_000, 4), pytest.param(1_000_000, 100, marks=pytest.mark.alone)], ids=["20k", "1m"]
)
async def test_cut_at_random(tmp_path: Path, topic: str, pair: str, controlled: bool, count: int, cuts: int) -> None:
    """After each cut, Java's slave waits for five seconds; with a controller, for eleven."""
    chance = Random(5)
    # All cuts happen within a part of the log.
    size = count * (_RECORD + 120) * 7 // 10
    async with running(tmp_path, pair, controlled=controlled) as both:
        proxy = both.proxy
        proxy.cut_after = lambda: chance.randrange(2 * size // cuts) if proxy.cuts < cuts else None
        # The existing connection has no such limit.
        await until(lambda: proxy.passed)
        proxy.cut()
        await send(both, topic, count, Random(7))
        await equal(both, 60 + 15 * cuts)
        assert proxy.cuts == cuts


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("controlled", [False, True], ids=["plain", "controller"])
@pytest.mark.parametrize("pair", ["java-gantry", "gantry-gantry"])
async def test_damaged_bytes(tmp_path: Path, topic: str, pair: str, controlled: bool) -> None:
    """Bodies have a checksum. Two of our brokers without a controller check every byte. Java's slave checks nothing."""
    chance = Random(6)
    damaged = 0

    def spoil(data: bytes) -> bytes:
        nonlocal damaged
        any_byte = pair == "gantry-gantry" and not controlled
        place = chance.randrange(len(data)) if any_byte else data.find(MARK)
        if damaged < 20 and place >= 0 and chance.random() < 0.3:
            damaged += 1
            return data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]
        return data

    async with running(tmp_path, pair, controlled=controlled) as both:
        both.proxy.most = 5000
        both.proxy.spoil = spoil
        await send(both, topic, 20_000, Random(8))
        await equal(both, 120)
        assert damaged == 20
