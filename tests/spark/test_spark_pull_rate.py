"""Tests that a read does not exceed its rate limit for each broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pyarrow as pa
import pytest
from constants import change_constant
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.arrow.cluster_client import ClusterClient, run
from gantrymq.arrow.columns import ARROW_TYPES
from gantrymq.arrow.filters import PushedFilters
from gantrymq.arrow.offsets import OffsetRange
from gantrymq.arrow.partitions import plan_partitions
from gantrymq.arrow.planning import plan_batch
from gantrymq.arrow.pull import PullRate
from gantrymq.arrow.rows import read_ranges
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import ConfigError
from gantrymq.protocol.message import Message, MessageQueue
from gantrymq.spark.options import ReadOptions
from gantrymq.testing.embedded import EmbeddedCluster

BODY = pa.schema([("body", ARROW_TYPES["body"])])


def options(**more: str) -> ReadOptions:
    return ReadOptions.parse({"nameserver": "a:1", "subscribe": "orders"} | more)


def test_a_broker_rests_for_as_long_as_its_bytes_are_worth() -> None:
    rate = PullRate(1000)
    assert rate.pause_s("a", 5.0) == 0
    rate.add("a", 500, 5.0)
    assert rate.pause_s("a", 5.2) == pytest.approx(0.3)
    assert rate.pause_s("b", 5.2) == 0
    rate.add("a", 500, 5.2)
    assert rate.pause_s("a", 5.2) == pytest.approx(0.8)
    # Unused capacity of an idle period does not accumulate.
    rate.add("a", 100, 100.0)
    assert rate.pause_s("a", 100.0) == pytest.approx(0.1)


@given(st.lists(st.tuples(st.integers(0, 100_000), st.floats(0, 1)), min_size=1), st.integers(1000, 100_000))
def test_the_rate_holds_but_for_the_first_pull(pulls: list[tuple[int, float]], bytes_per_second: int) -> None:
    rate, now, taken = PullRate(bytes_per_second), 0.0, 0
    for size, lasts in pulls:
        now += rate.pause_s("a", now)
        assert taken <= bytes_per_second * now * (1 + 1e-9) + 1e-6
        now += lasts
        rate.add("a", size, now)
        taken += size


def test_one_task_reads_a_broker() -> None:
    queues = [MessageQueue("orders", broker, n) for broker in ("broker-a", "broker-b") for n in range(3)]
    end = dict.fromkeys(queues, 1_000_000)
    limited = options(maxbytespersecondperbroker="1000")
    found = plan_partitions(dict.fromkeys(queues, 0), end, limited, {})
    assert found == [[OffsetRange(q, 0, 1_000_000) for q in queues[first : first + 3]] for first in (0, 3)]
    assert plan_partitions(end, end, limited, {}) == []
    for other in ("minPartitions", "maxPartitions", "maxPartitionBytes"):
        with pytest.raises(ConfigError, match=f"maxBytesPerSecondPerBroker and {other} exclude each other"):
            options(**{"maxbytespersecondperbroker": "1000", other.lower(): "10"})


def test_a_read_takes_its_time(
    cluster: EmbeddedCluster, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    change_constant(monkeypatch, "pull.LEAST_PULL_BYTES", 2000)
    topic = new_topic(1)

    async def send() -> None:
        async with Producer(cluster.name_server, "rate") as producer:
            await producer.send_batch([Message(topic, b"%09d" % n * 100) for n in range(100)], timeout=10)

    asyncio.run(send())
    given = options(nameserver=cluster.name_server, subscribe=topic, maxbytespersecondperbroker="100000")

    async def plan() -> list[list[OffsetRange]]:
        async with ClusterClient(given.name_servers, 5000) as brokers:
            return await plan_batch(brokers, given, PushedFilters())

    (ranges,) = run(plan())
    began = time.monotonic()
    found = [body for batch in read_ranges(ranges, given, BODY) for body in batch.column("body").to_pylist()]
    # 100 messages of more than 1,000 bytes each. The read does not pause after its last pull.
    assert time.monotonic() - began > 0.8
    assert [int(body[:9]) for body in found] == list(range(100))
