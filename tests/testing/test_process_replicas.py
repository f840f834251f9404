"""Tests replicas as processes: a slave that hangs or is killed, and consumers after the master is killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from wait_until import until

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.broker_api import SendStatus
from gantrymq.client.consuming.process_queue import FlowLimits
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.protocol.message import Message, MessageExt
from gantrymq.testing.embedded import EmbeddedCluster
from gantrymq.testing.processes import ProcessCluster

TOPIC = "orders"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ProcessCluster]:
    # Shorter than a producer's timeout, and longer than a slave needs on a busy machine.
    with ProcessCluster(tmp_path, replicas=2, broker_properties={"slaveTimeout": "2000"}) as cluster:
        yield cluster


@asynccontextmanager
async def producer_of(cluster: ProcessCluster) -> AsyncIterator[Producer]:
    """Yields a producer when its topic exists and the slave is in sync."""
    async with AdminClient(cluster.namesrv_addr) as admin, Producer(cluster.namesrv_addr, "producers") as producer:
        await admin.ensure_topic(TOPIC, queues=2)
        await until(lambda: in_sync(admin, cluster))
        yield producer


async def in_sync(admin: AdminClient, cluster: ProcessCluster) -> bool:
    return (await admin.ha_status(cluster.brokers[0].address)).in_sync_slave_nums == 1


async def status(producer: Producer, body: bytes = b"x") -> SendStatus:
    return (await producer.send(Message(TOPIC, body))).status


async def test_a_slave_that_hangs(cluster: ProcessCluster) -> None:
    _, slave = cluster.brokers
    async with producer_of(cluster) as producer:
        assert await status(producer) is SendStatus.SEND_OK
        os.kill(slave.pid, signal.SIGSTOP)
        try:
            assert await status(producer) is SendStatus.FLUSH_SLAVE_TIMEOUT
        finally:
            os.kill(slave.pid, signal.SIGCONT)
        await until(lambda: ok(producer))


async def ok(producer: Producer) -> bool:
    return await status(producer) is SendStatus.SEND_OK


async def test_a_slave_that_is_killed(cluster: ProcessCluster) -> None:
    _, slave = cluster.brokers
    async with producer_of(cluster) as producer:
        os.kill(slave.pid, signal.SIGKILL)
        await until(lambda: not slave.is_running)
        assert await status(producer) is SendStatus.FLUSH_SLAVE_TIMEOUT


async def knows_topic(admin: AdminClient, address: str) -> bool:
    return TOPIC in await admin.topic_configs(address)


class Inbox:
    def __init__(self) -> None:
        self.bodies: set[bytes] = set()

    async def take(self, message: MessageExt) -> None:
        self.bodies.add(message.body)


async def test_consumers_read_on_from_the_slave(cluster: ProcessCluster) -> None:
    master, slave = cluster.brokers
    inbox, opened = Inbox(), asyncio.Event()

    async def take(message: MessageExt) -> None:
        inbox.bodies.add(message.body)
        await opened.wait()

    async with producer_of(cluster) as producer:
        sent = {b"%d" % n for n in range(10)}
        for body in sent:
            assert await status(producer, body) is SendStatus.SEND_OK
        # The consumer first gets one message of each queue. The master is killed before it pulls the others.
        consumer = PushConsumer(
            cluster.namesrv_addr,
            "readers",
            take,
            start_from="earliest",
            pull_batch_size=1,
            flow_limits=FlowLimits(max_messages=1),
        )
        consumer.subscribe(TOPIC)
        async with AdminClient(cluster.namesrv_addr) as admin:
            await until(lambda: knows_topic(admin, slave.address))
        async with consumer:
            await until(lambda: len(inbox.bodies) >= 2)
            os.kill(master.pid, signal.SIGKILL)
            opened.set()
            await until(lambda: inbox.bodies == sent)


def test_an_embedded_cluster_with_replicas() -> None:
    with EmbeddedCluster(brokers=2, replicas=2) as cluster:
        assert (len(cluster.brokers), len(cluster.slaves)) == (2, 2)
        assert len({*cluster.brokers, *cluster.slaves}) == 4

        async def send() -> SendStatus:
            async with Producer(cluster.name_server, "producers") as producer:
                return (await producer.send(Message(TOPIC, b"x"))).status

        assert asyncio.run(send()) is SendStatus.SEND_OK
