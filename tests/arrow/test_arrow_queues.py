"""Tests that the columns `brokerName` and `queueId` of a write select the queues of its rows."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from gantrymq.arrow import read_topic, write_topic
from gantrymq.arrow.options import WriteOptions
from gantrymq.arrow.row_messages import RowEncoder, TopicMessages, WantedQueue
from gantrymq.arrow.row_sender import RowSender, queue_of
from gantrymq.client.admin.client import AdminClient
from gantrymq.errors import ConfigError, IllegalMessage
from gantrymq.protocol.message import MessageQueue
from gantrymq.testing.embedded import EmbeddedCluster

TOPIC_QUEUES = 4


@pytest.fixture(scope="module")
def two_brokers() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=2) as running:
        yield running


def rows_of(columns: dict[str, Any]) -> pa.Table:
    return pa.table({name: pa.array(*given) for name, given in columns.items()})


def numbered(count: int, queues: list[int | None], **more: Any) -> pa.Table:
    return rows_of({"body": ([str(n) for n in range(count)],), "queueId": (queues, pa.int32()), **more})


@pytest.mark.parametrize("exactly_once", [None, ("queues", 0)])
def test_rows_go_to_their_queues_in_order(cluster: EmbeddedCluster, exactly_once: tuple[str, int] | None) -> None:
    topic = f"queues-{exactly_once is not None}"
    write_topic(cluster.name_server, topic, pa.table({"body": ["first"]}))
    count = 3000
    rows = numbered(count, [n * n % TOPIC_QUEUES for n in range(count)])
    assert write_topic(cluster.name_server, topic, rows, exactly_once=exactly_once) == count
    read = read_topic(cluster.name_server, topic, columns=["queueId", "queueOffset", "body"]).read_all().to_pylist()
    found = [row for row in read if row["body"] != b"first"]
    assert len(found) == count
    assert all(int(row["body"]) ** 2 % TOPIC_QUEUES == row["queueId"] for row in found)
    for queue_id in range(TOPIC_QUEUES):
        of_queue = sorted((row["queueOffset"], int(row["body"])) for row in found if row["queueId"] == queue_id)
        assert [number for _, number in of_queue] == sorted(number for _, number in of_queue)


def test_rows_without_a_queue_go_to_any(cluster: EmbeddedCluster) -> None:
    delays = ([None, 1, None], pa.int64())
    rows = numbered(3, [2, 3, None], shardingKey=(["a", "b", "c"],), delayMs=delays)
    encoded = RowEncoder(WriteOptions(["127.0.0.1:9876"], "t"), "w").encode(rows.to_batches()[0])["t"]
    # The queue overrides the sharding key.
    assert list(encoded.by_key) == [WantedQueue(None, 2), "c"]
    assert [key for key, _ in encoded.alone] == [WantedQueue(None, 3)]


def create_topic(cluster: EmbeddedCluster, topic: str) -> None:
    """Creates a topic on every broker."""

    async def create() -> None:
        async with AdminClient(cluster.name_server) as admin:
            await admin.ensure_topic(topic, queues=TOPIC_QUEUES)

    asyncio.run(create())


def test_a_queue_of_one_of_two_brokers(two_brokers: EmbeddedCluster) -> None:
    create_topic(two_brokers, "both")
    write_topic(two_brokers.name_server, "both", pa.table({"body": ["x"] * 8}))
    names = (["broker-a", "broker-b"] * 5,)
    assert write_topic(two_brokers.name_server, "both", numbered(10, [1] * 10, brokerName=names)) == 10
    read = read_topic(two_brokers.name_server, "both", columns=["brokerName", "queueId", "body"]).read_all().to_pylist()
    for broker, remainder in (("broker-a", 0), ("broker-b", 1)):
        found = [int(r["body"]) for r in read if r["brokerName"] == broker and r["queueId"] == 1 and r["body"] != b"x"]
        assert sorted(found) == list(range(remainder, 10, 2))


def test_queues_that_do_not_exist(cluster: EmbeddedCluster) -> None:
    write_topic(cluster.name_server, "missing", pa.table({"body": ["x"]}))
    with pytest.raises(IllegalMessage, match="topic 'missing' has no writable queue 77: see"):
        write_topic(cluster.name_server, "missing", numbered(1, [77]))
    with pytest.raises(IllegalMessage, match="no writable queue 0 on broker 'broker-z'"):
        write_topic(cluster.name_server, "missing", numbered(1, [0], brokerName=(["broker-z"],)))
    with pytest.raises(IllegalMessage, match="brokerName is 'broker-a' and column queueId is null"):
        write_topic(cluster.name_server, "missing", numbered(1, [None], brokerName=(["broker-a"],)))
    with pytest.raises(ConfigError, match="column brokerName selects no queue"):
        write_topic(cluster.name_server, "missing", pa.table({"body": ["x"], "brokerName": ["broker-a"]}))
    assert read_topic(cluster.name_server, "missing").read_all().num_rows == 1


def test_a_queue_id_on_two_brokers_needs_a_name() -> None:
    queues = [MessageQueue("t", broker, number) for broker in ("a", "b") for number in (0, 1)] + [
        MessageQueue("t", "b", 2)
    ]
    assert queue_of(WantedQueue("b", 1), queues) == queues[3]
    assert queue_of(WantedQueue(None, 2), queues) == queues[4]
    with pytest.raises(IllegalMessage, match="queue 1 on a and b: name the broker in the column brokerName"):
        queue_of(WantedQueue(None, 1), queues)


@pytest.mark.filterwarnings("error")
async def test_a_wrong_queue_of_the_last_topic_leaves_no_send_behind() -> None:
    """An error while the sends are planned must not leave coroutines that nobody awaits."""

    class Cluster:
        async def write_queues(self, topic: str, queue_nums: int) -> list[MessageQueue]:
            return [MessageQueue(topic, "broker-a", 0)]

    topics = {"first": TopicMessages(), "second": TopicMessages()}
    topics["first"].by_key["key"] = [(0, b"x", b"")]
    topics["second"].by_key[WantedQueue(None, 9)] = [(0, b"x", b"")]
    with pytest.raises(IllegalMessage, match="no writable queue 9"):
        await RowSender(Cluster(), 0).send(topics)  # type: ignore[arg-type]
    gc.collect()
