"""Lite topics by gRPC: LITE_PUSH_CONSUMER and LITE_SIMPLE_CONSUMER, SyncLiteSubscription, messages of lite topics."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import grpc
import pytest
from proxy_support import Rpc, make_topic, message, new_topic
from running_proxy import running_proxy
from wait_until import until

from gantrymq.client.admin.client import AdminClient
from gantrymq.errors import NoRouteInfo
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.proxy.proxy import Proxy
from gantrymq.proxy.times import to_duration
from gantrymq.proxy.v2 import definition_pb2 as pb
from gantrymq.proxy.v2 import service_pb2 as rpc_pb
from gantrymq.testing.embedded import EmbeddedCluster

FIRST = pb.OffsetOption(policy=pb.OffsetOption.MIN)


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(enable_lmq=True) as cluster:
        yield cluster


class LiteConsumer:
    """A consumer of lite topics of Apache's kind."""

    def __init__(self, rpc: Rpc, topic: str, group: str, client_type: pb.ClientType = pb.LITE_PUSH_CONSUMER) -> None:
        self.rpc = rpc
        self.topic = topic
        self.group = group
        self.client_type = client_type
        self.telemetry = rpc.Telemetry(timeout=60)

    async def start(self) -> pb.Settings:
        """Sends the settings. Returns those of the proxy."""
        settings = pb.Settings(
            client_type=self.client_type,
            user_agent=pb.UA(),
            subscription=pb.Subscription(
                group=pb.Resource(name=self.group),
                subscriptions=[
                    pb.SubscriptionEntry(
                        topic=pb.Resource(name=self.topic), expression=pb.FilterExpression(type=pb.TAG, expression="*")
                    )
                ],
            ),
        )
        await self.telemetry.write(rpc_pb.TelemetryCommand(settings=settings))
        command = await self.telemetry.read()
        assert command.status.code == pb.OK, command
        return command.settings

    async def sync(self, action: pb.LiteSubscriptionAction, *lite_topics: str, **options: Any) -> pb.Status:
        request = rpc_pb.SyncLiteSubscriptionRequest(
            action=action,
            topic=pb.Resource(name=self.topic),
            group=pb.Resource(name=self.group),
            lite_topic_set=lite_topics,
            **options,
        )
        return (await self.rpc.SyncLiteSubscription(request)).status

    async def receive(self, *, poll_ms: int = 5000, auto_renew: bool = True) -> list[pb.Message]:
        found = await self._responses(poll_ms, auto_renew)
        return [response.message for response in found if response.HasField("message")]

    async def status_of_receive(self) -> int:
        [code] = [one.status.code for one in await self._responses(100, True) if one.HasField("status")]
        return code

    async def _responses(self, poll_ms: int, auto_renew: bool) -> list[rpc_pb.ReceiveMessageResponse]:
        request = rpc_pb.ReceiveMessageRequest(
            group=pb.Resource(name=self.group),
            message_queue=pb.MessageQueue(topic=pb.Resource(name=self.topic)),
            filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
            batch_size=32,
            auto_renew=auto_renew,
            invisible_duration=to_duration(30_000),
            long_polling_timeout=to_duration(poll_ms),
        )
        return [response async for response in self.rpc.ReceiveMessage(request, timeout=30)]

    async def ack(self, *messages: pb.Message, names: bool = True) -> pb.Status:
        entries = [
            rpc_pb.AckMessageEntry(
                message_id=one.system_properties.message_id,
                receipt_handle=one.system_properties.receipt_handle,
                lite_topic=one.system_properties.lite_topic if names else None,
            )
            for one in messages
        ]
        request = rpc_pb.AckMessageRequest(
            group=pb.Resource(name=self.group), topic=pb.Resource(name=self.topic), entries=entries
        )
        return (await self.rpc.AckMessage(request)).status

    async def change(self, one: pb.Message, invisible_ms: int) -> rpc_pb.ChangeInvisibleDurationResponse:
        return await self.rpc.ChangeInvisibleDuration(
            rpc_pb.ChangeInvisibleDurationRequest(
                group=pb.Resource(name=self.group),
                topic=pb.Resource(name=self.topic),
                receipt_handle=one.system_properties.receipt_handle,
                message_id=one.system_properties.message_id,
                invisible_duration=to_duration(invisible_ms),
                lite_topic=one.system_properties.lite_topic,
            )
        )


async def new_lite(admin: AdminClient, **group_attributes: str) -> tuple[str, str]:
    """Creates a parent topic and its group. Returns their names."""
    topic = await new_topic(admin, "LITE")
    group = f"group_{uuid.uuid4().hex[:12]}"
    attributes = {"+lite.bind.topic": topic, **{f"+{name}": value for name, value in group_attributes.items()}}
    await admin.create_group(SubscriptionGroupConfig(group, attributes=attributes), cluster="DefaultCluster")
    return topic, group


@pytest.fixture
async def consumer(admin: AdminClient, rpc: Rpc) -> LiteConsumer:
    topic, group = await new_lite(admin)
    return LiteConsumer(rpc, topic, group)


async def send(rpc: Rpc, topic: str, lite_topic: str, body: bytes) -> rpc_pb.SendMessageResponse:
    one = message(topic, body, message_type=pb.LITE, lite_topic=lite_topic)
    return await rpc.SendMessage(rpc_pb.SendMessageRequest(messages=[one]))


@pytest.mark.parametrize("client_type", [pb.LITE_PUSH_CONSUMER, pb.LITE_SIMPLE_CONSUMER])
async def test_messages_of_lite_topics(consumer: LiteConsumer, rpc: Rpc, client_type: pb.ClientType) -> None:
    consumer.client_type = client_type
    settings = await consumer.start()
    assert settings.subscription.lite_subscription_quota == 2000
    assert settings.subscription.max_lite_topic_size == 64
    assert (await consumer.sync(pb.PARTIAL_ADD, "one", "two", offset_option=FIRST)).code == pb.OK
    for name in ("one", "one", "two", "three"):
        assert (await send(rpc, consumer.topic, name, name.encode())).status.code == pb.OK
    found: list[pb.Message] = []
    while len(found) < 3:
        found += await consumer.receive()
    assert sorted(one.body for one in found) == [b"one", b"one", b"two"]
    for one in found:
        assert one.system_properties.lite_topic == one.body.decode()
        assert one.system_properties.message_type == pb.LITE
        assert one.system_properties.delivery_attempt == 1
        assert "__LITE_TOPIC" not in one.user_properties
    # The handle of this proxy has the lite topic itself.
    assert (await consumer.ack(found[0], names=False)).code == pb.OK
    assert (await consumer.ack(*found[1:])).code == pb.OK
    assert await consumer.receive(poll_ms=100) == []
    assert (await consumer.sync(pb.PARTIAL_REMOVE, "one")).code == pb.OK
    assert (await send(rpc, consumer.topic, "one", b"later")).status.code == pb.OK
    assert await consumer.receive(poll_ms=100) == []
    assert (await consumer.sync(pb.COMPLETE_ADD, "one", "two")).code == pb.OK
    assert [one.body for one in await consumer.receive()] == [b"later"]


async def test_a_client_without_settings_gets_no_messages(consumer: LiteConsumer, rpc: Rpc) -> None:
    """A pop of the parent topic would return messages of lite topics without a subscription."""
    await send(rpc, consumer.topic, "one", b"1")
    code = await consumer.status_of_receive()
    assert code == pb.UNRECOGNIZED_CLIENT_TYPE
    other = LiteConsumer(rpc, consumer.topic, consumer.group, pb.SIMPLE_CONSUMER)
    await other.start()
    assert await other.status_of_receive() == pb.UNRECOGNIZED_CLIENT_TYPE


async def test_messages_come_again(consumer: LiteConsumer, rpc: Rpc) -> None:
    await consumer.start()
    await consumer.sync(pb.PARTIAL_ADD, "one", offset_option=FIRST)
    await send(rpc, consumer.topic, "one", b"1")
    [one] = await consumer.receive()
    response = await consumer.change(one, 100)
    assert response.status.code == pb.OK, response
    [again] = await consumer.receive()
    assert again.system_properties.delivery_attempt == 2
    assert (await consumer.ack(again)).code == pb.OK
    # The first handle is of an earlier delivery.
    assert (await consumer.ack(one)).code in (pb.OK, pb.INVALID_RECEIPT_HANDLE)


async def test_all_attempts_used(admin: AdminClient, rpc: Rpc) -> None:
    topic, group = await new_lite(admin)
    await admin.create_group(SubscriptionGroupConfig(group, retry_max_times=1, attributes={}), cluster="DefaultCluster")
    consumer = LiteConsumer(rpc, topic, group)
    await consumer.start()
    await consumer.sync(pb.PARTIAL_ADD, "one", offset_option=FIRST)
    await send(rpc, topic, "one", b"1")
    await send(rpc, topic, "one", b"2")
    found = await consumer.receive()
    if len(found) == 1:
        await consumer.ack(*found)
        found = await consumer.receive()
    forward = rpc_pb.ForwardMessageToDeadLetterQueueRequest(
        group=pb.Resource(name=group),
        topic=pb.Resource(name=topic),
        receipt_handle=found[-1].system_properties.receipt_handle,
        message_id=found[-1].system_properties.message_id,
        delivery_attempt=2,
        max_delivery_attempts=2,
        lite_topic="one",
    )
    assert (await rpc.ForwardMessageToDeadLetterQueue(forward)).status.code == pb.OK

    async def is_there() -> bool:
        with suppress(NoRouteInfo):
            stats = await admin.topic_stats(f"%DLQ%{group}")
            return any(offsets.max_offset for offsets in stats.offset_table.values())
        return False

    await until(is_there)


async def test_an_exclusive_group_notifies_the_client(admin: AdminClient, proxy: Proxy) -> None:
    topic, group = await new_lite(admin, **{"lite.sub.model": "Exclusive"})
    async with grpc.aio.insecure_channel(proxy.address) as one, grpc.aio.insecure_channel(proxy.address) as two:
        first = LiteConsumer(Rpc(one, "client-a"), topic, group)
        second = LiteConsumer(Rpc(two, "client-b"), topic, group)
        await first.start()
        await second.start()
        assert (await first.sync(pb.PARTIAL_ADD, "mine")).code == pb.OK
        assert (await second.sync(pb.PARTIAL_ADD, "mine")).code == pb.OK
        command = await first.telemetry.read()
        assert command.notify_unsubscribe_lite_command.lite_topic == "mine"


async def test_a_client_that_leaves_has_no_lite_topics(
    consumer: LiteConsumer, cluster: EmbeddedCluster, admin: AdminClient
) -> None:
    async def count() -> int:
        info = await admin.lite_client_info(cluster.brokers[0], consumer.topic, consumer.group, consumer.rpc.client_id)
        return info.lite_topic_count

    await consumer.start()
    await consumer.sync(pb.PARTIAL_ADD, "one", "two")
    assert await count() == 2
    request = rpc_pb.NotifyClientTerminationRequest(group=pb.Resource(name=consumer.group))
    assert (await consumer.rpc.NotifyClientTermination(request)).status.code == pb.OK

    async def is_gone() -> bool:
        return await count() == -1

    await until(is_gone)


async def test_one_assignment_for_each_broker(admin: AdminClient, rpc: Rpc) -> None:
    topic = await new_topic(admin, "LITE", queues=4)
    group = f"group_{uuid.uuid4().hex[:12]}"
    config = SubscriptionGroupConfig(group, consume_message_orderly=True, attributes={"+lite.bind.topic": topic})
    await admin.create_group(config, cluster="DefaultCluster")
    endpoints = pb.Endpoints(scheme=pb.IPv4, addresses=[pb.Address(host="127.0.0.1", port=1)])
    asked = {"topic": pb.Resource(name=topic), "endpoints": endpoints}
    response = await rpc.QueryAssignment(rpc_pb.QueryAssignmentRequest(group=pb.Resource(name=group), **asked))
    assert [one.message_queue.id for one in response.assignments] == [-1]
    route = await rpc.QueryRoute(rpc_pb.QueryRouteRequest(**asked))
    assert {tuple(queue.accept_message_types) for queue in route.message_queues} == {(pb.LITE,)}


async def test_what_is_refused(admin: AdminClient, consumer: LiteConsumer, rpc: Rpc) -> None:
    assert (await consumer.sync(pb.PARTIAL_ADD, "one")).code == pb.UNRECOGNIZED_CLIENT_TYPE
    await consumer.start()
    for name in ("", " ", "o$e", "a b", "x" * 65):
        assert (await consumer.sync(pb.PARTIAL_ADD, name)).code == pb.ILLEGAL_LITE_TOPIC
        if name:
            assert (await send(rpc, consumer.topic, name, b"x")).status.code == pb.ILLEGAL_LITE_TOPIC
    status = await consumer.sync(pb.PARTIAL_ADD, *(f"lite-{number}" for number in range(2001)))
    assert status.code == pb.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    status = await consumer.sync(pb.PARTIAL_ADD, *(f"lite-{number}" for number in range(10_001)))
    assert status.code == pb.BAD_REQUEST
    # A message without a lite topic, and a lite topic of an ordinary topic.
    plain = rpc_pb.SendMessageRequest(messages=[message(consumer.topic)])
    assert (await rpc.SendMessage(plain)).status.code == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    normal = await new_topic(admin)
    assert (await send(rpc, normal, "one", b"x")).status.code == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    several = [message(consumer.topic, message_type=pb.LITE, lite_topic="one") for _ in range(2)]
    assert (await rpc.SendMessage(rpc_pb.SendMessageRequest(messages=several))).status.code == pb.BAD_REQUEST


async def test_lite_topics_have_the_same_broker_with_each_proxy(admin: AdminClient, rpc: Rpc) -> None:
    """Messages of a lite topic are in one queue, selected by its name."""
    topic = f"proxy_lite_{uuid.uuid4().hex[:12]}"
    await make_topic(admin, TopicConfig(topic, 8, 8, attributes={"+message.type": "LITE"}))
    for number in range(8):
        for name in ("a", "b"):
            assert (await send(rpc, topic, name, b"%d" % number)).status.code == pb.OK
    stats = await admin.topic_stats(topic)
    used = [offsets.max_offset for offsets in stats.offset_table.values() if offsets.max_offset]
    assert sorted(used) in ([8, 8], [16])


async def test_brokers_without_lite_topics() -> None:
    with EmbeddedCluster() as cluster:
        async with running_proxy(cluster.name_server) as proxy, grpc.aio.insecure_channel(proxy.address) as channel:
            async with AdminClient(cluster.name_server) as admin:
                topic = await new_topic(admin)
            consumer = LiteConsumer(Rpc(channel, "client"), topic, "group")
            await consumer.start()
            assert (await consumer.sync(pb.PARTIAL_ADD, "one")).code == pb.NOT_IMPLEMENTED
