"""Tests of a stream that was stopped for longer than the retention time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pyarrow as pa
import pytest
from spark_support import WAIT_S, create_topic, send_numbers

from gantrymq.arrow.cluster_client import ClusterClient
from gantrymq.arrow.columns import ARROW_TYPES
from gantrymq.client.admin.client import AdminClient
from gantrymq.errors import DataLost
from gantrymq.protocol.message import MessageQueue
from gantrymq.spark.options import ReadOptions
from gantrymq.spark.reader import RocketMQStreamReader
from gantrymq.spark.versions import ReadAllAvailable
from gantrymq.testing.embedded import EmbeddedCluster

BODY = pa.schema([("body", ARROW_TYPES["body"])])
TOPIC = "soon-gone"
QUEUE = MessageQueue(TOPIC, "broker-a", 0)
COUNT = 5000


@pytest.fixture(scope="module")
def overtaken() -> Iterator[tuple[EmbeddedCluster, int]]:
    """Yields a cluster with numbers in one queue, and the first offset that its broker still has."""
    with EmbeddedCluster(mapped_file_size_commit_log=256 * 1024, file_reserved_time=0) as cluster:
        create_topic(cluster, TOPIC, 1, brokers=[0])
        for first in range(0, COUNT, 500):
            send_numbers(cluster, TOPIC, range(first, first + 500))
        yield cluster, asyncio.run(_delete_expired(cluster))


async def _delete_expired(cluster: EmbeddedCluster) -> int:
    assert cluster.directory is not None
    log_directory = cluster.directory / "broker-a" / "commitlog"
    async with AdminClient(cluster.name_server) as admin, asyncio.timeout(WAIT_S):
        # The current file stays, and so may a preallocated one. The broker keeps data that is not flushed yet,
        # so the test repeats the request.
        complete = sorted(log_directory.iterdir())[:-2]
        while any(path.exists() for path in complete):
            await admin.delete_expired_commit_log(cluster.brokers)
            await asyncio.sleep(1)
    async with ClusterClient([cluster.name_server], 5000) as brokers:
        return await brokers.min_offset(QUEUE)


def stream_of(cluster: EmbeddedCluster, **more: str) -> RocketMQStreamReader:
    options = {"nameserver": cluster.name_server, "subscribe": TOPIC, "startingoffsets": "earliest"} | more
    return RocketMQStreamReader(ReadOptions.parse(options, streaming=True), BODY)


def numbers(stream: RocketMQStreamReader) -> list[int]:
    start = {TOPIC: {"broker-a:0": 10}}
    end = stream.latestOffset(start, ReadAllAvailable())
    stream.stop()
    found = [b for p in stream.partitions(start, end) for batch in stream.read(p) for b in batch.column("body")]
    return [int(b.as_py()) for b in found]


def test_what_is_gone_is_an_error(overtaken: tuple[EmbeddedCluster, int]) -> None:
    cluster, first = overtaken
    with pytest.raises(DataLost, match=f"first offset that is left is {first}, not 10"):
        numbers(stream_of(cluster))


def test_what_is_left_is_read_when_that_is_allowed(overtaken: tuple[EmbeddedCluster, int]) -> None:
    cluster, first = overtaken
    assert 10 < first < COUNT
    assert numbers(stream_of(cluster, failondataloss="false")) == list(range(first, COUNT))
