"""Tests how a write ends its other requests if a broker rejects one of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest
from mortal_cluster import MortalCluster

from gantrymq.arrow.cluster_client import ClusterClient, run
from gantrymq.arrow.concurrent_requests import run_all
from gantrymq.arrow.idempotent_sender import IdempotentSender
from gantrymq.arrow.row_messages import RowEncoder
from gantrymq.arrow.row_sender import RowSender
from gantrymq.client.producing.queue_selector import queue_by_hash
from gantrymq.errors import BrokerError
from gantrymq.protocol.message import MessageQueue
from gantrymq.spark.options import WriteOptions

TOO_LARGE = b"x" * 5_000_000


async def test_nothing_goes_on_after_the_first_error() -> None:
    ended: list[str] = []

    async def wait(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            # Its cleanup takes an event-loop iteration. The caller gets the error only after that.
            await asyncio.sleep(0)
            ended.append(name)

    async def fail(what: str) -> None:
        raise ValueError(what)

    with pytest.raises(ValueError, match="one"):
        await run_all([wait("first"), fail("one"), wait("second"), fail("two")])
    assert ended == ["first", "second"]


def keyed(queues: list[MessageQueue]) -> pa.RecordBatch:
    """Returns a row that is rejected for the first broker's queue, and one for the other broker's."""
    keys = {queue_by_hash(key, queues).broker_name: key for key in map(str, range(100))}
    columns = {"body": [TOO_LARGE, b"y"], "shardingKey": [keys["broker-a"], keys["broker-b"]]}
    return pa.RecordBatch.from_pydict(columns)


def in_turn(queues: list[MessageQueue]) -> pa.RecordBatch:
    """Returns such rows, distributed by row number instead of by key."""
    return pa.RecordBatch.from_pydict({"body": [TOO_LARGE, *[b"y"] * 1000]})


@pytest.mark.parametrize("exactly_once", [False, True])
def test_a_request_that_waits_for_a_broker_ends_with_the_write(tmp_path: Path, exactly_once: bool) -> None:
    with MortalCluster(tmp_path) as cluster:
        cluster.create_topic("orders", queues=1)
        options = WriteOptions([cluster.name_server], "orders", exactly_once=exactly_once)

        async def write() -> list[asyncio.Task[object]]:
            async with ClusterClient(options.name_servers, 60_000) as brokers:
                queues = await brokers.write_queues("orders")
                # The broker could be back within a minute.
                await asyncio.to_thread(cluster.stop_broker, "broker-b")
                rows = in_turn(queues) if exactly_once else keyed(queues)
                sender = IdempotentSender(brokers, queues, 0) if exactly_once else RowSender(brokers, 0)
                with pytest.raises(BrokerError, match="at most"):
                    await sender.send(RowEncoder(options, "w-0-0").encode(rows))
                names = [(task, getattr(task.get_coro(), "__qualname__", "")) for task in asyncio.all_tasks()]
                return [task for task, name in names if type(sender).__name__ in name or "RowSender" in name]

        assert run(write()) == []
