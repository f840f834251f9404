"""Subscribing: a PushConsumer whose messages FastStream processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any

from faststream._internal.configs import SubscriberSpecificationConfig, SubscriberUsecaseConfig
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.publisher import PublisherProto
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream.exceptions import FeatureNotSupportedException, StopConsume
from faststream.message import AckStatus, StreamMessage
from faststream.middlewares import AckPolicy
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message as SchemaMessage
from faststream.specification.schema import Operation, SubscriberSpec

from gantrymq.background.tasks import Tasks
from gantrymq.client.consuming.consumer_base import MessageFilter
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.errors import ClientError
from gantrymq.integrations.faststream.messages import RocketMQMessage, decode
from gantrymq.integrations.faststream.publisher import ReplyPublisher, RocketMQBrokerConfig
from gantrymq.protocol.message import MessageExt


@dataclass(kw_only=True)
class RocketMQSubscriberConfig(SubscriberUsecaseConfig):
    """Settings of a subscriber. By default, a message is redelivered if its handler raises, as in RocketMQ."""

    @property
    def ack_policy(self) -> AckPolicy:
        """The policy of the subscriber, or else the policy of the broker."""
        for policy in (self._ack_policy, self._outer_config.ack_policy):
            if policy is not EMPTY:
                return policy
        return AckPolicy.NACK_ON_ERROR


@dataclass(kw_only=True)
class RocketMQSubscriberSpecificationConfig(SubscriberSpecificationConfig):
    """Settings for a subscriber in the AsyncAPI document."""

    topic: str


class RocketMQSubscriberSpecification(
    SubscriberSpecification[RocketMQBrokerConfig, RocketMQSubscriberSpecificationConfig]
):
    """A subscriber's part of the AsyncAPI document. AsyncAPI has no binding for RocketMQ."""

    @property
    def topic(self) -> str:
        """The topic with the prefix of its router."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def channel_labels(self) -> list[str]:
        """Names of the channels: the topic."""
        return [self.topic]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        """Returns the channel."""
        message = SchemaMessage(title=f"{self.name}:Message", payload=resolve_payloads(self.get_payloads()))
        return {
            self.name: SubscriberSpec(
                address=self.topic,
                description=self.description,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }


class RocketMQSubscriber(SubscriberUsecase[MessageExt]):
    """Processes the messages of a topic for a group. `options` are arguments of PushConsumer."""

    def __init__(
        self,
        topic: str,
        group: str,
        message_filter: MessageFilter,
        options: dict[str, Any],
        config: RocketMQSubscriberConfig,
        specification: Any,
        calls: CallsCollection[MessageExt],
    ) -> None:
        config.parser = self._parse
        config.decoder = decode
        super().__init__(config, specification, calls)
        self.group = group
        self._topic = topic
        self._filter = message_filter
        self._options = options
        self._consumer: PushConsumer | None = None
        #: Outcomes of messages in handlers.
        self._outcomes: dict[MessageExt, list[AckStatus]] = {}
        self._stopping = Tasks(f"stopping the subscriber of {topic}")

    @property
    def topic(self) -> str:
        """The topic with the prefix of its router."""
        return f"{self._outer_config.prefix}{self._topic}"

    @property
    def consumer(self) -> PushConsumer | None:
        """The client's consumer while it runs, for health, lag and assignment; else None."""
        return self._consumer

    async def start(self) -> None:
        """Joins the group. Raises the errors of `PushConsumer.start`."""
        await super().start()
        self._post_start()
        if self.calls:
            config: RocketMQBrokerConfig = self._outer_config.broker_config  # type: ignore[attr-defined]
            consumer = PushConsumer(config.name_servers, self.group, self._handle, **self._options, **config.connection)
            consumer.subscribe(self.topic, **self._filter)
            await consumer.start()
            self._consumer = consumer

    async def stop(self) -> None:
        """Leaves the group after running handlers have ended."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            graceful_s = self._outer_config.graceful_timeout
            await (consumer.close() if graceful_s is None else consumer.close(timeout=graceful_s))
        await super().stop()

    async def _handle(self, message: MessageExt) -> None:
        """Processes a message, as handler of the consumer. After an exception, the message is redelivered."""
        outcomes = self._outcomes[message] = []
        try:
            await self.process_message(message)
        except (StopConsume, SystemExit) as e:
            # Runs in another task, because `stop` waits for this handler.
            self._stopping.start(self.stop())
            if isinstance(e, SystemExit) and (app := self._outer_config.context.get("app")):
                app.exit()
            return
        except Exception:
            # FastStream has logged the error.
            if not outcomes or outcomes[0] is AckStatus.NACKED:
                raise
        finally:
            del self._outcomes[message]
        if not outcomes or outcomes[0] is AckStatus.NACKED:
            raise ClientError(f"{message.place} was {'nacked' if outcomes else 'not acknowledged'}: it is redelivered")

    async def _parse(self, message: MessageExt) -> RocketMQMessage:
        return RocketMQMessage(message, self._outcomes.get(message, []))

    def _make_response_publisher(self, message: StreamMessage[MessageExt]) -> Iterable[PublisherProto]:
        return (ReplyPublisher(self._outer_config.producer, message.raw_message),)

    def get_log_context(self, message: StreamMessage[MessageExt] | None) -> dict[str, str]:
        """Returns the fields of each log line."""
        return {"topic": self.topic, "group": self.group, "message_id": getattr(message, "message_id", "")}

    async def get_one(self, *, timeout: float = 5) -> RocketMQMessage | None:
        """Raises FeatureNotSupportedException."""
        raise FeatureNotSupportedException("to ask for messages yourself use gantrymq.LitePullConsumer")

    def __aiter__(self) -> AsyncIterator[RocketMQMessage]:
        """Raises FeatureNotSupportedException."""
        raise FeatureNotSupportedException("to iterate over messages use gantrymq.LitePullConsumer")
