"""Tests that a stream continues after its master is killed: from the slave, and from a new master."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from failover_cluster import FailoverCluster
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from spark_support import WAIT_S
from wait_until import wait_until

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.broker_api import SendStatus
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import GantryError
from gantrymq.protocol.message import Message
from gantrymq.testing.processes import ProcessCluster

TOPIC = "orders"
QUEUES = 2
COUNT = 600
#: Maximum number of messages of a micro-batch.
MOST = 50

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


@contextmanager
def streaming(spark: SparkSession, name_server: str, table: str, checkpoint: Path) -> Iterator[StreamingQuery]:
    """Runs a query that reads the topic into the memory table `table`."""
    rows = (
        spark.readStream.format("rocketmq")
        .options(nameServer=name_server, subscribe=TOPIC, startingOffsets="earliest", maxOffsetsPerTrigger=str(MOST))
        .schema("queueId int, queueOffset bigint, body binary")
        .load()
    )
    writer = rows.writeStream.format("memory").queryName(table).option("checkpointLocation", str(checkpoint))
    query = writer.start()
    try:
        yield query
    finally:
        query.stop()


def until_rows(spark: SparkSession, query: StreamingQuery, table: str, count: int) -> None:
    def are_there() -> bool:
        assert query.exception() is None
        return spark.table(table).count() >= count

    wait_until(are_there, WAIT_S)


async def send_all(producer: Producer, numbers: range) -> None:
    """Sends each number until it is stored on the master and its required slaves.

    If a response is lost, the message may be stored twice.
    """
    for number in numbers:
        is_stored = False
        while not is_stored:
            try:
                sent = await producer.send(Message(TOPIC, b"%d" % number))
                is_stored = sent.status is SendStatus.SEND_OK
            except GantryError:
                await asyncio.sleep(0.05)


def check(spark: SparkSession, table: str, count: int, *, once: bool) -> None:
    """Checks that each queue is read from its first offset, each offset once, and that all numbers are there."""
    rows = spark.table(table).collect()
    for queue_id in range(QUEUES):
        offsets = sorted(row.queueOffset for row in rows if row.queueId == queue_id)
        assert offsets == list(range(len(offsets)))
    numbers = sorted(int(row.body) for row in rows)
    assert (numbers if once else sorted(set(numbers))) == list(range(count))


def with_clients(name_server: str, work: Callable[[AdminClient, Producer], Awaitable[None]]) -> None:
    async def run() -> None:
        async with AdminClient(name_server) as admin, Producer(name_server, "failover") as producer:
            await work(admin, producer)

    asyncio.run(run())


def test_from_the_slave_and_from_the_master_again(spark: SparkSession, tmp_path: Path) -> None:
    class ClusterClient(ProcessCluster):
        def start_master_again(self) -> None:
            self.brokers[0].stop()
            self.brokers[0] = self._start_broker(0, 0)

    with ClusterClient(tmp_path / "cluster", replicas=2) as cluster:

        async def send(admin: AdminClient, producer: Producer) -> None:
            await admin.ensure_topic(TOPIC, queues=QUEUES)
            await send_all(producer, range(COUNT))

        async def send_more(admin: AdminClient, producer: Producer) -> None:
            await send_all(producer, range(COUNT, COUNT + 100))

        with_clients(cluster.namesrv_addr, send)
        with streaming(spark, cluster.namesrv_addr, "from_slave", tmp_path / "checkpoint") as query:
            until_rows(spark, query, "from_slave", MOST)
            os.kill(cluster.brokers[0].pid, signal.SIGKILL)
            until_rows(spark, query, "from_slave", COUNT)
            check(spark, "from_slave", COUNT, once=True)
            cluster.start_master_again()
            with_clients(cluster.namesrv_addr, send_more)
            until_rows(spark, query, "from_slave", COUNT + 100)
            query.processAllAvailable()
        check(spark, "from_slave", COUNT + 100, once=False)


def test_from_a_new_master(spark: SparkSession, tmp_path: Path) -> None:
    with FailoverCluster(tmp_path / "cluster") as cluster:

        async def send(admin: AdminClient, producer: Producer) -> None:
            await cluster.until_in_sync(admin)
            await admin.ensure_topic(TOPIC, queues=QUEUES)
            await send_all(producer, range(COUNT))

        async def kill_and_send(admin: AdminClient, producer: Producer) -> None:
            await cluster.kill_master(admin)
            await send_all(producer, range(COUNT, 2 * COUNT))

        with_clients(cluster.namesrv_addr, send)
        with streaming(spark, cluster.namesrv_addr, "from_new_master", tmp_path / "checkpoint") as query:
            until_rows(spark, query, "from_new_master", MOST)
            with_clients(cluster.namesrv_addr, kill_and_send)
            until_rows(spark, query, "from_new_master", 2 * COUNT)
            query.processAllAvailable()
        check(spark, "from_new_master", 2 * COUNT, once=False)
