"""A broker for taskiq: tasks are messages of a topic, workers SimpleConsumers of a group. The extra `gantrymq[taskiq]`.

    broker = RocketMQBroker("127.0.0.1:9876")

    @broker.task
    async def add(a: int, b: int) -> int: ...

A task that dies with its worker comes again after `invisible_ms`. One that raises is done, as with all of taskiq's
brokers: its middlewares try again. The label `delay` has a task begin so many seconds later.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from functools import partial
from typing import Unpack

from gantrymq.client.consuming.consume_from_where import ConsumeFromWhere
from gantrymq.client.popping.simple_consumer import AWAIT_MS, INVISIBLE_MS, SimpleConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import ClientClosed, GantryError, NoRouteInfo
from gantrymq.extras import missing
from gantrymq.integrations.held import ConnectionOptions, HeldMessages
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.heartbeat import CONSUME_FROM_FIRST_OFFSET
from gantrymq.protocol.message import Message, MessageExt

try:
    from taskiq import AckableMessage, AsyncBroker, BrokerMessage
except ImportError as e:
    raise missing("taskiq", "gantrymq.integrations.taskiq", e) from e

log = peer_log(__name__)

#: The label that delays a task, in seconds; taskiq's brokers for AMQP name it so.
DELAY = "delay"
#: How long a worker waits before it asks again after an error, s.
_PAUSE_S = 1.0


class RocketMQBroker(AsyncBroker):
    """Sends tasks to `topic`; workers share them as `group`, each task held for `invisible_ms` and renewed.

    `receive_size` tasks (1 to 32) are fetched with one request; more of them are for short tasks, since those that one
    worker has fetched no other gets.
    """

    def __init__(
        self,
        name_servers: str,
        topic: str = "taskiq",
        group: str = "taskiq",
        *,
        invisible_ms: int = INVISIBLE_MS,
        receive_size: int = 1,
        consume_from_where: ConsumeFromWhere = CONSUME_FROM_FIRST_OFFSET,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        super().__init__()
        self._topic = topic
        self._receive_size = receive_size
        self._producer = Producer(name_servers, f"{group}-clients", **options)
        self._consumer = SimpleConsumer(name_servers, group, consume_from_where=consume_from_where, **options)
        self._consumer.subscribe(topic)
        self._held = HeldMessages(self._consumer, invisible_ms)
        self._stack = AsyncExitStack()

    async def startup(self) -> None:
        """Connects; a worker's consumer joins its group."""
        await self._stack.enter_async_context(self._producer)
        if self.is_worker_process:
            await self._stack.enter_async_context(self._consumer)
            self._held.start()
            self._stack.push_async_callback(self._held.stop)
        await super().startup()

    async def shutdown(self) -> None:
        """Disconnects."""
        await super().shutdown()
        await self._stack.aclose()

    async def kick(self, message: BrokerMessage) -> None:
        """Sends a task; its id is the message's key. Raises what `Producer.send` raises."""
        delay_s = message.labels.get(DELAY)
        await self._producer.send(
            Message(
                self._topic,
                message.message,
                keys=[message.task_id],
                delay_ms=None if delay_s is None else round(float(delay_s) * 1000),
            )
        )

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """The tasks for this worker."""
        while True:
            try:
                messages = await self._held.receive(self._receive_size, AWAIT_MS)
            except ClientClosed:
                return
            except GantryError as e:
                # A topic that isn't there yet has no tasks.
                level = log.debug if isinstance(e, NoRouteInfo) else log.warning
                level("no tasks of topic %s: %s", self._topic, e)
                await asyncio.sleep(_PAUSE_S)
                continue
            for message in messages:
                try:
                    data = message.body
                except GantryError as e:
                    log.error("no task: %s", e)
                    self._held.drop(message)
                    continue
                yield AckableMessage(data=data, ack=partial(self._ack, message))

    async def _ack(self, message: MessageExt) -> None:
        try:
            await self._held.ack(message)
        except GantryError as e:
            log.warning("a task is done, and comes again: %s: %s", message.place, e)
