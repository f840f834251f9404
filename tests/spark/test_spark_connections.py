"""Connections are kept from task to task, and not for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from mortal_cluster import MortalCluster
from waiting import wait_until

from gantrymq.remoting.client import RemotingClient
from gantrymq.spark.arrow_records import ARROW_TYPES
from gantrymq.spark.connections import IDLE_S, MAX_AGE_S, MOST_KEPT, KeptClients, close_kept, connected
from gantrymq.spark.offsets import OffsetRange
from gantrymq.spark.options import ReadOptions, WriteOptions
from gantrymq.spark.rows import read_ranges
from gantrymq.spark.security import Security

BODY = pa.schema([("body", ARROW_TYPES["body"])])


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MortalCluster]:
    close_kept()
    with MortalCluster(tmp_path) as running:
        yield running
        close_kept()


def test_a_worker_has_one_connection_to_each_server(cluster: MortalCluster) -> None:
    cluster.create_topic("orders")
    cluster.send("orders", range(40))
    options = ReadOptions.parse({"nameserver": cluster.name_server, "subscribe": "orders"})

    def read() -> list[int]:
        with connected(options) as brokers:
            queues = brokers.submit(brokers.cluster.read_queues("orders")).result()
        ranges = [OffsetRange(queue, 0, 10) for queue in queues]
        return sorted(int(n) for batch in read_ranges(ranges, options, BODY) for n in batch.column("body").to_pylist())

    assert read() == list(range(40))
    first = cluster.clients()
    for _ in range(5):
        assert read() == list(range(40))
    # The same sockets, from the brokers' side: brokers connect to the NameServer themselves.
    assert cluster.clients() == first
    assert len(first) == 2
    close_kept()
    wait_until(lambda: not cluster.clients())
    # A broker that starts again has another address.
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
        with connected(options) as brokers:
            brokers.submit(work())
            raise ValueError("of the task")

    with pytest.raises(ValueError, match="of the task"):
        fail()
    assert ended == [True]


async def test_connections_are_given_up_in_time() -> None:
    kept = KeptClients()
    one, other = Security("one", "secret"), Security("other", "secret")
    first = kept.take(one, 0.0)
    assert kept.take(one, 1.0) is first
    assert kept.take(other, 1.0) is not first
    for _ in range(2):
        await kept.give_back(first, 2.0)
    # One that is in use isn't closed, however old it is.
    second = kept.take(one, 3.0)
    assert second is first
    await kept.give_back(second, 3.0 + IDLE_S)
    assert kept.take(one, 4.0 + IDLE_S) is first
    await kept.give_back(first, MAX_AGE_S + 1)
    third = kept.take(one, MAX_AGE_S + 1)
    assert third is not first
    await kept.give_back(third, MAX_AGE_S + 2)
    await kept.close()


async def test_so_many_kinds_of_connections_are_kept() -> None:
    kept = KeptClients()

    def taken(number: int) -> RemotingClient:
        return kept.take(Security(f"key-{number}", "secret"), 0.0)

    clients = [taken(number) for number in range(MOST_KEPT + 3)]
    for number, client in enumerate(clients):
        await kept.give_back(client, float(number))
    # The last ones.
    assert [taken(number) is client for number, client in enumerate(clients)] == [False] * 3 + [True] * MOST_KEPT
    for client in clients:
        await kept.give_back(client, 100.0)
    await kept.close()
