"""Sends what a RowEncoder makes: in order to each queue, to all queues at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gantrymq.client.producing.send_command import send_command
from gantrymq.errors import BrokerError
from gantrymq.protocol.batch import decode_batch
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.java import string_hash_code
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.properties import find_property
from gantrymq.protocol.row_ids import GANTRY_ID
from gantrymq.spark.batch_bodies import REQUEST_BYTES, BatchBody, Encoded, batch_body, requests_of
from gantrymq.spark.cluster import Cluster
from gantrymq.spark.of_each import all_of
from gantrymq.spark.options import PRODUCER_GROUP
from gantrymq.spark.row_messages import TopicMessages
from gantrymq.system.clock import now_ms

#: Messages that can't go in batches: so many are under way at a time.
ALONE_AT_ONCE = 64


class RowSender:
    """`partition` is the task's: tasks begin with different queues."""

    def __init__(self, cluster: Cluster, partition: int) -> None:
        self._cluster = cluster
        self._queues: dict[str, list[MessageQueue]] = {}
        self._turn = partition
        self._alone = asyncio.Semaphore(ALONE_AT_ONCE)

    async def send(self, messages: dict[str, TopicMessages]) -> None:
        """Returns when all are stored. Raises what a send raises."""
        work: list[Coroutine[Any, Any, None]] = []
        for topic, of_topic in messages.items():
            queues = await self._write_queues(topic)
            # Neighbours on different brokers: where one is away the next is tried.
            in_turn = sorted(queues, key=lambda queue: (queue.queue_id, queue.broker_name))
            by_queue: dict[MessageQueue, list[Encoded]] = {}
            for key, keyed in of_topic.by_key.items():
                by_queue.setdefault(queue_of(key, queues), []).extend(keyed)
            work += [
                self._send_in_order([queue], [batch_body(request) for request in requests_of(keyed)])
                for queue, keyed in by_queue.items()
            ]
            work += [self._send_request(self._next(in_turn), request) for request in of_topic.free]
            work += [
                self._send_alone(self._next(in_turn) if key is None else [queue_of(key, queues)], message)
                for key, message in of_topic.alone
            ]
        await all_of(work)

    def _next(self, queues: list[MessageQueue]) -> list[MessageQueue]:
        start = self._turn = (self._turn + 1) % len(queues)
        return queues[start:] + queues[:start]

    async def _send_in_order(self, queues: Sequence[MessageQueue], requests: Sequence[BatchBody]) -> None:
        for request in requests:
            await self._send_request(queues, request)

    async def _send_request(self, queues: Sequence[MessageQueue], request: BatchBody) -> None:
        """Stores the messages of a batch in the first of the queues whose broker takes them."""
        if request.messages == 1 and len(request.body) > REQUEST_BYTES:
            # As a batch it is some hundred bytes longer, and a body as large as brokers take would be refused.
            [message] = decode_batch(request.body)
            await self._send_alone(queues, message)
            return

        def command(queue: MessageQueue) -> RemotingCommand:
            return send_command(PRODUCER_GROUP, queue, request.body, b"", now_ms(), batch=True)

        with naming_rows(decode_batch(request.body)):
            await self._cluster.send(queues, command)

    async def _send_alone(self, queues: Sequence[MessageQueue], message: Encoded) -> None:
        _, body, properties = message

        def command(queue: MessageQueue) -> RemotingCommand:
            return send_command(PRODUCER_GROUP, queue, body, properties, now_ms())

        async with self._alone:
            with naming_rows([message]):
                await self._cluster.send(queues, command)

    async def _write_queues(self, topic: str) -> list[MessageQueue]:
        queues = self._queues.get(topic)
        if queues is None:
            queues = self._queues[topic] = await self._cluster.write_queues(topic)
        return queues


@contextmanager
def naming_rows(messages: Iterable[Encoded]) -> Iterator[None]:
    """A broker's error says which rows it is about."""
    try:
        yield
    except BrokerError as e:
        ids = [(find_property(properties, GANTRY_ID.encode()) or b"").decode() for _, _, properties in messages]
        prefix, _, last = ids[-1].rpartition("-")
        first = ids[0].rpartition("-")[2]
        rows = f"row {last}" if len(ids) == 1 else f"{len(ids)} rows from {first} to {last}"
        e.add_note(f"{rows} of the partition ({prefix})")
        raise


def queue_of(sharding_key: str, queues: list[MessageQueue]) -> MessageQueue:
    """The queue that Java's SelectMessageQueueByHash picks."""
    return queues[abs(string_hash_code(sharding_key)) % len(queues)]
