"""What goes between FastStream and the client: received messages, and commands to publish."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from faststream.message import AckStatus, StreamMessage, decode_message
from faststream.response.publish_type import PublishType
from faststream.response.response import PublishCommand

from gantrymq.codecs.codec import CONTENT_TYPE, MessageOptions
from gantrymq.protocol import properties as names
from gantrymq.protocol.message import Message, MessageExt

#: The property of FastStream's correlation id; RocketMQ's own is for requests and their replies.
CORRELATION_ID = "correlation_id"
TIMEOUT_MS = 3000


class RocketMQMessage(StreamMessage[MessageExt]):
    """A received message; `raw_message` is the client's MessageExt, `headers` are its properties.

    What its handler decides is carried out when the handler has ended: one that was nacked comes again later.
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
        #: Shared by copies of it.
        self._outcomes = outcomes

    async def ack(self) -> None:
        """It is consumed."""
        self._outcomes.append(AckStatus.ACKED)
        await super().ack()

    async def nack(self) -> None:
        """It comes again later, and goes to the dead letters at last."""
        self._outcomes.append(AckStatus.NACKED)
        await super().nack()

    async def reject(self) -> None:
        """It doesn't come again."""
        self._outcomes.append(AckStatus.REJECTED)
        await super().reject()


async def parse(message: MessageExt) -> RocketMQMessage:
    """A message that nothing is to be decided about: a reply."""
    return RocketMQMessage(message, [])


async def decode(message: StreamMessage[Any]) -> Any:
    """The body by its content type, as FastStream does it everywhere."""
    return decode_message(message)


class PublishOptions(MessageOptions, total=False):
    """How a message is published: the arguments of Message, its headers, how long to wait (`timeout_ms`, 3000)."""

    headers: dict[str, str] | None
    correlation_id: str | None
    timeout_ms: int


def message_options(options: PublishOptions) -> MessageOptions:
    """Those of Message among them."""
    found = {name: value for name, value in options.items() if name in MessageOptions.__optional_keys__}
    return cast(MessageOptions, found)


class RocketMQPublishCommand(PublishCommand):
    """What to publish where; `options` are those of Message, `request` is what it replies to."""

    def __init__(
        self,
        body: Any,
        topic: str = "",
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        options: MessageOptions | None = None,
        timeout_ms: int = TIMEOUT_MS,
        publish_type: PublishType = PublishType.PUBLISH,
    ) -> None:
        super().__init__(
            body, destination=topic, headers=headers, correlation_id=correlation_id, _publish_type=publish_type
        )
        self.options = options or MessageOptions()
        self.timeout_ms = timeout_ms
        self.request: MessageExt | None = None

    @classmethod
    def made(
        cls, body: Any, topic: str, options: PublishOptions, publish_type: PublishType, new_id: Callable[[], str]
    ) -> RocketMQPublishCommand:
        """As `publish` and `request` are told; `new_id` makes the correlation id where there is none."""
        return cls(
            body,
            topic,
            headers=options.get("headers"),
            correlation_id=options.get("correlation_id") or new_id(),
            options=message_options(options),
            timeout_ms=options.get("timeout_ms", TIMEOUT_MS),
            publish_type=publish_type,
        )

    @classmethod
    def of(cls, command: PublishCommand) -> RocketMQPublishCommand:
        """A command as handlers' results make them."""
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
        """The message to send. Raises IllegalMessage."""
        message = Message(self.destination, body, **self.options)
        message.properties.update(self.properties(content_type))
        return message

    def properties(self, content_type: str | None) -> dict[str, str]:
        """FastStream's headers as properties."""
        found = {name: str(value) for name, value in self.headers.items()}
        if self.correlation_id:
            found[CORRELATION_ID] = self.correlation_id
        if content_type:
            found[CONTENT_TYPE] = content_type
        return found
