"""Spark's writer interfaces: rows of a batch, or of the micro-batches of a stream, become messages.

Every message of a write is stored at least once. A task that is run again sends its rows again; the property GANTRY_ID
is the same then (as long as Spark makes the same rows in the same order), so a reader can drop what it has seen, and
with exactlyOnce brokers do.

A transactional write stores half messages, which nobody sees, and the driver commits them when every task is done. What
that promises, and what it doesn't, is said in docs/spark.md.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from gantrymq.errors import ClientError, GantryError
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.sys_flag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from gantrymq.spark.cluster import Cluster, run
from gantrymq.spark.connections import connected
from gantrymq.spark.half_messages import HalfSender, Halves, end_all
from gantrymq.spark.idempotent_sender import IdempotentSender, queues_of_attempts, queues_to_write
from gantrymq.spark.memory import settle_worker
from gantrymq.spark.options import WriteOptions
from gantrymq.spark.row_messages import RowEncoder
from gantrymq.spark.sender import RowSender
from gantrymq.spark.versions import DataSourceStreamArrowWriter

log = logging.getLogger(__name__)


@dataclass
class RowsSent(WriterCommitMessage):
    """What a task tells the driver. `started_at` is before its first message, in s since the epoch."""

    rows: int
    started_at: float
    #: Half messages that were sent in batches, and those that were sent one by one.
    halves: list[Halves] = field(default_factory=list)
    alone: list[Halves] = field(default_factory=list)
    #: Brokers that dropped nothing, though they were asked to.
    at_least_once: set[str] = field(default_factory=set)


class RocketMQBatchWriter(DataSourceArrowWriter):
    """One write. What was sent before a failure stays sent, except in a transaction."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        # Made on the driver: the same for a task that is run again.
        name, number = options.transaction_of or (uuid.uuid4().hex, 0)
        self._write_id = f"{name}-{number}"
        self._queues = _queues(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write(iterator, self._options, self._write_id, self._queues)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _commit(messages, self._options)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(messages, self._options)


class RocketMQStreamWriter(DataSourceStreamArrowWriter):
    """The writes of a stream: each micro-batch is written at least once."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._queues = _queues(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _task_context()
        # The query's id is kept in its checkpoint: the same after a restart.
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if not query or not batch:
            # With any other name for it each micro-batch would be the first one again, and its rows copies.
            raise ClientError(
                "Spark doesn't say which micro-batch of which query this is: its rows can't be told apart"
            )
        return _write(iterator, self._options, f"{query}-{batch}", self._queues)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _commit(messages, self._options)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _abort(messages, self._options)


def _task_context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "called by Spark in a task"
    return context


def _queues(options: WriteOptions) -> list[MessageQueue]:
    """With exactlyOnce the queues of the write, found on the driver: the same for a task that is run again."""
    if not options.exactly_once:
        return []

    async def find() -> list[MessageQueue]:
        async with _cluster(options) as cluster:
            return await queues_to_write(cluster, options)

    return run(find())


def _write(
    rows: Iterator[pa.RecordBatch], options: WriteOptions, write_id: str, queues: Sequence[MessageQueue]
) -> RowsSent:
    partition = _task_context().partitionId()
    encoder = RowEncoder(options, f"{write_id}-{partition}")
    sent = RowsSent(0, time.time())
    settle_worker()
    with connected(options) as brokers:
        sender: RowSender | IdempotentSender
        if options.exactly_once:
            of_attempts = queues_of_attempts(brokers.cluster, queues, write_id, partition)
            sender = IdempotentSender(brokers.cluster, brokers.submit(of_attempts).result(), partition)
        elif options.transactional:
            sender = HalfSender(brokers.cluster, partition, options.transaction_timeout_s)
        else:
            sender = RowSender(brokers.cluster, partition)
        # The rows of one Arrow batch are on their way while the next ones are encoded.
        under_way = None
        for batch in rows:
            messages = encoder.encode(batch)
            if under_way is not None:
                under_way.result()
            under_way = brokers.submit(sender.send(messages))
            sent.rows += batch.num_rows
        if under_way is not None:
            under_way.result()
    if isinstance(sender, IdempotentSender):
        sender.finish()
        sent.at_least_once = sender.at_least_once
    elif isinstance(sender, HalfSender):
        sent.halves, sent.alone = sender.halves, sender.alone
    return sent


def _cluster(options: WriteOptions) -> Cluster:
    return Cluster(options.name_servers, options.retry_timeout_ms, options.security)


# -- transactions, on the driver --------------------------------------------------------------------------------


def _commit(messages: Sequence[WriterCommitMessage | None], options: WriteOptions) -> None:
    """Makes the messages of a transaction visible; says where exactlyOnce wasn't to be had."""
    if brokers := {name for message in messages if isinstance(message, RowsSent) for name in message.at_least_once}:
        log.warning("exactlyOnce: %s drop no rows that come again, so it is at least once", ", ".join(sorted(brokers)))
    sent = _in_transaction(messages)
    if not sent:
        return
    # Brokers begin to ask about half messages then, and give up those that nobody answers for. A commit that has begun
    # is finished, however long it takes.
    age_s = time.time() - min(message.started_at for message in sent)
    if age_s > options.transaction_timeout_s:
        _abort(messages, options)
        raise ClientError(
            f"the write took {age_s:.0f} s, more than transactionTimeoutMs allows, and nothing of it was committed: "
            "raise the option, or write less at a time (maxOffsetsPerTrigger of the source)"
        )
    run(_end(options, sent, TRANSACTION_COMMIT))


def _abort(messages: Sequence[WriterCommitMessage | None], options: WriteOptions) -> None:
    """Rolls back what is known; a broker drops the rest by itself."""
    sent = _in_transaction(messages)
    if not sent:
        return
    try:
        run(_end(options, sent, TRANSACTION_ROLLBACK))
    except GantryError as e:
        log.warning("half messages are left for the brokers to drop: %s", e)


def _in_transaction(messages: Sequence[WriterCommitMessage | None]) -> list[RowsSent]:
    return [message for message in messages if isinstance(message, RowsSent) and (message.halves or message.alone)]


async def _end(options: WriteOptions, sent: Sequence[RowsSent], verdict: int) -> None:
    async with _cluster(options) as cluster:
        halves = [each for message in sent for each in message.halves]
        alone = [each for message in sent for each in message.alone]
        await end_all(cluster, halves, alone, verdict)
