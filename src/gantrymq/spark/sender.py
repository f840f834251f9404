"""Sends what a RowEncoder makes: in order to each queue, to all queues at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple

from gantrymq.client.broker_api import SendResult
from gantrymq.client.producing.send_command import send_command
from gantrymq.errors import ClientError
from gantrymq.protocol import sys_flag
from gantrymq.protocol.batch import encode_batch
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.transaction import EndTransactionRequestHeader
from gantrymq.protocol.java import string_hash_code
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.message_id import decode_offset_message_id
from gantrymq.protocol.properties import UNIQUE_KEY, find_property
from gantrymq.spark.cluster import Cluster
from gantrymq.spark.options import PRODUCER_GROUP
from gantrymq.spark.row_messages import Encoded, TopicMessages
from gantrymq.system.clock import now_ms

#: A request holds at most so many messages and about so many bytes: well under a broker's maxMessageSize of 4 MiB.
REQUEST_MESSAGES = 1000
REQUEST_BYTES = 1024 * 1024
#: Messages that can't go in batches: so many are under way at a time.
ALONE_AT_ONCE = 64


class HalfMessage(NamedTuple):
    """A message that is stored and not to be seen before its transaction is committed.

    `half_offset` is its queue offset among the half messages, `physical_offset` its place in the broker's log.
    """

    queue: MessageQueue
    half_offset: int
    physical_offset: int
    unique_key: str

    def end(self, verdict: int) -> EndTransactionRequestHeader:
        """`verdict` is TRANSACTION_COMMIT or TRANSACTION_ROLLBACK of `protocol.sys_flag`."""
        return EndTransactionRequestHeader(
            producer_group=PRODUCER_GROUP,
            tran_state_table_offset=self.half_offset,
            commit_log_offset=self.physical_offset,
            commit_or_rollback=verdict,
            msg_id=self.unique_key,
            topic=self.queue.topic,
            # Without it a broker refuses what comes later than transactionTimeoutMs, and the rest of a transaction
            # whose first messages are visible would be missing. When a transaction may begin to end is the driver's
            # decision.
            from_transaction_check=True,
            bname=self.queue.broker_name,
        )


class RowSender:
    """`partition` is the task's: tasks begin with different queues. `halves` are a transaction's messages so far."""

    def __init__(self, cluster: Cluster, partition: int, *, transactional: bool = False) -> None:
        self.halves: list[HalfMessage] = []
        self._cluster = cluster
        self._queues: dict[str, list[MessageQueue]] = {}
        self._turn = partition
        self._transactional = transactional
        self._alone = asyncio.Semaphore(ALONE_AT_ONCE)

    async def send(self, messages: dict[str, TopicMessages]) -> None:
        """Returns when all are stored. Raises what a send raises."""
        work: list[Coroutine[Any, Any, HalfMessage | None]] = []
        for topic, of_topic in messages.items():
            queues = await self._write_queues(topic)
            # Neighbours on different brokers: where one is away the next is tried.
            in_turn = sorted(queues, key=lambda queue: (queue.queue_id, queue.broker_name))
            by_queue: dict[MessageQueue, list[Encoded]] = {}
            for key, keyed in of_topic.by_key.items():
                by_queue.setdefault(queue_of(key, queues), []).extend(keyed)
            work += [self._send_in_order([queue], requests_of(keyed)) for queue, keyed in by_queue.items()]
            work += [self._send_in_order(self._next(in_turn), [request]) for request in requests_of(of_topic.free)]
            work += [
                self._send_alone(self._next(in_turn) if key is None else [queue_of(key, queues)], message)
                for key, message in of_topic.alone
            ]
        self.halves += [half for half in await asyncio.gather(*work) if half is not None]

    def _next(self, queues: list[MessageQueue]) -> list[MessageQueue]:
        start = self._turn = (self._turn + 1) % len(queues)
        return queues[start:] + queues[:start]

    async def _send_in_order(self, queues: Sequence[MessageQueue], requests: Sequence[Sequence[Encoded]]) -> None:
        for request in requests:
            body = encode_batch(request)

            def command(queue: MessageQueue, body: bytes = body) -> RemotingCommand:
                return send_command(PRODUCER_GROUP, queue, body, b"", now_ms(), batch=True)

            await self._cluster.send(queues, command)

    async def _send_alone(self, queues: Sequence[MessageQueue], message: Encoded) -> HalfMessage | None:
        _, body, properties = message
        flag = sys_flag.TRANSACTION_PREPARED if self._transactional else 0

        def command(queue: MessageQueue) -> RemotingCommand:
            return send_command(PRODUCER_GROUP, queue, body, properties, now_ms(), sys_flag=flag)

        async with self._alone:
            result = await self._cluster.send(queues, command)
        return _half(result, properties) if self._transactional else None

    async def _write_queues(self, topic: str) -> list[MessageQueue]:
        queues = self._queues.get(topic)
        if queues is None:
            queues = self._queues[topic] = await self._cluster.write_queues(topic)
        return queues


async def end_all(cluster: Cluster, halves: Sequence[HalfMessage], verdict: int) -> None:
    """Commits or rolls back: the messages of a queue in order, all queues at once. Raises what an end raises."""
    by_queue: dict[MessageQueue, list[HalfMessage]] = {}
    for half in halves:
        by_queue.setdefault(half.queue, []).append(half)
    for topic in {queue.topic for queue in by_queue}:
        # So that the brokers' addresses are known.
        await cluster.write_queues(topic)

    async def end_in_order(queue: MessageQueue, of_queue: list[HalfMessage]) -> None:
        for half in of_queue:
            await cluster.end_transaction(queue, half.end(verdict))

    await asyncio.gather(*(end_in_order(queue, of_queue) for queue, of_queue in by_queue.items()))


def _half(result: SendResult, properties: bytes) -> HalfMessage:
    unique_key = find_property(properties, UNIQUE_KEY.encode())
    if not result.offset_msg_id or unique_key is None:
        raise ClientError(f"broker {result.queue.broker_name} doesn't say where it has put a message: no transaction")
    _, physical_offset = decode_offset_message_id(result.offset_msg_id)
    return HalfMessage(result.queue, result.queue_offset, physical_offset, unique_key.decode())


def queue_of(sharding_key: str, queues: list[MessageQueue]) -> MessageQueue:
    """The queue that Java's SelectMessageQueueByHash picks."""
    return queues[abs(string_hash_code(sharding_key)) % len(queues)]


def requests_of(messages: list[Encoded]) -> list[list[Encoded]]:
    """The messages of each request, in order."""
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
