"""`RowSender` sends encoded rows, in order to each queue and concurrently to all queues."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from gantrymq.arrow.batch_bodies import REQUEST_BYTES, BatchBody, Encoded, batch_body, requests_of
from gantrymq.arrow.client_settings import NewTopic
from gantrymq.arrow.cluster_client import ClusterClient
from gantrymq.arrow.concurrent_requests import run_all
from gantrymq.arrow.options import PRODUCER_GROUP
from gantrymq.arrow.row_messages import QueueKey, TopicMessages
from gantrymq.client.producing.queue_selector import queue_by_hash
from gantrymq.client.producing.send_command import send_command
from gantrymq.errors import BrokerError, IllegalMessage
from gantrymq.protocol.batch import decode_batch
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.properties import find_property
from gantrymq.protocol.row_ids import GANTRY_ID
from gantrymq.system.clock import now_ms

#: Largest number of messages in flight that can't be in a batch.
MAX_ALONE_IN_FLIGHT = 64


class RowSender:
    """Sends the rows of one task. `partition` selects the first queue, so that tasks begin with different queues."""

    def __init__(self, cluster: ClusterClient, partition: int, new_topic: NewTopic | None = None) -> None:
        """`new_topic` has the settings of topics that brokers create. Default: those of a producer."""
        self._cluster = cluster
        #: Arguments of `send_command`.
        self._settings = (new_topic or NewTopic()).arguments()
        self._queues: dict[str, list[MessageQueue]] = {}
        self._turn = partition
        self._alone = asyncio.Semaphore(MAX_ALONE_IN_FLIGHT)

    async def send(self, messages: dict[str, TopicMessages]) -> None:
        """Sends messages by topic, and returns after all of them are stored. Raises the errors of a send."""
        # All queues are found before a coroutine is created, because an error would leave the coroutine without an
        # await.
        work: list[Callable[[], Coroutine[Any, Any, None]]] = []
        for topic, of_topic in messages.items():
            queues = await self._write_queues(topic)
            # In this order, successive queues are on different brokers, so that a retry goes to another broker.
            in_turn = sorted(queues, key=lambda queue: (queue.queue_id, queue.broker_name))
            by_queue: dict[MessageQueue, list[Encoded]] = {}
            for key, keyed in of_topic.by_key.items():
                by_queue.setdefault(queue_of(key, queues), []).extend(keyed)
            work += [
                partial(self._send_in_order, [queue], [batch_body(request) for request in requests_of(keyed)])
                for queue, keyed in by_queue.items()
            ]
            work += [partial(self._send_request, self._next(in_turn), request) for request in of_topic.free]
            work += [
                partial(self._send_alone, self._next(in_turn) if key is None else [queue_of(key, queues)], message)
                for key, message in of_topic.alone
            ]
        await run_all([begin() for begin in work])

    def _next(self, queues: list[MessageQueue]) -> list[MessageQueue]:
        start = self._turn = (self._turn + 1) % len(queues)
        return queues[start:] + queues[:start]

    async def _send_in_order(self, queues: Sequence[MessageQueue], requests: Sequence[BatchBody]) -> None:
        for request in requests:
            await self._send_request(queues, request)

    async def _send_request(self, queues: Sequence[MessageQueue], request: BatchBody) -> None:
        """Sends a batch to the first of the queues whose broker accepts it."""
        if request.messages == 1 and len(request.body) > REQUEST_BYTES:
            # A batch adds some hundred bytes, so brokers would reject a body of the largest size.
            [message] = decode_batch(request.body)
            await self._send_alone(queues, message)
            return

        def command(queue: MessageQueue) -> RemotingCommand:
            return send_command(PRODUCER_GROUP, queue, request.body, b"", now_ms(), batch=True, **self._settings)

        with rows_in_errors(decode_batch(request.body)):
            await self._cluster.send(queues, command)

    async def _send_alone(self, queues: Sequence[MessageQueue], message: Encoded) -> None:
        _, body, properties = message

        def command(queue: MessageQueue) -> RemotingCommand:
            return send_command(PRODUCER_GROUP, queue, body, properties, now_ms(), **self._settings)

        async with self._alone:
            with rows_in_errors([message]):
                await self._cluster.send(queues, command)

    async def _write_queues(self, topic: str) -> list[MessageQueue]:
        queues = self._queues.get(topic)
        if queues is None:
            queues = self._queues[topic] = await self._cluster.write_queues(
                topic, self._settings["default_topic_queue_nums"]
            )
        return queues


def queue_of(key: QueueKey, queues: Sequence[MessageQueue]) -> MessageQueue:
    """Returns the queue that the key selects. Raises IllegalMessage if none or several of `queues` match."""
    if isinstance(key, str):
        return queue_by_hash(key, queues)
    found = [q for q in queues if q.queue_id == key.queue_id and key.broker_name in (None, q.broker_name)]
    topic = queues[0].topic
    if not found:
        raise IllegalMessage(f"topic {topic!r} has no writable {key}: see 'gantry admin topicRoute -t {topic}'")
    if len(found) > 1:
        brokers = " and ".join(queue.broker_name for queue in found)
        raise IllegalMessage(f"topic {topic!r} has {key} on {brokers}: name the broker in the column brokerName")
    return found[0]


@contextmanager
def rows_in_errors(messages: Iterable[Encoded]) -> Iterator[None]:
    """Adds the row numbers of `messages` to a BrokerError."""
    try:
        yield
    except BrokerError as e:
        ids = [(find_property(properties, GANTRY_ID.encode()) or b"").decode() for _, _, properties in messages]
        prefix, _, last = ids[-1].rpartition("-")
        first = ids[0].rpartition("-")[2]
        rows = f"row {last}" if len(ids) == 1 else f"{len(ids)} rows from {first} to {last}"
        e.add_note(f"{rows} of the partition ({prefix})")
        raise
