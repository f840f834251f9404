"""Client ids and receipt handles belong to their owner: user, connection, group and topic."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest
from access_support import SigningRpc, allow, cluster_with_users, proxy_with_users
from calls import RecordedCall
from proxy_support import members_of, message, new_topic
from wait_until import until

from gantrymq.client.admin.auth import acl_of
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.credentials import Credentials
from gantrymq.proxy.clients import LOST_S, Clients
from gantrymq.proxy.proxy import Proxy
from gantrymq.proxy.statuses import ProxyError
from gantrymq.proxy.times import to_duration
from gantrymq.proxy.v2 import definition_pb2 as pb
from gantrymq.proxy.v2 import service_pb2 as rpc_pb
from gantrymq.testing.embedded import EmbeddedCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with cluster_with_users() as cluster:
        yield cluster


@pytest.fixture
async def admin(cluster: EmbeddedCluster) -> AsyncIterator[AdminClient]:
    async with AdminClient(cluster.name_server, credentials=Credentials("root", "root-secret")) as admin:
        yield admin


@pytest.fixture
async def proxy(cluster: EmbeddedCluster) -> AsyncIterator[Proxy]:
    async with proxy_with_users(cluster) as proxy:
        yield proxy


class Consumer:
    """A user with a topic and a group of its own."""

    def __init__(self, channel: grpc.aio.Channel, topic: str) -> None:
        name = uuid.uuid4().hex[:8]
        self.user, self.group, self.topic = f"user{name}", f"group{name}", topic
        self.rpc = SigningRpc(channel, self.user, f"{self.user}-secret", f"host@1@0@{name}")

    @property
    def settings(self) -> rpc_pb.TelemetryCommand:
        entry = pb.SubscriptionEntry(
            topic=pb.Resource(name=self.topic), expression=pb.FilterExpression(type=pb.TAG, expression="*")
        )
        subscription = pb.Subscription(group=pb.Resource(name=self.group), subscriptions=[entry])
        return rpc_pb.TelemetryCommand(settings=pb.Settings(client_type=pb.PUSH_CONSUMER, subscription=subscription))

    def as_client(self, client_id: str) -> SigningRpc:
        """Returns a stub for this user's calls with another client's id."""
        return SigningRpc(self.rpc.channel, self.user, f"{self.user}-secret", client_id)

    async def listen(self) -> Any:
        stream = self.rpc.Telemetry(timeout=None)
        await stream.write(self.settings)
        assert (await stream.read()).status.code == pb.OK
        return stream

    async def receive(self) -> pb.Message | None:
        request = rpc_pb.ReceiveMessageRequest(
            group=pb.Resource(name=self.group),
            message_queue=pb.MessageQueue(topic=pb.Resource(name=self.topic)),
            filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
            batch_size=1,
            long_polling_timeout=to_duration(5_000),
            invisible_duration=to_duration(60_000),
        )
        answers = [answer async for answer in self.rpc.ReceiveMessage(request)]
        return next((answer.message for answer in answers if answer.HasField("message")), None)

    async def ack(self, received: pb.Message, handle: str = "") -> pb.Status:
        entry = rpc_pb.AckMessageEntry(
            message_id=received.system_properties.message_id,
            receipt_handle=handle or received.system_properties.receipt_handle,
        )
        response = await self.rpc.AckMessage(
            rpc_pb.AckMessageRequest(
                group=pb.Resource(name=self.group), topic=pb.Resource(name=self.topic), entries=[entry]
            )
        )
        status: pb.Status = response.entries[0].status
        return status


@pytest.fixture
async def channel(proxy: Proxy) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(proxy.address) as channel:
        yield channel


async def new_consumer(channel: grpc.aio.Channel, admin: AdminClient, cluster: EmbeddedCluster) -> Consumer:
    consumer = Consumer(channel, await new_topic(admin, queues=1))
    await allow(
        admin,
        cluster,
        consumer.user,
        (f"Topic:{consumer.topic}", "All"),
        (f"Group:{consumer.group}", "Sub"),
    )
    return consumer


async def test_another_user_has_no_say_in_a_client(
    channel: grpc.aio.Channel, admin: AdminClient, cluster: EmbeddedCluster, proxy: Proxy
) -> None:
    victim, attacker = [await new_consumer(channel, admin, cluster) for _ in range(2)]
    stream = await victim.listen()
    as_victim = attacker.as_client(victim.rpc.client_id)
    group = pb.Resource(name=attacker.group)
    refused = await as_victim.NotifyClientTermination(rpc_pb.NotifyClientTerminationRequest(group=group))
    assert refused.status.code == pb.FORBIDDEN
    refused = await as_victim.Heartbeat(rpc_pb.HeartbeatRequest(group=group, client_type=pb.PUSH_CONSUMER))
    assert refused.status.code == pb.FORBIDDEN
    taking = as_victim.Telemetry()
    await taking.write(attacker.settings)
    with pytest.raises(grpc.aio.AioRpcError, match="belongs to another user"):
        await taking.read()
    client = proxy.clients.get(victim.rpc.client_id)
    assert client is not None
    assert (client.group, client.user) == (victim.group, victim.user)
    stream.cancel()


async def test_another_user_answers_no_question(
    channel: grpc.aio.Channel, admin: AdminClient, cluster: EmbeddedCluster
) -> None:
    victim, attacker = [await new_consumer(channel, admin, cluster) for _ in range(2)]
    stream = await victim.listen()

    async def is_there() -> bool:
        return await members_of(admin, victim.group) == [victim.rpc.client_id]

    await until(is_there)
    asking = asyncio.ensure_future(admin.consumer_running_info(victim.group, victim.rpc.client_id, jstack=True))
    nonce = (await stream.read()).print_thread_stack_trace_command.nonce

    def stacks(text: str) -> rpc_pb.TelemetryCommand:
        trace = rpc_pb.ThreadStackTrace(nonce=nonce, thread_stack_trace=text)
        return rpc_pb.TelemetryCommand(status=pb.Status(code=pb.OK), thread_stack_trace=trace)

    forging = attacker.as_client(victim.rpc.client_id).Telemetry()
    await forging.write(stacks("forged"))
    with pytest.raises(grpc.aio.AioRpcError):
        await forging.read()
    # Another stream of the same user, which is not the client's own, is also rejected.
    other = victim.rpc.Telemetry()
    await other.write(stacks("by another stream"))
    await other.done_writing()
    assert await other.read() is grpc.aio.EOF
    await stream.write(stacks("true"))
    assert (await asking).jstack == "true"
    stream.cancel()


async def test_the_same_user_comes_back_and_goes_with_its_group_alone(
    channel: grpc.aio.Channel, admin: AdminClient, cluster: EmbeddedCluster, proxy: Proxy
) -> None:
    consumer = await new_consumer(channel, admin, cluster)
    first = await consumer.listen()
    async with grpc.aio.insecure_channel(
        proxy.address, options=[("grpc.use_local_subchannel_pool", 1)]
    ) as other_channel:
        again = Consumer(other_channel, consumer.topic)
        again.user, again.group = consumer.user, consumer.group
        again.rpc = SigningRpc(other_channel, consumer.user, consumer.rpc.secret, consumer.rpc.client_id)
        second = await again.listen()
        wrong = rpc_pb.NotifyClientTerminationRequest(group=pb.Resource(name="another"))
        await allow_group(admin, cluster, consumer.user, "another")
        assert (await again.rpc.NotifyClientTermination(wrong)).status.code in (pb.FORBIDDEN, pb.UNAUTHORIZED)
        assert proxy.clients.get(consumer.rpc.client_id) is not None
        right = rpc_pb.NotifyClientTerminationRequest(group=pb.Resource(name=consumer.group))
        assert (await again.rpc.NotifyClientTermination(right)).status.code == pb.OK
        assert proxy.clients.get(consumer.rpc.client_id) is None
        second.cancel()
    first.cancel()


async def allow_group(admin: AdminClient, cluster: EmbeddedCluster, user: str, group: str) -> None:
    await admin.create_acl(cluster.brokers, acl_of(f"User:{user}", [f"Group:{group}"], ["Sub"], [], "Allow"))


async def test_a_receipt_handle_is_its_receivers(
    channel: grpc.aio.Channel, admin: AdminClient, cluster: EmbeddedCluster
) -> None:
    receiver, other = [await new_consumer(channel, admin, cluster) for _ in range(2)]
    for consumer in (receiver, other):
        sent = await consumer.rpc.SendMessage(rpc_pb.SendMessageRequest(messages=[message(consumer.topic)]))
        assert sent.status.code == pb.OK
    received, foreign = await receive_soon(receiver), await receive_soon(other)
    handle = received.system_properties.receipt_handle
    for wrong in (
        foreign.system_properties.receipt_handle,
        " ".join(handle.split(" ")[:9]),
        " ".join([*handle.split(" ")[:8], "123456", handle.split(" ")[9]]),
        handle + "x",
    ):
        assert (await receiver.ack(received, wrong)).code == pb.INVALID_RECEIPT_HANDLE
    # The commit log offset of another topic's message must not move this message to the group's dead-letter queue.
    words = handle.split(" ")
    words[8] = foreign.system_properties.receipt_handle.split(" ")[8]
    forwarded = await receiver.rpc.ForwardMessageToDeadLetterQueue(
        rpc_pb.ForwardMessageToDeadLetterQueueRequest(
            group=pb.Resource(name=receiver.group),
            topic=pb.Resource(name=receiver.topic),
            message_id=received.system_properties.message_id,
            receipt_handle=" ".join(words),
        )
    )
    assert forwarded.status.code == pb.INVALID_RECEIPT_HANDLE
    changed = await receiver.rpc.ChangeInvisibleDuration(
        rpc_pb.ChangeInvisibleDurationRequest(
            group=pb.Resource(name=receiver.group),
            topic=pb.Resource(name=receiver.topic),
            message_id=received.system_properties.message_id,
            receipt_handle=handle,
            invisible_duration=to_duration(30_000),
        )
    )
    assert changed.status.code == pb.OK
    assert (await receiver.ack(received, changed.receipt_handle)).code == pb.OK


async def receive_soon(consumer: Consumer) -> pb.Message:
    """Receives one message. A new group begins at the end of the queues, so messages are sent until one arrives."""
    found: list[pb.Message] = []

    async def is_received() -> bool:
        received = await consumer.receive()
        if received is None:
            await consumer.rpc.SendMessage(rpc_pb.SendMessageRequest(messages=[message(consumer.topic)]))
        else:
            found.append(received)
        return bool(found)

    await until(is_received, timeout_s=60)
    return found[0]


# -- the table --------------------------------------------------------------------------------------------------------


def settings(group: str = "") -> pb.Settings:
    if not group:
        return pb.Settings(client_type=pb.PRODUCER, publishing=pb.Publishing(topics=[pb.Resource(name="t")]))
    return pb.Settings(client_type=pb.PUSH_CONSUMER, subscription=pb.Subscription(group=pb.Resource(name=group)))


def test_without_users_an_id_belongs_to_its_connection() -> None:
    clients = Clients()
    own = RecordedCall(connection="one")
    clients.register(own, settings("g"), 0.0)
    stranger = RecordedCall(connection="two")
    with pytest.raises(ProxyError, match="belongs to another connection") as error:
        clients.register(stranger, settings("g"), 1.0)
    assert error.value.code == pb.FORBIDDEN
    # On its own connection, the client may register again, and join another group with its own stream.
    again = RecordedCall(connection="one")
    clients.register(again, settings("g"), 2.0)
    clients.register(again, settings("h"), 3.0)
    # The server notices the lost connection later than the client.
    again.silent_s = LOST_S
    clients.register(stranger, settings("h"), 4.0)
    clients.stream_over(stranger)
    clients.register(own, settings("h"), 5.0)


def test_a_user_takes_an_id_along_but_not_into_another_group() -> None:
    clients = Clients()
    clients.register(RecordedCall(user="alice", connection="one"), settings("g"), 0.0)
    for call, wanted in (
        (RecordedCall(user="bob", connection="one"), settings("g")),
        (RecordedCall(user="alice", connection="two"), settings("h")),
        (RecordedCall(user="alice", connection="two"), settings()),
    ):
        with pytest.raises(ProxyError, match="belongs to"):
            clients.register(call, wanted, 1.0)
    newest = RecordedCall(user="alice", connection="two")
    assert clients.register(newest, settings("g"), 2.0).telemetry is newest
