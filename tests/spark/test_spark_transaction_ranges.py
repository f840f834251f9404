"""Tests of transactional writes to brokers that accept half messages in batches, and to brokers that do not."""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Callable

import pyarrow as pa
import pytest
from constants import change_constant
from exactly_once_support import numbers

from gantrymq.arrow.cluster_client import ClusterClient, run
from gantrymq.arrow.row_messages import RowEncoder
from gantrymq.errors import RequestRefused
from gantrymq.protocol.codes import ResponseCode
from gantrymq.remoting.connection import Connection
from gantrymq.spark.half_messages import HalfSender
from gantrymq.spark.options import WriteOptions
from gantrymq.spark.writer import RocketMQBatchWriter, RowsSent
from gantrymq.testing.embedded import EmbeddedCluster

NewTopic = Callable[..., str]
ROWS = 5_000


def options_for(cluster: EmbeddedCluster, topic: str) -> WriteOptions:
    return WriteOptions([cluster.name_server], topic, transactional=True)


def sent(options: WriteOptions, partition: int, *, keyed: bool = False) -> RowsSent:
    """Sends a task's rows and returns the result that the task reports."""
    rows = list(range(partition * ROWS, (partition + 1) * ROWS))

    async def send() -> RowsSent:
        async with ClusterClient(options.name_servers, 5000) as brokers:
            sender = HalfSender(brokers, partition, options.transaction_timeout_s)
            encoder = RowEncoder(options, f"write-{partition}")
            for start in range(0, ROWS, 1_500):
                columns = {"body": [str(n) for n in rows[start : start + 1_500]]}
                if keyed:
                    columns["shardingKey"] = [f"key-{n % 7}" for n in rows[start : start + 1_500]]
                await sender.send(encoder.encode(pa.RecordBatch.from_pydict(columns)))
            return RowsSent(ROWS, time.time(), sender.halves, sender.alone)

    return run(send())


def test_a_task_tells_the_driver_ranges_and_not_messages(cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    options = options_for(cluster, topic)
    tasks = [sent(options, partition) for partition in range(2)]
    for task in tasks:
        assert task.alone == []
        assert sum(each.half_range.number for each in task.halves) == ROWS
        assert len(pickle.dumps(task)) < 2_000
    assert numbers(cluster.name_server, topic) == []
    RocketMQBatchWriter(options).commit([*tasks, None])
    assert numbers(cluster.name_server, topic) == list(range(2 * ROWS))


def test_what_is_aborted_is_rolled_back(cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    options = options_for(cluster, topic)
    task = sent(options, 0)
    RocketMQBatchWriter(options).abort([task, None])
    RocketMQBatchWriter(options).abort([task])
    assert numbers(cluster.name_server, topic) == []


def test_an_abort_after_the_commit_changes_nothing(
    cluster: EmbeddedCluster, new_topic: NewTopic, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark calls `abort` after a commit that raised, for example because of one broker."""
    topic = new_topic(2)
    options = options_for(cluster, topic)
    task = sent(options, 0)
    writer = RocketMQBatchWriter(options)
    writer.commit([task])
    writer.abort([task])
    assert "the transaction is committed already" in caplog.text
    assert numbers(cluster.name_server, topic) == list(range(ROWS))


def test_brokers_that_take_no_batches(
    cluster: EmbeddedCluster, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java's brokers behave like this. Messages that were sent one by one are ended one by one."""
    change_constant(monkeypatch, "batches.TRANSACTION_PREPARED", -1)
    topic = new_topic(2)
    options = options_for(cluster, topic)
    task = sent(options, 0, keyed=True)
    assert task.halves == []
    assert len(task.alone) == ROWS
    assert numbers(cluster.name_server, topic) == []
    RocketMQBatchWriter(options).commit([task])
    assert numbers(cluster.name_server, topic) == list(range(ROWS))


def test_brokers_that_were_replaced_before_the_commit(
    cluster: EmbeddedCluster, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java's brokers with the same store replace them. Messages that were sent in batches are ended one by one."""
    topic = new_topic(2)
    options = options_for(cluster, topic)
    task = sent(options, 0)

    def refuse(*_: object) -> None:
        raise RequestRefused(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "request type 31037 not supported")

    monkeypatch.setattr("gantrymq.broker.transaction.range_ends.RangeEnds._decide", refuse)
    RocketMQBatchWriter(options).commit([task])
    assert Counter(numbers(cluster.name_server, topic)) == Counter(range(ROWS))


def test_a_commit_whose_answers_are_lost_shows_each_message_once(
    cluster: EmbeddedCluster, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(2)
    options = options_for(cluster, topic)
    task = sent(options, 0)
    lost = 4
    respond = Connection.respond_with

    def lose(connection: Connection, *given: object) -> None:
        nonlocal lost
        if lost:
            lost -= 1
            given[1].close()  # type: ignore[attr-defined]
            connection.close()
        else:
            respond(connection, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Connection, "respond_with", lose)
    RocketMQBatchWriter(options).commit([task])
    assert lost == 0
    assert numbers(cluster.name_server, topic) == list(range(ROWS))
