"""TestRocketMQBroker: FastStream's test broker. Subscribers receive published messages at once, without a network.

For tests with a real broker, use the fixture `gantry_cluster`.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from unittest.mock import MagicMock

from faststream._internal.testing.broker import TestBroker, change_producer
from faststream.exceptions import SubscriberNotFound

from gantrymq.client.broker_api import SendResult, SendStatus
from gantrymq.integrations.faststream.broker import RocketMQBroker
from gantrymq.integrations.faststream.messages import RocketMQPublishCommand
from gantrymq.integrations.faststream.publisher import RocketMQProducer, RocketMQPublisher
from gantrymq.integrations.faststream.subscriber import RocketMQSubscriber
from gantrymq.protocol.message import Message, MessageExt, MessageQueue
from gantrymq.protocol.properties import UNIQUE_KEY, encode_properties
from gantrymq.protocol.record import Record
from gantrymq.system.clock import now_ms


class TestRocketMQBroker(TestBroker[RocketMQBroker, Any], broker=RocketMQBroker):
    """Delivers published messages inside this process, with `async with TestRocketMQBroker(broker):`.

    Every subscriber of the topic receives each message. Filters by tags or SQL92 and delays are ignored.
    """

    def create_publisher_fake_subscriber(
        self, broker: RocketMQBroker, publisher: RocketMQPublisher
    ) -> tuple[RocketMQSubscriber, bool]:
        """Returns a subscriber of the publisher's topic, so that tests can inspect it. Creates one if there is none."""
        for subscriber in broker.subscribers:
            assert isinstance(subscriber, RocketMQSubscriber)
            if subscriber.topic == publisher.topic:
                return subscriber, True
        return broker.subscriber(publisher.topic, group="test", persistent=False), False

    @contextmanager
    def _patch_producer(self, broker: RocketMQBroker) -> Generator[None, None, None]:
        config: Any = broker.config.broker_config
        with change_producer(config, _ProducerInMemory(broker)):
            yield

    async def _fake_connect(self, broker: RocketMQBroker, *args: Any, **kwargs: Any) -> Any:
        return MagicMock()


class _ProducerInMemory(RocketMQProducer):
    """Passes published messages to the subscribers of their topic."""

    def __init__(self, broker: RocketMQBroker) -> None:
        config = broker.config.broker_config
        super().__init__(broker._client, config.broker_parser, config.broker_decoder, config.broker_codec)
        self.serializer = config.fd_config._serializer
        self._broker = broker
        self._count = 0

    async def publish(self, cmd: RocketMQPublishCommand) -> SendResult:
        message = await self._received(cmd)
        for subscriber in self._subscribers(cmd.destination):
            await subscriber.process_message(message)
        return SendResult(
            SendStatus.SEND_OK, message.msg_id, message.message_queue, message.queue_offset, message.offset_msg_id
        )

    async def request(self, cmd: RocketMQPublishCommand) -> MessageExt:
        message = await self._received(cmd)
        for subscriber in self._subscribers(cmd.destination):
            answer = await subscriber.process_message(message)
            command = RocketMQPublishCommand(
                answer.body, cmd.destination, headers=answer.headers, correlation_id=answer.correlation_id
            )
            return await self._received(command)
        raise SubscriberNotFound(f"{cmd.destination} has no subscriber")

    def _subscribers(self, topic: str) -> list[RocketMQSubscriber]:
        return [
            subscriber
            for subscriber in self._broker.subscribers
            if isinstance(subscriber, RocketMQSubscriber) and subscriber.topic == topic
        ]

    async def _received(self, cmd: RocketMQPublishCommand) -> MessageExt:
        body, content_type = await self.codec.encode(cmd.body, self.serializer)
        self._count += 1
        return received(cmd.message(body, content_type), self._count - 1)


def received(message: Message, offset: int = 0) -> MessageExt:
    """Returns the message in the form that a consumer receives."""
    properties = encode_properties({UNIQUE_KEY: f"TEST{offset:028X}"} | message.properties)
    now = now_ms()
    record = Record(
        0, 0, message.flag, offset, 0, 0, now, bytes(8), now, bytes(8), 0, 0, 0, message.body,
        message.topic.encode(), properties,
    )  # fmt: skip
    return MessageExt(record, MessageQueue(message.topic, "test", 0).broker_name)
