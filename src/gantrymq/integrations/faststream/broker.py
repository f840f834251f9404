"""RocketMQBroker and RocketMQRouter, with which users register their handlers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Unpack

from fast_depends import dependency_provider
from faststream._internal.broker import BrokerUsecase
from faststream._internal.broker.registrator import Registrator
from faststream._internal.configs import PublisherUsecaseConfig
from faststream._internal.constants import EMPTY
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger
from faststream.middlewares import AckPolicy
from faststream.response.publish_type import PublishType
from faststream.specification.schema import BrokerSpec

from gantrymq.client.broker_api import SendResult
from gantrymq.client.consuming.consumer_base import MessageFilter
from gantrymq.client.consuming.push_consumer import CONCURRENCY
from gantrymq.client.consuming.start_position import StartFrom
from gantrymq.client.producing.producer import Producer
from gantrymq.codecs.codec import MessageOptions
from gantrymq.errors import ClientError, GantryError
from gantrymq.integrations.faststream.annotations import DRIVER_ANNOTATIONS
from gantrymq.integrations.faststream.messages import (
    TIMEOUT_S,
    PublishOptions,
    RocketMQMessage,
    RocketMQPublishCommand,
)
from gantrymq.integrations.faststream.publisher import (
    RocketMQBrokerConfig,
    RocketMQProducer,
    RocketMQPublisher,
    RocketMQPublisherSpecification,
    RocketMQPublisherSpecificationConfig,
)
from gantrymq.integrations.faststream.subscriber import (
    RocketMQSubscriber,
    RocketMQSubscriberConfig,
    RocketMQSubscriberSpecification,
    RocketMQSubscriberSpecificationConfig,
)
from gantrymq.integrations.in_flight import ConnectionOptions
from gantrymq.protocol.bodies.heartbeat import CONSUME_FROM_LAST_OFFSET
from gantrymq.protocol.message import MessageExt

PROTOCOL = "rocketmq"


#: Longest message id, in characters: an offset id with an IPv6 address. FastStream's log truncates longer ids.
_MAX_MESSAGE_ID = 56


class _LogParameters(DefaultLoggerStorage):
    """FastStream's logger with topic and group in each line."""

    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Does nothing: columns have no fixed width."""

    def set_level(self, level: int) -> None:
        self.logger_log_level = level

    def get_logger(self, *, context: ContextRepo) -> Any:
        if (known := self._get_logger_ref()) is not None:
            return known
        logger = get_broker_logger(
            name=PROTOCOL,
            default_context={"topic": "", "group": ""},
            message_id_ln=_MAX_MESSAGE_ID,
            fmt="%(asctime)s %(levelname)-8s - %(topic)s | %(group)s | %(message_id)s - %(message)s",
            context=context,
            log_level=self.logger_log_level,
        )
        self._logger_ref.add(logger)
        return logger


class _Registrator(Registrator[MessageExt, RocketMQBrokerConfig]):
    """Registers subscribers and publishers of a broker or a router."""

    def subscriber(  # type: ignore[override]
        self,
        topic: str,
        *,
        group: str = "",
        tags: str | None = None,
        sql: str | None = None,
        concurrency: int = CONCURRENCY,
        orderly: bool = False,
        max_reconsume_times: int | None = None,
        start_from: StartFrom = CONSUME_FROM_LAST_OFFSET,
        consumer_options: dict[str, Any] | None = None,
        ack_policy: AckPolicy = EMPTY,
        no_reply: bool = False,
        dependencies: Sequence[Any] = (),
        parser: Any = None,
        decoder: Any = None,
        codec: Any = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
    ) -> RocketMQSubscriber:
        """Calls the decorated handler with a topic's messages, as a member of `group`.

        A group can have only one subscriber. If a handler raises, the message is redelivered, unless `ack_policy` sets
        another behaviour. `tags` and `sql` are arguments of `subscribe`. `concurrency`, `orderly`,
        `max_reconsume_times` and `start_from` are options of PushConsumer, and `consumer_options` contains further
        options. The other arguments are those of all FastStream brokers.
        """
        outer: Any = self.config
        calls = CallsCollection[MessageExt]()
        subscriber = RocketMQSubscriber(
            topic,
            group,
            MessageFilter(tags=tags, sql=sql),
            {
                "concurrency": concurrency,
                "orderly": orderly,
                "max_reconsume_times": max_reconsume_times,
                "start_from": start_from,
                **(consumer_options or {}),
            },
            RocketMQSubscriberConfig(_outer_config=outer, _ack_policy=ack_policy, no_reply=no_reply),
            RocketMQSubscriberSpecification(
                outer,
                RocketMQSubscriberSpecificationConfig(
                    topic=topic, title_=title, description_=description, include_in_schema=include_in_schema
                ),
                calls,
            ),
            calls,
        )
        super().subscriber(subscriber, persistent=persistent)
        return subscriber.add_call(
            parser_=parser or self._parser,
            decoder_=decoder or self._decoder,
            codec_=codec,
            dependencies_=dependencies,
        )

    def publisher(  # type: ignore[override]
        self,
        topic: str,
        *,
        headers: dict[str, str] | None = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any = None,
        include_in_schema: bool = True,
        **options: Unpack[MessageOptions],
    ) -> RocketMQPublisher:
        """Publishes to a topic; as a decorator, publishes the handler's result. `options` are arguments of Message."""
        outer: Any = self.config
        publisher = RocketMQPublisher(
            topic,
            headers or {},
            options,
            PublisherUsecaseConfig(_outer_config=outer),
            RocketMQPublisherSpecification(
                outer,
                RocketMQPublisherSpecificationConfig(
                    topic=topic,
                    schema_=schema,
                    title_=title,
                    description_=description,
                    include_in_schema=include_in_schema,
                ),
            ),
        )
        super().publisher(publisher, persistent=persistent)
        return publisher


class RocketMQRouter(_Registrator):
    """Handlers of a module, for `broker.include_router`. `prefix` is added to their topics."""

    def __init__(
        self,
        prefix: str = "",
        *,
        dependencies: Sequence[Any] = (),
        middlewares: Sequence[Any] = (),
        routers: Iterable[_Registrator] = (),
        include_in_schema: bool | None = None,
    ) -> None:
        config = RocketMQBrokerConfig(
            prefix=prefix,
            broker_dependencies=dependencies,
            broker_middlewares=middlewares,
            include_in_schema=include_in_schema,
        )
        super().__init__(config=config, routers=routers)


class RocketMQBroker(_Registrator, BrokerUsecase[MessageExt, Producer, RocketMQBrokerConfig]):
    """FastStream's broker for RocketMQ.

    The arguments after `connection` are those of all FastStream brokers.

    Args:
        name_servers: NameServers: HOST:PORT, several separated by `;`. Default: 127.0.0.1:9876.
        producer_group: Group of the producer. Default: faststream.
        connection: `namespace`, `ssl_context`, `credentials` and `hooks` of the clients.
    """

    def __init__(
        self,
        name_servers: str = "127.0.0.1:9876",
        *,
        producer_group: str = "faststream",
        connection: ConnectionOptions | None = None,
        graceful_timeout: float | None = 15.0,
        ack_policy: AckPolicy = EMPTY,
        decoder: Any = None,
        parser: Any = None,
        codec: Any = None,
        dependencies: Sequence[Any] = (),
        middlewares: Sequence[Any] = (),
        routers: Iterable[_Registrator] = (),
        description: str | None = None,
        tags: Iterable[Any] = (),
        logger: Any = EMPTY,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        serializer: Any = EMPTY,
        context: ContextRepo | None = None,
    ) -> None:
        connection = connection or ConnectionOptions()
        self._client = Producer(name_servers, producer_group, **connection)
        super().__init__(
            routers=routers,
            config=RocketMQBrokerConfig(
                name_servers=name_servers,
                connection=connection,
                producer=RocketMQProducer(self._client, parser, decoder, codec),
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                broker_dependencies=dependencies,
                logger=make_logger_state(logger=logger, log_level=log_level, default_storage_cls=_LogParameters),
                fd_config=FastDependsConfig(
                    use_fastdepends=apply_types,
                    serializer=serializer,
                    provider=dependency_provider,
                    context=context or ContextRepo(),
                ),
                graceful_timeout=graceful_timeout,
                ack_policy=ack_policy,
                default_driver_annotations=DRIVER_ANNOTATIONS,
                extra_context={"broker": self},
            ),
            specification=BrokerSpec(
                description=description,
                url=[f"{PROTOCOL}://{server}" for server in name_servers.split(";")],
                protocol=PROTOCOL,
                protocol_version="5",
                tags=tags,
                security=None,
            ),
        )

    async def _connect(self) -> Producer:
        await self._client.start()
        producer: Any = self.config.producer
        producer.serializer = self.config.fd_config._serializer
        return self._client

    async def start(self) -> None:
        """Starts the producer and the subscribers. Raises ClientError if a group is missing or has two subscribers."""
        groups: set[str] = set()
        for subscriber in self.subscribers:
            assert isinstance(subscriber, RocketMQSubscriber)
            if not subscriber.group:
                raise ClientError(f"the subscriber of {subscriber.topic} has no group: subscriber(..., group=...)")
            if subscriber.group in groups:
                raise ClientError(
                    f"two subscribers have the group {subscriber.group}: a group has one subscription, all of whose "
                    "messages go to any of its members"
                )
            groups.add(subscriber.group)
        await self.connect()
        await super().start()

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Stops the subscribers, then the producer."""
        await super().stop(exc_type, exc_val, exc_tb)
        if self._connection is not None:
            self._connection = None
            await self._client.close()

    async def ping(self, timeout: float | None = None) -> bool:
        """Returns whether a NameServer responds."""
        from gantrymq.client.admin.client import AdminClient

        config = self.config.broker_config
        options: Any = {key: value for key, value in config.connection.items() if key != "namespace"}
        try:
            async with AdminClient(
                config.name_servers, timeout=TIMEOUT_S if timeout is None else timeout, **options
            ) as admin:
                await admin.topic_list()
        except GantryError:
            return False
        return True

    async def publish(self, message: Any = None, topic: str = "", **options: Unpack[PublishOptions]) -> SendResult:
        """Sends a message and waits until it is stored. `options` are PublishOptions. Raises as `Producer.send`."""
        command = self._command(message, topic, options, PublishType.PUBLISH)
        result: SendResult = await self._basic_publish(command, producer=self.config.producer)
        return result

    async def request(  # type: ignore[override]
        self, message: Any = None, topic: str = "", **options: Unpack[PublishOptions]
    ) -> RocketMQMessage:
        """Sends a message and returns the reply, the result of a subscriber's handler. Raises RequestTimeout."""
        command = self._command(message, topic, options, PublishType.REQUEST)
        reply: RocketMQMessage = await self._basic_request(command, producer=self.config.producer)
        return reply

    def _command(
        self, message: Any, topic: str, options: PublishOptions, publish_type: PublishType
    ) -> RocketMQPublishCommand:
        return RocketMQPublishCommand.made(message, topic, options, publish_type, self.config.id_generator)
