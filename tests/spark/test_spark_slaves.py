"""Tests, without Spark, of messages that are pulled from slaves."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from spark_support import create_topic, send_numbers
from wait_until import wait_until

from gantrymq.arrow.cluster_client import BrokersAway, ClusterClient, run
from gantrymq.arrow.connection_pool import TaskConnections, close_pool, task_connections
from gantrymq.arrow.options import TOOLS_GROUP
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.broker_api import BrokerApi, PullResult, PullStatus
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import BrokerError, ConfigError
from gantrymq.protocol.message import Message, MessageQueue, decode_messages
from gantrymq.remoting.client import RemotingClient
from gantrymq.spark.datasource import RocketMQDataSource
from gantrymq.spark.options import ReadOptions, WriteOptions
from gantrymq.spark.versions import HAS_ADMISSION_CONTROL
from gantrymq.spark.writer import RocketMQBatchWriter
from gantrymq.testing.embedded import EmbeddedCluster
from gantrymq.testing.processes import ProcessCluster

TOPIC = "numbers"
QUEUE = MessageQueue(TOPIC, "broker-a", 0)
COUNT = 500


@contextmanager
def filled(directory: Path, **options: object) -> Iterator[EmbeddedCluster]:
    """A master and its slave, which has replicated all numbers."""
    with EmbeddedCluster(brokers=1, replicas=2, directory=directory, **options) as cluster:
        create_topic(cluster, TOPIC, 1, brokers=[0])
        send_numbers(cluster, TOPIC, range(COUNT))
        wait_until(lambda: run(last_offset(cluster.slaves[0])) == COUNT)
        yield cluster


async def last_offset(address: str) -> int:
    """Returns the queue's end offset, or -1 until the broker has the topic."""
    remoting = RemotingClient()
    try:
        return await BrokerApi(remoting).max_offset(address, TOPIC, 0)
    except BrokerError:
        return -1
    finally:
        await remoting.close()


@contextmanager
def reading(cluster: EmbeddedCluster, **more: str) -> Iterator[TaskConnections]:
    close_pool()
    options = ReadOptions.parse({"nameserver": cluster.name_server, "subscribe": TOPIC} | more)
    with task_connections(options) as brokers:
        yield brokers


def pull(brokers: TaskConnections, offset: int) -> PullResult:
    pulling = brokers.cluster.pull(QUEUE, offset, COUNT, 1 << 20, TOOLS_GROUP, ("*", "TAG"))
    return brokers.submit(pulling).result()


def bodies(result: PullResult) -> list[bytes]:
    return [message.body for message in decode_messages(result.body)]


def servers(brokers: TaskConnections) -> set[str]:
    """Returns the addresses of the connected servers."""
    return set(brokers.cluster._remoting._connections)


def test_messages_come_from_slaves(tmp_path: Path) -> None:
    with filled(tmp_path) as cluster:
        with reading(cluster, readfrom="slave") as brokers:
            assert bodies(pull(brokers, 10)) == [b"%d" % n for n in range(10, COUNT)]
            assert servers(brokers) == {cluster.name_server, cluster.slaves[0]}
        with reading(cluster) as brokers:
            assert bodies(pull(brokers, 10)) == [b"%d" % n for n in range(10, COUNT)]
            assert servers(brokers) == {cluster.name_server, cluster.brokers[0]}


def test_what_a_slave_has_not_got_its_master_is_asked_for(tmp_path: Path) -> None:
    with filled(tmp_path) as cluster, reading(cluster, readfrom="slave") as brokers:
        # A slave with a live master responds that the client should retry. The master responds that nothing is new.
        assert pull(brokers, COUNT).status is PullStatus.NO_NEW_MESSAGE


def test_a_slave_that_refuses_pulls_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with filled(tmp_path, slave_read_enable=False) as cluster, reading(cluster, readfrom="slave") as brokers:
        for offset in range(3):
            assert bodies(pull(brokers, offset)) == [b"%d" % n for n in range(offset, COUNT)]
    assert caplog.text.count("reading from the master of broker broker-a instead of a slave") == 1


def test_another_word_is_refused() -> None:
    with pytest.raises(ConfigError, match="readFrom: 'replica' is neither master nor slave"):
        ReadOptions.parse({"nameserver": "ns:1", "subscribe": TOPIC, "readfrom": "replica"})


async def has_master(name_server: str) -> bool:
    async with ClusterClient([name_server], 5000) as brokers:
        await brokers.read_queues(TOPIC)
        return brokers.has_master(QUEUE)


def test_reads_and_writes_wait_for_the_master_and_fail(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Reads and writes need the master.

    The slave may lag behind, and only the master has the end offset of a queue. With exactlyOnce, rows would go to
    other queues than before.
    """
    with ProcessCluster(tmp_path, brokers=2, replicas=2) as cluster:

        async def fill() -> None:
            async with AdminClient(cluster.namesrv_addr) as admin:
                await admin.ensure_topic(TOPIC, queues=1)
            async with Producer(cluster.namesrv_addr, "fillers") as producer:
                for n in range(10):
                    await producer.send(Message(TOPIC, b"%d" % n), queue=QUEUE)

        asyncio.run(fill())
        by_name = {broker.name: broker for broker in cluster.brokers}
        master, slave = by_name["broker-a"], by_name["broker-a-1"]
        wait_until(lambda: run(last_offset(slave.address)) == 10)
        os.kill(master.pid, signal.SIGKILL)
        wait_until(lambda: not run(has_master(cluster.namesrv_addr)))
        once = WriteOptions([cluster.namesrv_addr], TOPIC, exactly_once=True, retry_timeout_ms=1000)
        with pytest.raises(BrokersAway, match="the master of broker broker-a"):
            RocketMQBatchWriter(once)
        options = {"nameserver": cluster.namesrv_addr, "subscribe": TOPIC, "retrytimeoutms": "1000"}
        source = RocketMQDataSource(options)
        with pytest.raises(BrokersAway, match="its slave, whose master is away"):
            source.reader(source.schema()).partitions()
        if HAS_ADMISSION_CONTROL:
            stream = source.streamReader(source.schema())
            with pytest.raises(BrokersAway, match="its slave, whose master is away"):
                stream.prepareForTriggerAvailableNow()
            stream.stop()
        lenient = RocketMQDataSource(options | {"failondataloss": "false"})
        reader = lenient.reader(lenient.schema())
        assert sum(len(batch) for part in reader.partitions() for batch in reader.read(part)) == 10
        assert "its slave, whose master is away" in caplog.text
        # The slave's messages are read.
        assert "the read continues with the messages of the slave, as failOnDataLoss is false" in caplog.text
        assert "the read continues without its messages" not in caplog.text
