"""A million numbered messages, and drivers that read them in their own processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_support import WAIT_S
from wait_until import until, wait_until

from gantrymq.client.broker_api import BrokerApi
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import NoRouteInfo
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.message import Message
from gantrymq.remoting.client import RemotingClient

COUNT = 1_000_000
TOPIC = "million"
#: Number of queues on each of two brokers.
QUEUES = 4
SEND_AT_ONCE = 2000
KILLS = 2
#: Number of micro-batches of the whole topic.
BATCHES = 12


async def fill(name_server: str, brokers: Sequence[str]) -> None:
    """Creates TOPIC on all `brokers` (host:port) and sends the numbers to it."""
    remoting = RemotingClient()
    api = BrokerApi(remoting)
    for address in brokers:
        await api.create_topic(address, TopicConfig(TOPIC, read_queue_nums=QUEUES, write_queue_nums=QUEUES))

    async def is_known() -> bool:
        with suppress(NoRouteInfo):
            return len((await api.route(name_server, TOPIC)).queue_datas) == len(brokers)
        return False

    await until(is_known)
    await remoting.close()
    async with Producer(name_server, "million") as producer:
        for first in range(0, COUNT, SEND_AT_ONCE):
            messages = [Message(TOPIC, b"%d" % n) for n in range(first, first + SEND_AT_ONCE)]
            await producer.send_batch(messages, timeout=10)


def assert_each_number_once(numbers: DataFrame) -> None:
    found = numbers.select(
        F.count("number").alias("rows"),
        F.count_distinct("number").alias("distinct"),
        F.min("number").alias("least"),
        F.max("number").alias("most"),
    ).first()
    assert found is not None
    assert tuple(found) == (COUNT, COUNT, 0, COUNT - 1)


def read_in_batch(spark: SparkSession, name_server: str) -> DataFrame:
    """Returns a DataFrame with the column `number`."""
    messages = spark.read.format("rocketmq").option("nameServer", name_server).option("subscribe", TOPIC)
    return messages.schema("body binary").load().select(F.col("body").cast("string").cast("long").alias("number"))


def stream_with_killed_drivers(name_server: str, directory: Path) -> None:
    """Reads the stream into Parquet files in `directory`/out. Kills each driver but the last midway."""
    for _ in range(KILLS):
        before = batches_begun(directory)
        with driver("local[2]", name_server, directory) as process:

            def has_gone_on(process: subprocess.Popen[bytes] = process, before: int = before) -> bool:
                assert process.poll() is None, "the driver has ended: see driver.log"
                return batches_begun(directory) >= before + 2

            wait_until(has_gone_on, WAIT_S)
            os.killpg(process.pid, signal.SIGKILL)
    assert KILLS < batches_begun(directory) < BATCHES, "the kills were not midway"
    with driver("local[2]", name_server, directory) as process:
        assert process.wait(WAIT_S) == 0
    assert batches_begun(directory) >= BATCHES


@contextmanager
def driver(master: str, name_server: str, directory: Path, batches: int = BATCHES) -> Iterator[subprocess.Popen[bytes]]:
    """Runs `stream_driver.py`. At the end of the block, it is killed with its JVM if it still runs."""
    program = Path(__file__).parent / "stream_driver.py"
    arguments = [master, name_server, TOPIC, str(COUNT // batches), str(directory)]
    # Scripts of SPARK_HOME start the executors of a local cluster.
    home = {"SPARK_HOME": str(Path(pyspark.__file__).parent), "SPARK_LOCAL_IP": "127.0.0.1"}
    with (directory / "driver.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, program, *arguments],
            env=os.environ | home,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def batches_begun(directory: Path) -> int:
    offsets = directory / "checkpoint" / "offsets"
    return sum(path.name.isdecimal() for path in offsets.iterdir()) if offsets.is_dir() else 0
