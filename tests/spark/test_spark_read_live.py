"""Tests of batch reads while producers write, and while a broker is killed and restarted."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from spark_support import WAIT_S, send_numbers
from wait_until import wait_until

from gantrymq.client.producing.producer import Producer
from gantrymq.protocol.message import Message
from gantrymq.spark.versions import VERSION
from gantrymq.testing.embedded import EmbeddedCluster
from gantrymq.testing.processes import ProcessCluster, ServerProcess

pytestmark = pytest.mark.spark

TOPIC = "mortal"
ROWS = 30_000


@pytest.mark.skipif(VERSION < (4, 1), reason="Spark 4.0 plans a DataFrame of a Python source anew for every action")
def test_a_dataframe_stays_what_it_was_when_it_was_first_read(
    spark: SparkSession, cluster: EmbeddedCluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(4)
    send_numbers(cluster, topic, range(1000))
    sent = 1000
    enough = threading.Event()

    async def keep_sending() -> None:
        nonlocal sent
        async with Producer(cluster.name_server, "numbers") as producer:
            while not enough.is_set():
                await producer.send_batch([Message(topic, b"%d" % n) for n in range(sent, sent + 10)])
                sent += 10
                await asyncio.sleep(0.01)  # Yields to the driver: the brokers share its interpreter.

    def read() -> DataFrame:
        return spark.read.format("rocketmq").option("nameServer", cluster.name_server).option("subscribe", topic).load()

    def places(df: DataFrame) -> list[tuple[int, str, int, int]]:
        rows = df.select("body", "brokerName", "queueId", "queueOffset").collect()
        return sorted((int(row.body), row.brokerName, row.queueId, row.queueOffset) for row in rows)

    sender = threading.Thread(target=lambda: asyncio.run(keep_sending()))
    sender.start()
    try:
        wait_until(lambda: sent > 1000)
        df = read()
        first = places(df)
        sent_at_first = sent
        wait_until(lambda: sent > sent_at_first + 10)
        again, rows = places(df), df.count()
        anew = places(read())
    finally:
        enough.set()
        sender.join()
    assert first == again
    assert rows == len(first) == len({place[0] for place in first})
    assert {place[0] for place in first} >= set(range(1000))
    assert set(first) < set(anew)


def test_a_broker_that_is_killed_during_a_task_and_comes_back(spark: SparkSession, tmp_path: Path) -> None:
    begun, killed = tmp_path / "begun", tmp_path / "killed"

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Blocks the task after its first rows until the broker is dead."""
        for batch in batches:
            begun.touch()
            deadline = time.monotonic() + WAIT_S
            while not killed.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            yield batch

    with ProcessCluster(tmp_path, brokers=0) as cluster:
        broker = start_broker(tmp_path, cluster.namesrv_addr)
        try:
            asyncio.run(fill(cluster.namesrv_addr))
            messages = spark.read.format("rocketmq").option("nameServer", cluster.namesrv_addr)
            bodies = messages.option("subscribe", TOPIC).load().select("body").mapInArrow(hold, "body binary")
            found: list[bytes] = []
            reader = threading.Thread(target=lambda: found.extend(bytes(row.body) for row in bodies.collect()))
            rows_at_once = "spark.sql.execution.arrow.maxRecordsPerBatch"
            before = spark.conf.get(rows_at_once)
            spark.conf.set(rows_at_once, 1000)
            try:
                reader.start()
                wait_until(begun.exists, WAIT_S)
                os.kill(broker.pid, signal.SIGKILL)
                wait_until(lambda: not broker.is_running)
                killed.touch()
                broker.stop()
                broker = start_broker(tmp_path, cluster.namesrv_addr)
                reader.join(WAIT_S)
            finally:
                killed.touch()
                spark.conf.set(rows_at_once, before)
        finally:
            broker.stop()
    assert sorted(int(body[:8]) for body in found) == list(range(ROWS))


def start_broker(directory: Path, namesrv_addr: str) -> ServerProcess:
    properties = {
        "brokerName": "broker-a",
        "brokerIP1": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "listenPort": "0",
        "namesrvAddr": namesrv_addr,
        "storePathRootDir": str(directory / "store"),
        "storePathCommitLog": str(directory / "store" / "commitlog"),
        "defaultTopicQueueNums": "1",
    }
    broker = ServerProcess("broker", "broker-a", directory, properties, ())
    broker.wait_until_ready(time.monotonic() + WAIT_S)
    return broker


async def fill(namesrv_addr: str) -> None:
    """Sends numbers with eight digits, each followed by 1 KiB, all to one queue."""
    async with Producer(namesrv_addr, "numbers", default_topic_queue_nums=1) as producer:
        for first in range(0, ROWS, 500):
            await producer.send_batch([Message(TOPIC, b"%08d" % n + bytes(1024)) for n in range(first, first + 500)])
