"""Conversion between FastStream and the client: received messages, and commands to publish."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

from faststream.message import AckStatus, StreamMessage, decode_message
from faststream.response.publish_type import PublishType
from faststream.response.response import PublishCommand

from gantrymq.codecs.codec import CONTENT_TYPE, MessageOptions
from gantrymq.protocol import properties as names
from gantrymq.protocol.message import Message, MessageExt

#: Property for FastStream's correlation id. RocketMQ's own correlation id is for requests and replies.
CORRELATION_ID = "correlation_id"
#: Default timeout, in seconds.
TIMEOUT_S = 3.0


class RocketMQMessage(StreamMessage[MessageExt]):
    """A received message. `raw_message` is the client's MessageExt, `headers` are its properties.

    The outcome takes effect when the handler has ended. For example, the message is redelivered later after `nack`.
    """

    def __init__(self, raw_message: MessageExt, outcomes: list[AckStatus]) -> None:
        properties = raw_message.properties
        super().__init__(
            raw_message,
            raw_message.body,
            headers=dict(properties),
            reply_to=properties.get(names.MESSAGE_REPLY_TO_CLIENT, ""),
            content_type=properties.get(CONTENT_TYPE),
            correlation_id=properties.get(CORRELATION_ID),
            message_id=raw_message.msg_id,
        )
        #: Shared by copies of this object.
        self._outcomes = outcomes

    async def ack(self) -> None:
        """Acknowledges the message: it is consumed."""
        self._outcomes.append(AckStatus.ACKED)
        await super().ack()

    async def nack(self) -> None:
        """Fails the message: it is redelivered later, and finally becomes a dead-letter message."""
        self._outcomes.append(AckStatus.NACKED)
        await super().nack()

    async def reject(self) -> None:
        """Drops the message: it is not redelivered."""
        self._outcomes.append(AckStatus.REJECTED)
        await super().reject()


async def parse(message: MessageExt) -> RocketMQMessage:
    """Parses a reply, which needs no acknowledgement."""
    return RocketMQMessage(message, [])


async def decode(message: StreamMessage[Any]) -> Any:
    """Decodes the body by its content type, as all FastStream brokers do."""
    return decode_message(message)


class PublishOptions(MessageOptions, total=False):
    """Options of a publication: arguments of Message, headers, correlation id, and a timeout.

    `timeout` is in seconds or a timedelta. Default: 3.0.
    """

    headers: dict[str, str] | None
    correlation_id: str | None
    timeout: float | timedelta


def message_options(options: PublishOptions) -> MessageOptions:
    """Returns the arguments of Message among the options."""
    found = {name: value for name, value in options.items() if name in MessageOptions.__optional_keys__}
    return cast(MessageOptions, found)


class RocketMQPublishCommand(PublishCommand):
    """A message to publish. `options` are arguments of Message. `request` is the message to which it replies."""

    def __init__(
        self,
        body: Any,
        topic: str = "",
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        options: MessageOptions | None = None,
        timeout: float | timedelta = TIMEOUT_S,
        publish_type: PublishType = PublishType.PUBLISH,
    ) -> None:
        super().__init__(
            body, destination=topic, headers=headers, correlation_id=correlation_id, _publish_type=publish_type
        )
        self.options = options or MessageOptions()
        self.timeout = timeout
        self.request: MessageExt | None = None

    @classmethod
    def made(
        cls, body: Any, topic: str, options: PublishOptions, publish_type: PublishType, new_id: Callable[[], str]
    ) -> RocketMQPublishCommand:
        """Creates a command from the arguments of `publish` or `request`. `new_id` returns a missing correlation id."""
        return cls(
            body,
            topic,
            headers=options.get("headers"),
            correlation_id=options.get("correlation_id") or new_id(),
            options=message_options(options),
            timeout=options.get("timeout", TIMEOUT_S),
            publish_type=publish_type,
        )

    @classmethod
    def of(cls, command: PublishCommand) -> RocketMQPublishCommand:
        """Converts a command that FastStream created from a handler's result."""
        if isinstance(command, cls):
            return command
        return cls(
            command.body,
            command.destination,
            headers=command.headers,
            correlation_id=command.correlation_id,
            publish_type=command.publish_type,
        )

    def message(self, body: bytes, content_type: str | None) -> Message:
        """Returns the message to send. Raises IllegalMessage."""
        message = Message(self.destination, body, **self.options)
        message.properties.update(self.properties(content_type))
        return message

    def properties(self, content_type: str | None) -> dict[str, str]:
        """Returns FastStream's headers as properties."""
        found = {name: str(value) for name, value in self.headers.items()}
        if self.correlation_id:
            found[CORRELATION_ID] = self.correlation_id
        if content_type:
            found[CONTENT_TYPE] = content_type
        return found
