"""Topics and messages for the Spark tests, created with the project's client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest
from pyspark.sql.streaming.query import StreamingQuery
from wait_until import until

from gantrymq.client.broker_api import BrokerApi
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import NoRouteInfo
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.message import Message
from gantrymq.remoting.client import RemotingClient
from gantrymq.spark.versions import HAS_ADMISSION_CONTROL
from gantrymq.testing.embedded import EmbeddedCluster

needs_admission_control = pytest.mark.skipif(
    not HAS_ADMISSION_CONTROL, reason="Python data sources can limit micro-batches from Spark 4.2"
)

#: Broker settings with which a pull returns whole Arrow batches.
BULK_TRANSFER = {
    "max_transfer_count_on_message_in_memory": 10_000,
    "max_transfer_bytes_on_message_in_memory": 4 * 1024 * 1024,
    "max_transfer_count_on_message_in_disk": 10_000,
    "max_transfer_bytes_on_message_in_disk": 4 * 1024 * 1024,
}
SEND_AT_ONCE = 100
#: Timeout of a query in seconds. On a busy machine, Spark starts in one or two minutes; a micro-batch takes seconds.
WAIT_S = 240.0


def create_topic(cluster: EmbeddedCluster, topic: str, queues: int, brokers: Sequence[int] = (0, 1)) -> None:
    """Creates a topic on some brokers and returns when the NameServer has its route for each of them."""

    async def create() -> None:
        remoting = RemotingClient()
        api = BrokerApi(remoting)
        for number in brokers:
            await api.create_topic(
                cluster.brokers[number], TopicConfig(topic, read_queue_nums=queues, write_queue_nums=queues)
            )

        async def is_known() -> bool:
            with suppress(NoRouteInfo):
                return len((await api.route(cluster.name_server, topic)).queue_datas) == len(brokers)
            return False

        await until(is_known)
        await remoting.close()

    asyncio.run(create())


def send_numbers(cluster: EmbeddedCluster, topic: str, numbers: range) -> None:
    """Sends the numbers as bodies, with keys `k0`, ... and the tag Even or Odd, in batches to all queues."""
    messages = [Message(topic, b"%d" % n, keys=f"k{n}", tags="Odd" if n % 2 else "Even") for n in numbers]

    async def send() -> None:
        async with Producer(cluster.name_server, "numbers") as producer:
            for start in range(0, len(messages), SEND_AT_ONCE):
                await producer.send_batch(messages[start : start + SEND_AT_ONCE])

    asyncio.run(send())


def committed_offsets(cluster: EmbeddedCluster, group: str, topic: str, queues: int) -> list[int]:
    """Returns the offset that `group` has committed for each queue, broker by broker. -1 means no offset."""

    async def query() -> list[int]:
        remoting = RemotingClient()
        api = BrokerApi(remoting)
        found = [
            await api.query_offset(address, group, topic, queue_id)
            for address in cluster.brokers
            for queue_id in range(queues)
        ]
        await remoting.close()
        return [-1 if offset is None else offset for offset in found]

    return asyncio.run(query())


def run_available(start: Callable[[], StreamingQuery], timeout_s: float) -> StreamingQuery:
    """Runs a query with Trigger.AvailableNow and limits until its end. Returns the last run that had rows.

    A Spark without admission control runs one micro-batch at a time.
    """
    last = None
    while True:
        query = start()
        assert query.awaitTermination(timeout_s)
        if HAS_ADMISSION_CONTROL:
            return query
        if last is not None and not any(progress.numInputRows for progress in query.recentProgress):
            return last
        last = query
