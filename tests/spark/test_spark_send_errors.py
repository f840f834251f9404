"""What becomes of the other requests of a write when a broker refuses one of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest
from mortal_cluster import MortalCluster

from gantrymq.errors import BrokerError
from gantrymq.protocol.message import MessageQueue
from gantrymq.spark.cluster import Cluster, run
from gantrymq.spark.idempotent_sender import IdempotentSender
from gantrymq.spark.of_each import all_of
from gantrymq.spark.options import WriteOptions
from gantrymq.spark.row_messages import RowEncoder
from gantrymq.spark.sender import RowSender, queue_of

TOO_LARGE = b"x" * 5_000_000


async def test_nothing_goes_on_after_the_first_error() -> None:
    ended: list[str] = []

    async def wait(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            # It may have something to give back, and the one who asked for it is told when it has.
            await asyncio.sleep(0)
            ended.append(name)

    async def fail(what: str) -> None:
        raise ValueError(what)

    with pytest.raises(ValueError, match="one"):
        await all_of([wait("first"), fail("one"), wait("second"), fail("two")])
    assert ended == ["first", "second"]


def keyed(queues: list[MessageQueue]) -> pa.RecordBatch:
    """A row that is refused for the first broker's queue, and one for the other's."""
    keys = {queue_of(key, queues).broker_name: key for key in map(str, range(100))}
    columns = {"body": [TOO_LARGE, b"y"], "shardingKey": [keys["broker-a"], keys["broker-b"]]}
    return pa.RecordBatch.from_pydict(columns)


def in_turn(queues: list[MessageQueue]) -> pa.RecordBatch:
    """The same by the rows' numbers."""
    return pa.RecordBatch.from_pydict({"body": [TOO_LARGE, *[b"y"] * 1000]})


@pytest.mark.parametrize("exactly_once", [False, True])
def test_a_request_that_waits_for_a_broker_ends_with_the_write(tmp_path: Path, exactly_once: bool) -> None:
    with MortalCluster(tmp_path) as cluster:
        cluster.create_topic("orders", queues=1)
        options = WriteOptions([cluster.name_server], "orders", exactly_once=exactly_once)

        async def write() -> list[asyncio.Task[object]]:
            async with Cluster(options.name_servers, 60_000) as brokers:
                queues = await brokers.write_queues("orders")
                # It may be back within a minute.
                await asyncio.to_thread(cluster.stop_broker, "broker-b")
                rows = in_turn(queues) if exactly_once else keyed(queues)
                sender = IdempotentSender(brokers, queues, 0) if exactly_once else RowSender(brokers, 0)
                with pytest.raises(BrokerError, match="at most"):
                    await sender.send(RowEncoder(options, "w-0-0").encode(rows))
                names = [(task, getattr(task.get_coro(), "__qualname__", "")) for task in asyncio.all_tasks()]
                return [task for task, name in names if type(sender).__name__ in name or "RowSender" in name]

        assert run(write()) == []
