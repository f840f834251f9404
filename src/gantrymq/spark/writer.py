"""Writers: implementations of Spark's interfaces that send rows of a batch or of a stream as messages.

Every row is stored at least once. A repeated task sends its rows again. If Spark computes the same rows in the same
order again, they have the same property GANTRY_ID. With this property, a reader can drop duplicates. With exactlyOnce,
brokers drop them.

A transactional write stores half messages, which no consumer receives. The driver commits them after all tasks have
ended. docs/spark/exactly-once.md describes the guarantees.
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

from gantrymq.arrow.batch_sender import send_batches
from gantrymq.arrow.cluster_client import ClusterClient, run
from gantrymq.arrow.connection_pool import task_connections
from gantrymq.arrow.idempotent_sender import IdempotentSender, find_write_queues, queues_of_earlier_attempt
from gantrymq.arrow.row_messages import RowEncoder
from gantrymq.arrow.row_sender import RowSender
from gantrymq.errors import ClientError, GantryError
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.sys_flag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from gantrymq.spark.half_messages import HalfMessages, HalfSender, end_transaction
from gantrymq.spark.options import WriteOptions
from gantrymq.spark.versions import DataSourceStreamArrowWriter
from gantrymq.spark.worker_memory import tune_worker_memory

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RowsSent(WriterCommitMessage):
    """The report of a task to the driver. `started_at` is the start of the task, in seconds since the epoch."""

    rows: int
    started_at: float
    #: Half messages that were sent in batches.
    halves: list[HalfMessages] = field(default_factory=list)
    #: Half messages that were sent one by one.
    alone: list[HalfMessages] = field(default_factory=list)
    #: Brokers that don't drop repeated rows.
    at_least_once: set[str] = field(default_factory=set)


class RocketMQBatchWriter(DataSourceArrowWriter):
    """Writes a batch. After a failure, the messages that were sent stay stored, except in a transaction."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        # The id is set on the driver, so that all attempts of a task have the same id.
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
    """Writes the micro-batches of a stream, each one at least once."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._queues = _queues(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _task_context()
        # The id of the query is in the checkpoint, so it is the same after a restart.
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if not query or not batch:
            # Without these ids, brokers would drop the rows of each later micro-batch as duplicates.
            raise ClientError(
                "Spark hasn't set the id of the query and of the micro-batch: its rows have no unique ids"
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
    """Returns the queues of a write with exactlyOnce; empty for other writes.

    This runs on the driver, so that all attempts of a task have the same queues.
    """
    if not options.exactly_once:
        return []

    async def find() -> list[MessageQueue]:
        async with _cluster(options) as cluster:
            return await find_write_queues(cluster, options)

    return run(find())


def _write(
    rows: Iterator[pa.RecordBatch], options: WriteOptions, write_id: str, queues: Sequence[MessageQueue]
) -> RowsSent:
    partition = _task_context().partitionId()
    encoder = RowEncoder(options, f"{write_id}-{partition}")
    started_at = time.time()
    tune_worker_memory()
    with task_connections(options) as brokers:
        sender: RowSender | IdempotentSender
        if options.exactly_once:
            of_attempts = queues_of_earlier_attempt(brokers.cluster, queues, write_id, partition)
            sender = IdempotentSender(brokers.cluster, brokers.submit(of_attempts).result(), partition)
        elif options.transactional:
            sender = HalfSender(brokers.cluster, partition, options.transaction_timeout_s, options.new_topic)
        else:
            sender = RowSender(brokers.cluster, partition, options.new_topic)
        rows_sent = send_batches(rows, encoder, sender, brokers)
    match sender:
        case IdempotentSender():
            sender.finish()
            return RowsSent(rows_sent, started_at, at_least_once=sender.at_least_once)
        case HalfSender():
            return RowsSent(rows_sent, started_at, sender.halves, sender.alone)
        case _:
            return RowsSent(rows_sent, started_at)


def _cluster(options: WriteOptions) -> ClusterClient:
    return ClusterClient(options.name_servers, options.retry_timeout_ms, options.security)


# -- transactions, on the driver --------------------------------------------------------------------------------


def _commit(messages: Sequence[WriterCommitMessage | None], options: WriteOptions) -> None:
    """Commits a transaction, and logs the brokers that don't support exactlyOnce."""
    if brokers := {name for message in messages if isinstance(message, RowsSent) for name in message.at_least_once}:
        log.warning(
            "exactlyOnce: brokers %s don't drop repeated rows: they are stored at least once",
            ", ".join(sorted(brokers)),
        )
    sent = _in_transaction(messages)
    if not sent:
        return
    # Brokers check a transaction that is open for longer, and discard its half messages if no producer responds. A
    # commit that has begun is always completed.
    age_s = time.time() - min(message.started_at for message in sent)
    if age_s > options.transaction_timeout_s:
        _abort(messages, options)
        raise ClientError(
            f"the write took {age_s:.0f} s, more than transactionTimeoutMs allows, and nothing of it was committed: "
            "raise the option, or write less at a time (maxOffsetsPerTrigger of the source)"
        )
    run(_end(options, sent, TRANSACTION_COMMIT))


def _abort(messages: Sequence[WriterCommitMessage | None], options: WriteOptions) -> None:
    """Rolls back the half messages that tasks have reported. Brokers discard the rest after transaction checks."""
    sent = _in_transaction(messages)
    if not sent:
        return
    try:
        run(_end(options, sent, TRANSACTION_ROLLBACK))
    except GantryError as e:
        log.warning("rollback failed, the brokers discard the half messages later: %s", e)


def _in_transaction(messages: Sequence[WriterCommitMessage | None]) -> list[RowsSent]:
    return [message for message in messages if isinstance(message, RowsSent) and (message.halves or message.alone)]


async def _end(options: WriteOptions, sent: Sequence[RowsSent], verdict: int) -> None:
    async with _cluster(options) as cluster:
        halves = [each for message in sent for each in message.halves]
        alone = [each for message in sent for each in message.alone]
        await end_transaction(cluster, halves, alone, verdict)
