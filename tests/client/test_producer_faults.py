"""100,000 numbered messages while servers fail: what was acknowledged is there, whatever happened.

Each test reads both brokers back afterwards. A message may be there twice: a send whose answer was lost is tried again.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gantrymq.client.broker_api import PullStatus
from gantrymq.client.producer import Producer
from gantrymq.errors import BrokerError, GantryError, RemotingError
from gantrymq.protocol.headers import PullMessageRequestHeader
from gantrymq.protocol.message import Message, MessageQueue, decode_messages
from gantrymq.protocol.sys_flag import PULL_SUBSCRIPTION
from gantrymq.protocol.topic_config import TopicConfig
from gantrymq.remoting.connection import parse_address
from gantrymq.testing.processes import ProcessCluster, ServerProcess

#: Sends under way at a time.
SENDERS = 32
TOPIC = "numbered"
QUEUES = 4

Fault = Callable[[ProcessCluster, "Sends"], Awaitable[None]]


class Sends:
    """The numbers that were acknowledged, each with its broker; `failed` counts sends that were given up."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, str] = {}
        self.failed: Counter[str] = Counter()

    async def reach(self, count: int) -> None:
        while len(self.acknowledged) < count:
            await asyncio.sleep(0.005)


@asynccontextmanager
async def two_brokers(directory: Path) -> AsyncIterator[ProcessCluster]:
    cluster = ProcessCluster(directory, brokers=2)
    await asyncio.to_thread(cluster.start)
    try:
        async with Producer(cluster.namesrv_addr, "makers") as producer:
            for broker in cluster.brokers:
                await producer.client.api.create_topic(broker.address, TopicConfig(TOPIC, QUEUES, QUEUES))
            async with asyncio.timeout(20):
                while len(await known_queues(producer)) < 2 * QUEUES:
                    await producer.client.routes.refresh_all()
                    await asyncio.sleep(0.01)
        yield cluster
    finally:
        await asyncio.to_thread(cluster.stop)


async def known_queues(producer: Producer) -> list[MessageQueue]:
    try:
        return list(await producer.queues(TOPIC))
    except GantryError:
        return []


async def send_numbered(producer: Producer, count: int, sends: Sends) -> None:
    numbers = iter(range(count))

    async def sender() -> None:
        for number in numbers:
            while True:
                try:
                    result = await producer.send(Message(TOPIC, b"%d" % number), 3000)
                except (RemotingError, BrokerError) as e:
                    sends.failed[type(e).__name__] += 1
                    continue
                sends.acknowledged[number] = result.queue.broker_name
                break

    await asyncio.gather(*(sender() for _ in range(SENDERS)))


async def stored(name_server: str, brokers: list[ServerProcess]) -> Counter[int]:
    """How often each number is in the brokers."""
    found: Counter[int] = Counter()
    async with Producer(name_server, "readers") as reader:
        for broker, queue_id in itertools.product(brokers, range(QUEUES)):
            offset = 0
            while True:
                header = PullMessageRequestHeader(
                    consumer_group="readers",
                    topic=TOPIC,
                    queue_id=queue_id,
                    queue_offset=offset,
                    max_msg_nums=1000,
                    sys_flag=PULL_SUBSCRIPTION,
                    commit_offset=0,
                    suspend_timeout_millis=0,
                    sub_version=0,
                    subscription="*",
                    expression_type="TAG",
                )
                result = await reader.client.api.pull(broker.address, header, 10_000)
                if result.status is not PullStatus.FOUND:
                    break
                found.update(int(message.body) for message in decode_messages(result.body))
                offset = result.next_begin_offset
    return found


# -- faults ---------------------------------------------------------------------------------------------------------


def restarted(cluster: ProcessCluster, number: int) -> ServerProcess:
    """A killed broker, started again where it was."""
    properties = cluster._properties_of_broker(number)
    properties["listenPort"] = str(parse_address(cluster.brokers[number].address)[1])
    cluster.brokers[number].stop()
    broker = cluster._start("broker", properties["brokerName"], properties)
    broker.wait_until_ready(time.monotonic() + 30)
    return broker


async def broker_killed(cluster: ProcessCluster, sends: Sends) -> None:
    await sends.reach(10_000)
    os.kill(cluster.brokers[0].pid, signal.SIGKILL)
    await sends.reach(25_000)
    cluster.brokers[0] = await asyncio.to_thread(restarted, cluster, 0)


async def broker_made_slow(cluster: ProcessCluster, sends: Sends) -> None:
    """Stopped for a second, and again: requests wait, and some end in a timeout."""
    for after in (10_000, 30_000):
        await sends.reach(after)
        os.kill(cluster.brokers[0].pid, signal.SIGSTOP)
        await asyncio.sleep(1)
        os.kill(cluster.brokers[0].pid, signal.SIGCONT)


async def name_server_gone(cluster: ProcessCluster, sends: Sends) -> None:
    await sends.reach(10_000)
    assert cluster.name_server
    os.kill(cluster.name_server.pid, signal.SIGKILL)


async def both_brokers_restarted(cluster: ProcessCluster, sends: Sends) -> None:
    """In order, one after the other."""
    for number, after in enumerate((10_000, 30_000)):
        await sends.reach(after)
        cluster.brokers[number] = await asyncio.to_thread(restarted, cluster, number)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("fault", [broker_killed, broker_made_slow, name_server_gone, both_brokers_restarted])
async def test_no_acknowledged_message_is_lost(tmp_path: Path, fault: Fault) -> None:
    count = 100_000
    async with two_brokers(tmp_path) as cluster, asyncio.timeout(90):
        sends = Sends()
        async with Producer(cluster.namesrv_addr, "numbers", try_timeout_ms=500) as producer:
            failing = asyncio.create_task(fault(cluster, sends))
            await send_numbered(producer, count, sends)
            await failing
        found = await stored(cluster.namesrv_addr, cluster.brokers)
    assert sends.acknowledged.keys() == set(range(count))
    assert not sends.acknowledged.keys() - found.keys()
    # A further try took each of them to the other broker.
    assert not sends.failed
    assert min(Counter(sends.acknowledged.values()).values()) > count // 10


class Proxy:
    """Between a producer and a broker: takes what it is sent, and hands it on unless `halted`."""

    def __init__(self, target: str) -> None:
        self.target = parse_address(target)
        self.halted = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Proxy:
        self.server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(*self.target)
        for source, sink in ((reader, up_writer), (up_reader, writer)):
            task = asyncio.create_task(self._copy(source, sink))
            self._tasks.add(task)

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                if not self.halted:
                    sink.write(data)
                    await sink.drain()
        except OSError:
            pass
        finally:
            sink.close()


@pytest.mark.timeout(120)
async def test_a_connection_that_swallows_everything(tmp_path: Path) -> None:
    """Half open: the kernel takes what is written, and nothing ever comes back."""
    count = 20_000
    async with two_brokers(tmp_path) as cluster, Proxy(cluster.brokers[0].address) as proxy, asyncio.timeout(90):
        sends = Sends()
        async with Producer(
            cluster.namesrv_addr, "numbers", try_timeout_ms=300, send_latency_fault_enable=True
        ) as producer:
            (name,) = {queue.broker_name for queue in await producer.queues(TOPIC)} - {"broker-b"}
            producer.client.routes.all_brokers()[name][0] = proxy.address
            sending = asyncio.create_task(send_numbered(producer, count, sends))
            await sends.reach(count // 4)
            proxy.halted = True
            await sending
        found = await stored(cluster.namesrv_addr, cluster.brokers)
    assert sends.acknowledged.keys() == set(range(count))
    assert not sends.acknowledged.keys() - found.keys()
    assert not sends.failed
    late = [sends.acknowledged[number] for number in range(count // 2, count)]
    assert late.count("broker-b") == len(late)
