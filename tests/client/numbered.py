"""Numbered messages to two brokers in their own processes: sends them, and reads them back."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from ports import free_port
from wait_until import until

from gantrymq.client.broker_api import PullStatus
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import BrokerError, GantryError, RemotingError
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.message import Message, MessageQueue, decode_messages
from gantrymq.testing.processes import ProcessCluster, ServerProcess

#: Number of concurrent sends.
SENDERS = 32
TOPIC = "numbered"
QUEUES = 4


class Sends:
    """Acknowledged numbers with their brokers. `failed` counts sends that were given up."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, str] = {}
        self.failed: Counter[str] = Counter()

    async def reach(self, count: int) -> None:
        await until(lambda: len(self.acknowledged) >= count, 90)


@asynccontextmanager
async def two_brokers(directory: Path) -> AsyncIterator[ProcessCluster]:
    # Brokers restart at the same ports.
    cluster = ProcessCluster(directory, brokers=2, port=free_port())
    try:
        await asyncio.to_thread(cluster.start)
        async with Producer(cluster.namesrv_addr, "makers") as producer:
            for broker in cluster.brokers:
                await producer.client.api.create_topic(broker.address, TopicConfig(TOPIC, QUEUES, QUEUES))

            async def is_known() -> bool:
                await producer.client.routes.refresh_all()
                return len(await known_queues(producer)) == 2 * QUEUES

            await until(is_known)
        yield cluster
    finally:
        await asyncio.to_thread(cluster.stop)


async def known_queues(producer: Producer) -> list[MessageQueue]:
    try:
        return list(await producer.queues(TOPIC))
    except GantryError:
        return []


async def send_numbered(producer: Producer, numbers: Iterable[int], sends: Sends, timeout_s: float = 3.0) -> None:
    """Sends each number until it is acknowledged."""
    numbers = iter(numbers)

    async def sender() -> None:
        for number in numbers:
            while True:
                try:
                    result = await producer.send(Message(TOPIC, b"%d" % number), timeout=timeout_s)
                except (RemotingError, BrokerError) as e:
                    sends.failed[type(e).__name__] += 1
                    continue
                sends.acknowledged[number] = result.queue.broker_name
                break

    await asyncio.gather(*(sender() for _ in range(SENDERS)))


async def stored(name_server: str, brokers: list[ServerProcess]) -> Counter[int]:
    """Returns how often the brokers have each number."""
    found: Counter[int] = Counter()
    async with Producer(name_server, "readers") as reader:
        for broker, queue_id in itertools.product(brokers, range(QUEUES)):
            offset = 0
            while True:
                queue = MessageQueue(TOPIC, broker.name, queue_id)
                api = reader.client.api
                result = await api.pull_at_once(broker.address, queue, offset, 1000, "readers", timeout_ms=10_000)
                if result.status is not PullStatus.FOUND:
                    break
                found.update(int(message.body) for message in decode_messages(result.body))
                offset = result.next_begin_offset
    return found


def restarted(cluster: ProcessCluster, number: int, **changes: str) -> ServerProcess:
    """Restarts a broker, which may have been killed, at its port. `changes` are for its configuration."""
    properties = cluster._properties_of_broker(number) | changes
    cluster.brokers[number].stop()
    broker = cluster._start("broker", properties["brokerName"], properties)
    broker.wait_until_ready(time.monotonic() + 30)
    return broker
