"""A cluster, and the parts of a proxy that serve consumers, without the server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from calls import RecordedCall
from wait_until import until

from gantrymq.background.jobs import Jobs
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import NoRouteInfo
from gantrymq.protocol.bodies.route import TopicRouteData
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.message import Message
from gantrymq.proxy.brokers import Brokers
from gantrymq.proxy.clients import Clients
from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.consumer.acks import Acks
from gantrymq.proxy.consumer.handle_signature import HandleSignatures
from gantrymq.proxy.consumer.pop_requests import PopRequests
from gantrymq.proxy.consumer.pull_message import PullMessageActivity
from gantrymq.proxy.consumer.receipt_handle_manager import ReceiptHandleManager
from gantrymq.proxy.consumer.receive_message import ReceiveMessageActivity
from gantrymq.proxy.metadata import Metadata
from gantrymq.proxy.times import to_duration
from gantrymq.proxy.v2 import definition_pb2 as pb
from gantrymq.proxy.v2 import service_pb2 as rpc
from gantrymq.system.clock import monotonic


class Parts:
    """The parts that serve consumers. Tests can change `config`."""

    def __init__(self, name_server: str, config: ProxyConfig) -> None:
        self.config = config
        self.jobs = Jobs()
        self.brokers = Brokers(name_server)
        self.metadata = Metadata(config, self.brokers)
        self.clients = Clients()
        self.requests = PopRequests(self.brokers)
        self.receipt_handles = ReceiptHandleManager(config, self.requests, self.metadata, self.clients, self.jobs)
        signatures = HandleSignatures(config)
        self.receiving = ReceiveMessageActivity(
            config, self.brokers, self.metadata, self.clients, self.requests, self.receipt_handles, signatures
        )
        self.acks = Acks(config, self.requests, self.receipt_handles, signatures)
        self.pulling = PullMessageActivity(config, self.brokers)

    def join(self, group: str, client_id: str = "client-1") -> None:
        """Registers a push consumer with its settings."""
        settings = pb.Settings(
            client_type=pb.PUSH_CONSUMER, subscription=pb.Subscription(group=pb.Resource(name=group))
        )
        self.clients.register(RecordedCall(client_id=client_id), settings, monotonic())

    async def receive(
        self,
        topic: str,
        group: str,
        *,
        call: RecordedCall | None = None,
        expression: str = "*",
        sql: bool = False,
        batch_size: int = 32,
        invisible_ms: int = 30_000,
        auto_renew: bool = False,
        poll_ms: int = 0,
        attempt_id: str | None = None,
        broker: str = "",
    ) -> list[pb.Message]:
        """Returns the messages of one ReceiveMessage. Raises the exceptions of its handler."""
        call = call or RecordedCall("ReceiveMessage")
        request = rpc.ReceiveMessageRequest(
            group=pb.Resource(name=group),
            message_queue=pb.MessageQueue(topic=pb.Resource(name=topic), broker=pb.Broker(name=broker)),
            filter_expression=pb.FilterExpression(type=pb.SQL if sql else pb.TAG, expression=expression),
            batch_size=batch_size,
            auto_renew=auto_renew,
            invisible_duration=to_duration(invisible_ms),
            long_polling_timeout=to_duration(poll_ms),
            attempt_id=attempt_id,
        )
        await self.receiving.receive_message(call, request)
        first, *rest, last = call.written
        assert first.status == pb.Status(code=pb.OK, message="OK")
        assert last.WhichOneof("content") == "delivery_timestamp"
        return [response.message for response in rest]

    async def ack(
        self, topic: str, group: str, *messages: pb.Message, client_id: str = "client-1"
    ) -> rpc.AckMessageResponse:
        request = rpc.AckMessageRequest(
            group=pb.Resource(name=group),
            topic=pb.Resource(name=topic),
            entries=[
                rpc.AckMessageEntry(
                    message_id=message.system_properties.message_id,
                    receipt_handle=message.system_properties.receipt_handle,
                )
                for message in messages
            ],
        )
        return await self.acks.ack_message(RecordedCall("AckMessage", client_id=client_id), request)

    async def change(
        self, topic: str, group: str, message: pb.Message, invisible_ms: int, **more: bool
    ) -> rpc.ChangeInvisibleDurationResponse:
        request = rpc.ChangeInvisibleDurationRequest(
            group=pb.Resource(name=group),
            topic=pb.Resource(name=topic),
            receipt_handle=message.system_properties.receipt_handle,
            message_id=message.system_properties.message_id,
            invisible_duration=to_duration(invisible_ms),
            **more,
        )
        return await self.acks.change_invisible_duration(RecordedCall("ChangeInvisibleDuration"), request)


@asynccontextmanager
async def consuming_parts(name_server: str, config: ProxyConfig | None = None) -> AsyncIterator[Parts]:
    parts = Parts(name_server, config or quick_config())
    parts.brokers.start()
    parts.receipt_handles.start()
    try:
        yield parts
    finally:
        await parts.receiving.stop()
        await parts.receipt_handles.stop()
        await parts.brokers.stop()


def quick_config() -> ProxyConfig:
    """Returns a configuration with short waits for messages."""
    return ProxyConfig(
        min_invisible_time_mills_for_recv=0,
        grpc_client_consumer_min_long_polling_timeout_millis=0,
        renew_schedule_period_millis=50,
    )


async def new_topic(producer: Producer, name: str, queues: int = 1) -> str:
    (broker,) = (await _when_known(producer, "TBW102")).broker_datas
    assert broker.master_address
    await producer.client.api.create_topic(broker.master_address, TopicConfig(name, queues, queues))
    await _when_known(producer, name)
    return name


async def _when_known(producer: Producer, topic: str) -> TopicRouteData:
    async def route() -> TopicRouteData | None:
        try:
            return await producer.client.routes.get(topic)
        except NoRouteInfo:
            return None

    found = await until(route)
    assert found is not None
    return found


async def send(producer: Producer, topic: str, bodies: Sequence[str], **options: str) -> None:
    """Sends the messages in order."""
    for body in bodies:
        await producer.send(Message(topic, body.encode(), **options))  # type: ignore[arg-type]


def bodies(messages: Sequence[pb.Message]) -> list[str]:
    return [message.body.decode() for message in messages]
