"""A handler that stores its messages."""

from __future__ import annotations

import asyncio

from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.protocol.message import Message, MessageExt


class Inbox:
    """A handler that stores its messages."""

    def __init__(self) -> None:
        self.messages: list[MessageExt] = []

    async def __call__(self, message: MessageExt) -> None:
        self.messages.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return sorted(message.body for message in self.messages)


def queues_of(consumer: PushConsumer, topic: str) -> int:
    return sum(queue.topic == topic for queue in consumer.assignment)


async def send_all(producer: Producer, topic: str, bodies: list[bytes], tags: str | None = None) -> None:
    await asyncio.gather(*(producer.send(Message(topic, body, tags=tags)) for body in bodies))
