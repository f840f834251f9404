"""Broker for taskiq: a task is a message, and workers are SimpleConsumers. Needs the extra `gantrymq[taskiq]`.

    broker = RocketMQBroker("127.0.0.1:9876")

    @broker.task
    async def add(a: int, b: int) -> int: ...

If a worker dies, its task is redelivered after `invisible_time`. If a task raises, its message is acknowledged, as with
all brokers of taskiq: taskiq's middlewares make the retries. The label `delay` delays a task, in seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from typing import Unpack

from gantrymq.client.consuming.start_position import EARLIEST, StartFrom
from gantrymq.client.popping.poll_rotation import INVISIBLE_S, RECEIVE_TIMEOUT_S
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import ClientClosed, GantryError, NoRouteInfo
from gantrymq.extras import missing
from gantrymq.integrations.in_flight import ConnectionOptions, InFlightMessages
from gantrymq.logs import peer_log
from gantrymq.protocol.message import Message, MessageExt

try:
    from taskiq import AckableMessage, AsyncBroker, BrokerMessage
except ImportError as e:
    raise missing("taskiq", "gantrymq.integrations.taskiq", e) from e

log = peer_log(__name__)

#: Label that delays a task, in seconds. taskiq's brokers for AMQP use the same name.
DELAY = "delay"
#: Pause of a worker after an error, s.
_PAUSE_S = 1.0


class RocketMQBroker(AsyncBroker):
    """Sends tasks to a topic. The workers of a group share them.

    Args:
        name_servers: NameServers: HOST:PORT, several separated by `;`.
        topic: Topic of the tasks. Default: taskiq.
        group: Consumer group of the workers. Default: taskiq.
        invisible_time: Time after which a dead worker's task is redelivered, in seconds or as a timedelta. It is
            renewed while a worker lives. Default: 60.0.
        receive_size: Tasks of one request, 1 to 32. Larger values suit short tasks, because no other worker gets the
            fetched tasks. Default: 1.
        start_from: Start position of a new group. Default: "earliest".
        options: `namespace`, `ssl_context`, `credentials` and `hooks` of the clients.
    """

    def __init__(
        self,
        name_servers: str,
        topic: str = "taskiq",
        group: str = "taskiq",
        *,
        invisible_time: float | timedelta = INVISIBLE_S,
        receive_size: int = 1,
        start_from: StartFrom = EARLIEST,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        super().__init__()
        self._topic = topic
        self._receive_size = receive_size
        self._producer = Producer(name_servers, f"{group}-clients", **options)
        self._consumer = SimpleConsumer(name_servers, group, start_from=start_from, **options)
        self._consumer.subscribe(topic)
        self.in_flight = InFlightMessages(self._consumer, invisible_time)
        self._stack = AsyncExitStack()

    async def startup(self) -> None:
        """Starts the producer; in a worker, also the consumer."""
        await self._stack.enter_async_context(self._producer)
        if self.is_worker_process:
            await self._stack.enter_async_context(self._consumer)
            self.in_flight.start()
            self._stack.push_async_callback(self.in_flight.stop)
        await super().startup()

    async def shutdown(self) -> None:
        """Stops the clients."""
        await super().shutdown()
        await self._stack.aclose()

    async def kick(self, message: BrokerMessage) -> None:
        """Sends a task with its id as message key. Raises the errors of `Producer.send`."""
        delay = message.labels.get(DELAY)
        await self._producer.send(
            Message(
                self._topic,
                message.message,
                keys=[message.task_id],
                delay=None if delay is None else float(delay),
            )
        )

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Yields the tasks for this worker."""
        while True:
            try:
                messages = await self.in_flight.receive(self._receive_size, RECEIVE_TIMEOUT_S)
            except ClientClosed:
                return
            except GantryError as e:
                # This is no error, because a topic that does not exist yet has no tasks.
                level = log.debug if isinstance(e, NoRouteInfo) else log.warning
                level("no tasks of topic %s: %s", self._topic, e)
                await asyncio.sleep(_PAUSE_S)
                continue
            for message in messages:
                try:
                    data = message.body
                except GantryError as e:
                    log.error("no task: %s", e)
                    self.in_flight.drop(message)
                    continue
                yield AckableMessage(data=data, ack=partial(self._ack, message))

    async def _ack(self, message: MessageExt) -> None:
        try:
            await self.in_flight.ack(message)
        except GantryError as e:
            log.warning("can't acknowledge a completed task, %s is redelivered: %s", message.place, e)
