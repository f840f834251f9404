"""Tests that connections are reused from task to task and closed when they are idle or old."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from mortal_cluster import MortalCluster
from wait_until import wait_until

from gantrymq.arrow.columns import ARROW_TYPES
from gantrymq.arrow.connection_pool import IDLE_S, MAX_AGE_S, MAX_CLIENTS, ClientPool, close_pool, task_connections
from gantrymq.arrow.offsets import OffsetRange
from gantrymq.arrow.rows import read_ranges
from gantrymq.arrow.security import Security
from gantrymq.client.credentials import Credentials
from gantrymq.remoting.client import RemotingClient
from gantrymq.spark.options import ReadOptions, WriteOptions

BODY = pa.schema([("body", ARROW_TYPES["body"])])


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MortalCluster]:
    close_pool()
    with MortalCluster(tmp_path) as running:
        yield running
        close_pool()


def test_a_worker_has_one_connection_to_each_server(cluster: MortalCluster) -> None:
    cluster.create_topic("orders")
    cluster.send("orders", range(40))
    options = ReadOptions.parse({"nameserver": cluster.name_server, "subscribe": "orders"})

    def read() -> list[int]:
        with task_connections(options) as brokers:
            queues = brokers.submit(brokers.cluster.read_queues("orders")).result()
        ranges = [OffsetRange(queue, 0, 10) for queue in queues]
        return sorted(int(n) for batch in read_ranges(ranges, options, BODY) for n in batch.column("body").to_pylist())

    assert read() == list(range(40))
    first = cluster.clients()
    for _ in range(5):
        assert read() == list(range(40))
    # The brokers still see the same sockets. Connections to the NameServer do not count: brokers have some as well.
    assert cluster.clients() == first
    assert len(first) == 2
    close_pool()
    wait_until(lambda: not cluster.clients())
    # A restarted broker has another address.
    assert read() == list(range(40))
    cluster.stop_broker("broker-b")
    cluster.start_broker("broker-b")
    assert read() == list(range(40))


def test_what_a_task_leaves_under_way_ends_with_it() -> None:
    options = WriteOptions(["127.0.0.1:1"], "t")
    ended = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    def fail() -> None:
        with task_connections(options) as brokers:
            brokers.submit(work())
            raise ValueError("of the task")

    with pytest.raises(ValueError, match="of the task"):
        fail()
    assert ended == [True]


async def test_connections_are_given_up_in_time() -> None:
    kept = ClientPool()
    one, other = Security(Credentials("one", "secret")), Security(Credentials("other", "secret"))
    first = kept.acquire(one, 0.0)
    assert kept.acquire(one, 1.0) is first
    assert kept.acquire(other, 1.0) is not first
    for _ in range(2):
        await kept.release(first, 2.0)
    # A connection in use is not closed, however old it is.
    second = kept.acquire(one, 3.0)
    assert second is first
    await kept.release(second, 3.0 + IDLE_S)
    assert kept.acquire(one, 4.0 + IDLE_S) is first
    await kept.release(first, MAX_AGE_S + 1)
    third = kept.acquire(one, MAX_AGE_S + 1)
    assert third is not first
    await kept.release(third, MAX_AGE_S + 2)
    await kept.close()


async def test_so_many_kinds_of_connections_are_kept() -> None:
    kept = ClientPool()

    def taken(number: int) -> RemotingClient:
        return kept.acquire(Security(Credentials(f"key-{number}", "secret")), 0.0)

    clients = [taken(number) for number in range(MAX_CLIENTS + 3)]
    for number, client in enumerate(clients):
        await kept.release(client, float(number))
    # The pool keeps the clients that were released last.
    assert [taken(number) is client for number, client in enumerate(clients)] == [False] * 3 + [True] * MAX_CLIENTS
    for client in clients:
        await kept.release(client, 100.0)
    await kept.close()
