"""Tests that a read is split into partitions by bytes, whatever its queues contain."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from constants import change_constant
from hypothesis import given
from hypothesis import strategies as st
from spark_support import create_topic

from gantrymq.arrow.cluster_client import ClusterClient, run
from gantrymq.arrow.columns import ARROW_TYPES
from gantrymq.arrow.filters import PushedFilters
from gantrymq.arrow.offsets import OffsetRange
from gantrymq.arrow.partitions import plan_partitions, record_plan, recorded_partitions
from gantrymq.arrow.planning import plan_batch
from gantrymq.arrow.rows import read_ranges
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import ConfigError
from gantrymq.protocol.message import Message, MessageQueue
from gantrymq.spark.options import ReadOptions
from gantrymq.testing.embedded import EmbeddedCluster

BODY = pa.schema([("body", ARROW_TYPES["body"])])
QUEUES = [MessageQueue("orders", "broker-a", number) for number in range(4)]
MIB = 1024 * 1024


def options(**more: str) -> ReadOptions:
    return ReadOptions.parse({"nameserver": "a:1", "subscribe": "orders"} | more)


def plan(ends: list[int], given: ReadOptions, sizes: dict[int, float]) -> list[list[OffsetRange]]:
    end = dict(zip(QUEUES, ends, strict=False))
    return plan_partitions(dict.fromkeys(end, 0), end, given, {QUEUES[n]: size for n, size in sizes.items()})


def test_a_queue_with_most_of_a_topic_is_split() -> None:
    found = plan([900_000, 30_000, 30_000, 40_000], options(), {0: 1000.0, 1: 1000.0, 2: 1000.0, 3: 1000.0})
    assert len(found) == 7 + 3
    assert all(len(parts) == 1 for parts in found)
    assert max(part.end - part.start for (part,) in found) * 1000 <= 128 * MIB
    # Queues are split by bytes, not by the number of messages.
    assert len(plan([900_000, 30_000], options(), {0: 10.0, 1: 10_000.0})) == 1 + 3
    assert len(plan([900_000], options(maxpartitionbytes=str(90 * 1000 * 1000)), {0: 1000.0})) == 10


def test_at_most_so_many() -> None:
    found = plan([900_000, 30_000, 30_000, 40_000], options(maxpartitions="4"), dict.fromkeys(range(4), 1000.0))
    assert len(found) == 4
    sizes = [sum(part.end - part.start for part in parts) for parts in found]
    assert max(sizes) < 1.5 * min(sizes)
    # Adjacent pieces of a queue in the same partition are merged.
    assert all(len({part.queue for part in parts}) == len(parts) for parts in found)
    assert len(plan([100, 100], options(maxpartitions="4"), {})) == 1
    with pytest.raises(ConfigError, match="minPartitions and maxPartitions exclude each other"):
        options(minpartitions="4", maxpartitions="2")


@pytest.mark.parametrize("more", [{}, {"minpartitions": "3"}, {"maxpartitionbytes": "90000"}])
def test_at_most_so_many_messages_in_a_partition(more: dict[str, str]) -> None:
    found = plan([1000, 250, 40, 30], options(maxrecordsperpartition="100", **more), {0: 300.0})
    rows = [sum(part.end - part.start for part in parts) for parts in found]
    assert sum(rows) == 1320
    assert max(rows) <= 100
    if not more:
        assert len(found) == 10 + 3 + 1


@given(
    st.lists(st.integers(0, 200_000), min_size=1, max_size=4),
    st.dictionaries(st.integers(0, 3), st.floats(1, 5000)),
    st.integers(1, 9),
    st.sampled_from([100_000, 128 * MIB]),
)
def test_each_offset_is_in_one_partition(ends: list[int], sizes: dict[int, float], most: int, size: int) -> None:
    found = plan(ends, options(maxpartitions=str(most), maxpartitionbytes=str(size)), sizes)
    assert len(found) <= most
    pieces = sorted(part for parts in found for part in parts)
    for queue, end in zip(QUEUES, ends, strict=False):
        of_queue = [part for part in pieces if part.queue == queue]
        assert [part.start for part in of_queue] == [0, *(part.end for part in of_queue)][: len(of_queue)]
        assert (of_queue[-1].end if of_queue else 0) == end


@given(
    st.dictionaries(
        st.builds(MessageQueue, st.sampled_from("tu"), st.sampled_from(["a", "b"]), st.integers(0, 2)),
        st.tuples(st.integers(0, 9), st.integers(0, 30_000)),
        max_size=6,
    ),
    st.sampled_from(
        [
            {},
            {"minpartitions": "7"},
            {"maxrecordsperpartition": "1000"},
            {"maxrecordsperpartition": "7000", "minpartitions": "7"},
            {"maxpartitions": "3"},
            {"maxpartitionbytes": "2000000"},
            {"deduplicate": "true"},
            {"maxbytespersecondperbroker": "9"},
        ]
    ),
)
def test_a_plan_is_recorded(queues: dict[MessageQueue, tuple[int, int]], more: dict[str, str]) -> None:
    options = ReadOptions.parse({"nameserver": "a:1", "subscribe": "t"} | more)
    starts = {queue: start for queue, (start, _) in queues.items()}
    ends = {queue: start + count for queue, (start, count) in queues.items()}
    planned = plan_partitions(starts, ends, options, dict.fromkeys(queues, 300.0))
    plan = record_plan(planned)
    assert recorded_partitions(plan, starts, ends) == planned
    # Half of each queue is lost.
    nearer = {queue: start + count // 2 for queue, (start, count) in queues.items()}
    left = recorded_partitions(plan, starts, nearer)
    assert len(left) == len(planned)
    assert sum(part.end - part.start for parts in left for part in parts) == sum(
        nearer[queue] - starts[queue] for queue in queues
    )


@pytest.mark.parametrize("of_queue", [[], [0, 5], [0, 7, 1, 6, 2], [0, 4, 1]])
def test_a_plan_of_other_offsets_is_refused(of_queue: list[int]) -> None:
    queue = MessageQueue("t", "a", 0)
    with pytest.raises(ConfigError, match="the checkpoint's plan"):
        recorded_partitions({queue: of_queue}, {queue: 5}, {queue: 10})


def test_a_skewed_topic(
    cluster: EmbeddedCluster, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    change_constant(monkeypatch, "partitions.SAMPLED_ROWS", 500)
    topic = new_topic(1)
    create_topic(cluster, topic, 2)
    given = ReadOptions.parse(
        {"nameserver": cluster.name_server, "subscribe": topic, "maxpartitionbytes": str(MIB), "maxpartitions": "4"}
    )

    async def send_and_plan() -> list[list[OffsetRange]]:
        async with Producer(cluster.name_server, "numbers") as producer:
            queue, *others = await producer.queues(topic)
            for first in range(0, 1800, 100):
                batch = [Message(topic, b"%08d" % n + bytes(2000)) for n in range(first, first + 100)]
                await producer.send_batch(batch, queue=queue)
            for n, other in enumerate(others):
                await producer.send_batch([Message(topic, b"%08d" % (1800 + n))], queue=other)
        async with ClusterClient(given.name_servers, 5000) as brokers:
            return await plan_batch(brokers, given, PushedFilters())

    found = run(send_and_plan())
    assert len(found) == 4
    sizes = [sum(part.end - part.start for part in parts) for parts in found]
    assert max(sizes) < 700
    bodies = [n for ranges in found for batch in read_ranges(ranges, given, BODY) for n in batch["body"].to_pylist()]
    assert sorted(int(body[:8]) for body in bodies) == list(range(1803))
