"""Spark's writer interfaces: rows of a batch, or of the micro-batches of a stream, become messages.

Every message of a write is stored at least once. A task that is run again sends its rows again; the property GANTRY_ID
is the same then (as long as Spark makes the same rows in the same order), so a reader can drop what it has seen.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructType

from gantrymq.client.send_command import send_command
from gantrymq.errors import ConfigError, IllegalMessage
from gantrymq.protocol import properties as names
from gantrymq.protocol.batch import encode_batch
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.java import string_hash_code
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.message_id import UniqueKeys
from gantrymq.protocol.topic_name import SEND_FORBIDDEN_TOPICS, topic_problem
from gantrymq.spark.cluster import Cluster, LoopThread
from gantrymq.spark.options import PRODUCER_GROUP, WriteOptions

#: The property that is the same when a row is sent again: `write-partition-row`.
GANTRY_ID = "GANTRY_ID"

#: What a write takes. Only body is required, and topic where there is no option topic.
#: Rows of a task with the same shardingKey go to the same queue, in order.
COLUMNS: dict[str, tuple[DataType, ...]] = {
    "body": (BinaryType(), StringType()),
    "topic": (StringType(),),
    "keys": (StringType(), ArrayType(StringType())),
    "tags": (StringType(),),
    "shardingKey": (StringType(),),
    "properties": (MapType(StringType(), StringType()),),
}

#: A request holds at most so many messages and about so many bytes: well under a broker's maxMessageSize of 4 MiB.
REQUEST_MESSAGES = 1000
REQUEST_BYTES = 1024 * 1024

#: (flag, body, properties): what `encode_batch` takes.
Encoded = tuple[int, bytes, bytes]


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Raises ConfigError for columns that a write doesn't take, or lacks."""
    for column in schema.fields:
        kinds = COLUMNS.get(column.name)
        if kinds is None:
            raise ConfigError(
                f"a rocketmq write has no use for column {column.name!r}; it takes {', '.join(COLUMNS)}: "
                "select those, or put the others into body or properties"
            )
        if not any(_same_kind(column.dataType, kind) for kind in kinds):
            raise ConfigError(
                f"column {column.name} is {column.dataType.simpleString()}; a rocketmq write takes "
                f"{' or '.join(kind.simpleString() for kind in kinds)}"
            )
    given = {column.name for column in schema.fields}
    if "body" not in given:
        raise ConfigError("a rocketmq write needs a column body")
    if ("topic" in given) == (options.topic is not None):
        raise ConfigError("a rocketmq write needs either the option topic or a column topic")


def _same_kind(given: DataType, wanted: DataType) -> bool:
    """Equal but for what may be null."""
    return given.simpleString() == wanted.simpleString()


@dataclass
class RowsSent(WriterCommitMessage):
    """What a task tells the driver."""

    rows: int


class RocketMQBatchWriter(DataSourceArrowWriter):
    """One write. What was sent before a failure stays sent."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        # Made on the driver: the same for a task that is run again.
        self._write_id = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write(iterator, self._options, self._write_id)


class RocketMQStreamWriter(DataSourceStreamArrowWriter):
    """The writes of a stream: each micro-batch is written at least once."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _task_context()
        # The query's id is kept in its checkpoint: the same after a restart.
        query = context.getLocalProperty("sql.streaming.queryId") or "stream"
        batch = context.getLocalProperty("streaming.sql.batchId") or "0"
        return _write(iterator, self._options, f"{query}-{batch}")


def _task_context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "called by Spark in a task"
    return context


def _write(rows: Iterator[pa.RecordBatch], options: WriteOptions, write_id: str) -> RowsSent:
    partition = _task_context().partitionId()
    encoder = RowEncoder(options.topic, f"{write_id}-{partition}")
    sent = 0
    with LoopThread("send") as loop:
        sender = loop.submit(_open(options, partition)).result()
        try:
            # The rows of one Arrow batch are on their way while the next ones are encoded.
            under_way = None
            for batch in rows:
                messages = encoder.encode(batch)
                if under_way is not None:
                    under_way.result()
                under_way = loop.submit(sender.send(messages))
                sent += batch.num_rows
            if under_way is not None:
                under_way.result()
        finally:
            loop.submit(sender.close()).result()
    return RowsSent(sent)


async def _open(options: WriteOptions, partition: int) -> Sender:
    return Sender(Cluster(options.name_servers, options.retry_timeout_ms), partition)


@dataclass
class TopicMessages:
    """The messages of some rows for one topic: those that may go to any queue, and those of each sharding key."""

    free: list[Encoded] = field(default_factory=list)
    by_key: dict[str, list[Encoded]] = field(default_factory=dict)


class RowEncoder:
    """Rows to messages. `id_prefix` and the row's number make the property GANTRY_ID."""

    def __init__(self, topic: str | None, id_prefix: str) -> None:
        self._topic = topic
        self._id_prefix = id_prefix
        self._row = 0
        self._unique_keys = UniqueKeys()
        self._good_topics: set[str] = set()

    def encode(self, batch: pa.RecordBatch) -> dict[str, TopicMessages]:
        """{topic: messages in the order of their rows}. Raises IllegalMessage, which names the row."""
        given: dict[str, list[Any]] = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        nothing = [None] * batch.num_rows
        columns = [given.get(name, nothing) for name in COLUMNS]
        messages: dict[str, TopicMessages] = {}
        for body, topic, keys, tags, sharding_key, properties in zip(*columns, strict=True):
            try:
                topic = self._topic or topic
                if topic not in self._good_topics:
                    self._check_topic(topic)
                of_topic = messages.setdefault(topic, TopicMessages())
                message = self._message(body, keys, tags, sharding_key, properties)
            except IllegalMessage as e:
                e.add_note(f"row {self._row} of the partition ({self._id_prefix})")
                raise
            if sharding_key is None:
                of_topic.free.append(message)
            else:
                of_topic.by_key.setdefault(sharding_key, []).append(message)
            self._row += 1
        return messages

    def _message(
        self,
        body: bytes | str | None,
        keys: str | list[str] | None,
        tags: str | None,
        sharding_key: str | None,
        properties: list[tuple[str, str]] | None,
    ) -> Encoded:
        if not body:
            raise IllegalMessage("the body is null or empty, which no message's may be")
        own = {name: value for name, value in properties if value} if properties else {}
        if keys:
            own[names.KEYS] = keys if isinstance(keys, str) else names.KEY_SEPARATOR.join(keys)
        if tags:
            own[names.TAGS] = tags
        if sharding_key:
            own[names.SHARDING_KEY] = sharding_key
        if own.get(names.DELAY_TIME_LEVEL, "0") != "0":
            raise IllegalMessage(f"property {names.DELAY_TIME_LEVEL}: delayed messages can't be sent in batches")
        own[names.UNIQUE_KEY] = self._unique_keys.next()
        own[GANTRY_ID] = f"{self._id_prefix}-{self._row}"
        encoded = names.encode_properties(own)
        if len(encoded) > names.MAX_PROPERTIES_LENGTH:
            raise IllegalMessage(
                f"properties of {len(encoded)} bytes: at most {names.MAX_PROPERTIES_LENGTH} are allowed"
            )
        if "" in own:
            raise IllegalMessage("a property has no name")
        return 0, body.encode() if isinstance(body, str) else body, encoded

    def _check_topic(self, topic: str | None) -> None:
        problem = "the topic is null" if topic is None else topic_problem(topic)
        if problem is None and topic in SEND_FORBIDDEN_TOPICS:
            problem = f"clients may not send to the system topic {topic}"
        if problem or topic is None:
            raise IllegalMessage(problem or "")
        self._good_topics.add(topic)


class Sender:
    """Sends what a RowEncoder makes: in order to each queue, to all queues at once."""

    def __init__(self, cluster: Cluster, partition: int) -> None:
        self._cluster = cluster
        self._queues: dict[str, list[MessageQueue]] = {}
        #: Tasks begin with different queues.
        self._turn = partition

    async def send(self, messages: dict[str, TopicMessages]) -> None:
        """Returns when all are stored. Raises what a send raises."""
        work = []
        for topic, of_topic in messages.items():
            queues = await self._write_queues(topic)
            by_queue: dict[MessageQueue, list[Encoded]] = {}
            for key, keyed in of_topic.by_key.items():
                # The queue that Java's SelectMessageQueueByHash picks.
                queue = queues[abs(string_hash_code(key)) % len(queues)]
                by_queue.setdefault(queue, []).extend(keyed)
            work += [self._send_in_order([queue], _requests(keyed)) for queue, keyed in by_queue.items()]
            # Neighbours on different brokers: where one is away the next is tried.
            in_turn = sorted(queues, key=lambda queue: (queue.queue_id, queue.broker_name))
            for request in _requests(of_topic.free):
                start = self._turn = (self._turn + 1) % len(in_turn)
                work.append(self._send_in_order(in_turn[start:] + in_turn[:start], [request]))
        await asyncio.gather(*work)

    async def close(self) -> None:
        await self._cluster.__aexit__(None, None, None)

    async def _send_in_order(self, queues: Sequence[MessageQueue], requests: Sequence[Sequence[Encoded]]) -> None:
        for request in requests:
            body = encode_batch(request)

            def command(queue: MessageQueue, body: bytes = body) -> RemotingCommand:
                return send_command(PRODUCER_GROUP, queue, body, b"", time.time_ns() // 1_000_000, batch=True)

            await self._cluster.send(queues, command)

    async def _write_queues(self, topic: str) -> list[MessageQueue]:
        queues = self._queues.get(topic)
        if queues is None:
            queues = self._queues[topic] = await self._cluster.write_queues(topic)
        return queues


def _requests(messages: list[Encoded]) -> list[list[Encoded]]:
    requests: list[list[Encoded]] = []
    size = REQUEST_BYTES
    for message in messages:
        length = len(message[1]) + len(message[2])
        if size + length > REQUEST_BYTES or len(requests[-1]) == REQUEST_MESSAGES:
            requests.append([])
            size = 0
        requests[-1].append(message)
        size += length
    return requests
