"""Publishing: FastStream's producer over the client's producer, publishers of a topic, and replies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Unpack

from faststream._internal.configs import BrokerConfig, PublisherSpecificationConfig, PublisherUsecaseConfig
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.exceptions import FeatureNotSupportedException
from faststream.response.publish_type import PublishType
from faststream.response.response import PublishCommand
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message as SchemaMessage
from faststream.specification.schema import Operation, PublisherSpec

from gantrymq.client.broker_api import SendResult
from gantrymq.client.producing.producer import Producer
from gantrymq.client.producing.request_reply import reply_message
from gantrymq.codecs.codec import MessageOptions
from gantrymq.integrations.faststream.messages import PublishOptions, RocketMQPublishCommand, decode, parse
from gantrymq.integrations.in_flight import ConnectionOptions
from gantrymq.protocol.message import MessageExt


class RocketMQProducer(ProducerProto[RocketMQPublishCommand]):
    """Sends commands. The broker starts `client`."""

    def __init__(self, client: Producer, parser: Any, decoder: Any, codec: Any) -> None:
        self.client = client
        self.serializer: Any = None
        self.codec = codec or DefaultCodec()
        self._parser = ParserComposition(parser, parse)
        self._decoder = ParserComposition(decoder, decode)

    async def publish(self, cmd: RocketMQPublishCommand) -> SendResult:
        """Sends a message. Returns when a broker has stored it. Raises the errors of `Producer.send`."""
        body, content_type = await self.codec.encode(cmd.body, self.serializer)
        if cmd.request is not None:
            reply = reply_message(cmd.request, body)
            reply.properties.update(cmd.properties(content_type))
            return await self.client.send(reply, timeout=cmd.timeout)
        message = cmd.message(body, content_type)
        return await self.client.send(message, timeout=cmd.timeout)

    async def request(self, cmd: RocketMQPublishCommand) -> MessageExt:
        """Sends a request and returns the reply. Raises RequestTimeout without a reply."""
        body, content_type = await self.codec.encode(cmd.body, self.serializer)
        return await self.client.request(cmd.message(body, content_type), timeout=cmd.timeout)

    async def publish_batch(self, cmd: RocketMQPublishCommand) -> Any:
        """Raises FeatureNotSupportedException."""
        raise FeatureNotSupportedException("publish messages one by one; those of a moment share a packet anyway")


@dataclass(kw_only=True)
class RocketMQBrokerConfig(BrokerConfig):
    """Settings of the broker for its subscribers and publishers."""

    name_servers: str = ""
    connection: ConnectionOptions = field(default_factory=ConnectionOptions)


@dataclass(kw_only=True)
class RocketMQPublisherSpecificationConfig(PublisherSpecificationConfig):
    """Settings for a publisher in the AsyncAPI document."""

    topic: str


class RocketMQPublisherSpecification(
    PublisherSpecification[RocketMQBrokerConfig, RocketMQPublisherSpecificationConfig]
):
    """A publisher's part of the AsyncAPI document. AsyncAPI has no binding for RocketMQ."""

    @property
    def topic(self) -> str:
        """The topic with the prefix of its router."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def name(self) -> str:
        """Name of the channel."""
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """Returns the channel."""
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        message = SchemaMessage(title=f"{self.name}:Message", payload=payload)
        return {
            self.name: PublisherSpec(
                address=self.topic,
                description=self.config.description_,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }


class RocketMQPublisher(PublisherUsecase):
    """Publishes to one topic. As a decorator, publishes the handler's result."""

    def __init__(
        self,
        topic: str,
        headers: dict[str, str],
        options: MessageOptions,
        config: PublisherUsecaseConfig,
        specification: Any,
    ) -> None:
        super().__init__(config, specification)
        self._topic = topic
        self._headers = headers
        self._options = options

    @property
    def topic(self) -> str:
        """The topic with the prefix of its router."""
        return f"{self._outer_config.prefix}{self._topic}"

    async def publish(self, message: Any = None, topic: str = "", **options: Unpack[PublishOptions]) -> SendResult:
        """Sends to the topic, or to another topic. `options` are PublishOptions. Returns when the message is stored."""
        command = self._command(message, topic, options, PublishType.PUBLISH)
        result: SendResult = await self._basic_publish(
            command, producer=self._outer_config.producer, _extra_middlewares=()
        )
        return result

    async def request(self, message: Any = None, topic: str = "", **options: Unpack[PublishOptions]) -> Any:
        """Sends a request and returns the reply, a RocketMQMessage. Raises RequestTimeout."""
        command = self._command(message, topic, options, PublishType.REQUEST)
        return await self._basic_request(command, producer=self._outer_config.producer)

    def _command(
        self, message: Any, topic: str, options: PublishOptions, publish_type: PublishType
    ) -> RocketMQPublishCommand:
        headers = self._headers | (options.get("headers") or {})
        merged = PublishOptions(**{**self._options, **options, "headers": headers})
        new_id = self._outer_config.id_generator
        return RocketMQPublishCommand.made(message, topic or self.topic, merged, publish_type, new_id)

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[Any]) -> None:
        command = RocketMQPublishCommand.of(cmd)
        command.destination = command.destination or self.topic
        command.add_headers(self._headers, override=False)
        command.options = MessageOptions(**{**self._options, **command.options})
        await self._basic_publish(command, producer=self._outer_config.producer, _extra_middlewares=_extra_middlewares)


class ReplyPublisher(FakePublisher):
    """Sends the result of a handler as reply to the requester."""

    def __init__(self, producer: ProducerProto[Any], request: MessageExt) -> None:
        super().__init__(producer=producer)
        self._request = request

    def patch_command(self, cmd: PublishCommand) -> RocketMQPublishCommand:
        """Addresses the command to the sender of the request."""
        command = RocketMQPublishCommand.of(super().patch_command(cmd))
        command.request = self._request
        return command
