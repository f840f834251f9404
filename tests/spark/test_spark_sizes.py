"""Tests of maxBytesPerTrigger: how a backlog is split by bytes, and the error of the size estimate."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_support import WAIT_S, run_available

from gantrymq.arrow.columns import ARROW_TYPES
from gantrymq.arrow.offsets import OffsetRange
from gantrymq.arrow.size_estimates import MAX_ESTIMATES, limit_bytes
from gantrymq.client.producing.producer import Producer
from gantrymq.protocol.message import Message, MessageQueue
from gantrymq.spark.options import ReadOptions
from gantrymq.spark.reader import RocketMQStreamReader
from gantrymq.spark.versions import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from gantrymq.testing.embedded import EmbeddedCluster

NewTopic = Callable[..., str]
BODY = pa.schema([("body", ARROW_TYPES["body"])])
#: Maximum size of a record beyond its body in these tests, in bytes.
OVERHEAD = 250
SEND_BYTES = 512 * 1024
KIB = 1024


# -- the search, with known sizes -------------------------------------------------------------------------------


def cut(sizes: Sequence[Sequence[int]], max_bytes: int) -> tuple[list[int], int]:
    """Returns where queues with messages of these sizes are cut, and the number of size estimates."""
    queues = [MessageQueue("t", "a", n) for n in range(len(sizes))]
    asked = 0

    async def estimate(ranges: Sequence[OffsetRange]) -> float:
        nonlocal asked
        asked += 1
        return sum(sum(sizes[part.queue.queue_id][part.start : part.end]) for part in ranges)

    starts, ends = dict.fromkeys(queues, 0), {queue: len(sizes[queue.queue_id]) for queue in queues}
    limited = asyncio.run(limit_bytes(starts, ends, max_bytes, estimate))
    return [limited[queue] for queue in queues], asked


def test_what_fits_is_looked_at_once() -> None:
    assert cut([[100] * 50, [100] * 30], 8000) == ([50, 30], 1)
    assert cut([[], []], 1) == ([0, 0], 0)


def test_equal_messages_take_two_looks() -> None:
    ends, asked = cut([[100] * 5000, [100] * 5000], 100_000)
    assert ends == [425, 425]
    assert asked == 2


def test_sizes_that_change_along_the_queue() -> None:
    growing = [100] * 10_000 + [100_000] * 1000
    (end,), _ = cut([growing], 500_000)
    assert 375_000 <= sum(growing[:end]) <= 500_000
    shrinking = [100_000] * 100 + [100] * 100_000
    (end,), _ = cut([shrinking], 5_000_000)
    assert 3_750_000 <= sum(shrinking[:end]) <= 5_000_000


def test_a_message_that_is_larger_than_allowed_comes_alone() -> None:
    assert cut([[1000, 1000], [1000]], 10)[0] in ([1, 0], [0, 1])


@given(st.lists(st.lists(st.integers(1, 10_000), max_size=60), min_size=1, max_size=4), st.integers(1, 100_000))
def test_never_more_than_allowed(sizes: list[list[int]], max_bytes: int) -> None:
    ends, asked = cut(sizes, max_bytes)
    taken = sum(sum(of_queue[:end]) for of_queue, end in zip(sizes, ends, strict=True))
    assert taken <= max_bytes or sum(ends) == 1
    assert sum(ends) >= min(1, sum(map(len, sizes)))
    assert asked <= MAX_ESTIMATES


# -- the estimate, with messages of brokers ---------------------------------------------------------------------


def send(cluster: EmbeddedCluster, topic: str, sizes: Sequence[int]) -> None:
    """Sends bodies of these sizes in this order to all queues."""

    async def run() -> None:
        async with Producer(cluster.name_server, "sizes") as producer:
            batch: list[Message] = []
            room = 0
            for size in sizes:
                if batch and (size > room or len(batch) == 50):
                    await producer.send_batch(batch)
                    batch = []
                if not batch:
                    room = SEND_BYTES
                batch.append(Message(topic, random.randbytes(size)))
                room -= size
            await producer.send_batch(batch)

    asyncio.run(run())


def reader(cluster: EmbeddedCluster, topic: str, **more: str) -> RocketMQStreamReader:
    options = {"nameserver": cluster.name_server, "subscribe": topic, "startingoffsets": "earliest"} | more
    return RocketMQStreamReader(ReadOptions.parse(options, streaming=True), BODY)


def batch_sizes(stream: RocketMQStreamReader) -> list[list[int]]:
    """Returns the body sizes of each micro-batch until no messages are left."""
    batches = []
    start = stream.initialOffset()
    while (end := stream.latestOffset(start, stream.getDefaultReadLimit())) != start:
        rows = [batch for part in stream.partitions(start, end) for batch in stream.read(part)]
        batches.append([len(body) for batch in rows for body in batch.column("body").to_pylist()])
        start = end
    stream.stop()
    return batches


def _mixed() -> list[int]:
    """Returns sizes of which one in ten is large."""
    draw = random.Random(7)
    return [64 * KIB if draw.random() < 0.1 else 500 for _ in range(4000)]


#: Contents of the queues: (sizes of the bodies, maxBytesPerTrigger).
BACKLOGS = {
    "equal": ([1000] * 20_000, 4_000_000),
    "growing": ([100] * 10_000 + [20_000] * 1000, 3_000_000),
    "shrinking": ([20_000] * 1000 + [100] * 10_000, 3_000_000),
    "mixed": (_mixed(), 4_000_000),
}


@pytest.mark.parametrize("kind", BACKLOGS)
def test_a_batch_has_about_what_is_allowed(cluster: EmbeddedCluster, new_topic: NewTopic, kind: str) -> None:
    sizes, most = BACKLOGS[kind]
    topic = new_topic(2)
    send(cluster, topic, sizes)
    batches = batch_sizes(reader(cluster, topic, maxbytespertrigger=str(most)))
    assert sorted(size for batch in batches for size in batch) == sorted(sizes)
    stored = [sum(batch) + OVERHEAD * len(batch) for batch in batches]
    # This is the limit that docs/spark/read.md states.
    assert max(stored) <= 1.5 * most
    assert len(batches) <= 2 * (1 + sum(stored) / most)


def test_the_smaller_of_two_limits_holds(cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    send(cluster, topic, [10] * 1000 + [10_000] * 100)
    stream = reader(cluster, topic, maxoffsetspertrigger="400", maxbytespertrigger="500000")
    assert stream.getDefaultReadLimit() == ReadMaxRows(400)
    batches = batch_sizes(stream)
    assert [len(batch) for batch in batches[:2]] == [400, 400]
    assert max(map(sum, batches)) <= 750_000
    assert sum(map(len, batches)) == 1100


def test_a_filter_does_not_change_the_limit(cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    send(cluster, topic, [1000] * 1000)
    stream = reader(cluster, topic, maxbytespertrigger="300000", tags="nobody-s")
    assert stream.getDefaultReadLimit() == ReadMaxBytes(300_000)
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    assert 150 <= sum(end[topic].values()) <= 300
    # Trigger.Once reads everything.
    assert sum(stream.latestOffset(start, ReadAllAvailable())[topic].values()) == 1000
    stream.stop()


@pytest.mark.spark
def test_in_a_query(spark: SparkSession, cluster: EmbeddedCluster, new_topic: NewTopic, tmp_path: Path) -> None:
    topic = new_topic(2)
    sizes = [100] * 2000 + [8000] * 250
    send(cluster, topic, sizes)
    found: list[int] = []

    def note(df: DataFrame, _: int) -> None:
        found.extend(row.size for row in df.agg(F.sum("size").alias("size")).collect())

    writer = (
        spark.readStream.format("rocketmq")
        .options(nameServer=cluster.name_server, subscribe=topic, startingOffsets="earliest")
        .option("maxBytesPerTrigger", "500000")
        .load()
        .select(F.octet_length("body").alias("size"))
        .writeStream.foreachBatch(note)
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
    )
    run_available(writer.start, WAIT_S)
    assert sum(found) == sum(sizes)
    assert len(found) >= 5
    assert max(found) <= 750_000
