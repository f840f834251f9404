"""Telemetry through a complete proxy: settings both ways, registration at the brokers, and requests to clients."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import pytest
from proxy_support import Rpc, members_of, message, new_topic, producer_settings
from running_proxy import proxy_config
from wait_until import until

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import BrokerError
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.message import Message
from gantrymq.proxy.proxy import Proxy
from gantrymq.proxy.v2 import definition_pb2 as pb
from gantrymq.proxy.v2 import service_pb2 as rpc_pb
from gantrymq.testing.embedded import EmbeddedCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(transaction_time_out=200, transaction_check_interval=100) as cluster:
        yield cluster


@pytest.fixture
def group() -> str:
    return f"g_{uuid.uuid4().hex[:12]}"


def consumer_settings(
    group: str, *topics: str, client_type: pb.ClientType = pb.PUSH_CONSUMER, expression: str = "*"
) -> rpc_pb.TelemetryCommand:
    entries = [
        pb.SubscriptionEntry(
            topic=pb.Resource(name=topic), expression=pb.FilterExpression(type=pb.TAG, expression=expression)
        )
        for topic in topics
    ]
    subscription = pb.Subscription(group=pb.Resource(name=group), subscriptions=entries)
    return rpc_pb.TelemetryCommand(settings=pb.Settings(client_type=client_type, subscription=subscription))


@asynccontextmanager
async def listening(rpc: Rpc, command: rpc_pb.TelemetryCommand) -> AsyncIterator[Any]:
    """Yields a client's stream after the response to its settings."""
    stream = rpc.Telemetry(timeout=None)
    await stream.write(command)
    answer = await stream.read()
    assert answer.status == pb.Status(code=pb.OK, message="OK")
    assert answer.WhichOneof("command") == "settings"
    try:
        yield stream
    finally:
        stream.cancel()


async def told(rpc: Rpc, command: rpc_pb.TelemetryCommand) -> pb.Settings:
    stream = rpc.Telemetry()
    await stream.write(command)
    answer = await stream.read()
    stream.cancel()
    settings: pb.Settings = answer.settings
    return settings


def another(rpc: Rpc) -> Rpc:
    """Returns another client on the same channel."""
    return Rpc(rpc.channel, f"host@1@0@{uuid.uuid4().hex[:8]}")


# -- settings ---------------------------------------------------------------------------------------------------------


async def test_a_producer_learns_the_proxys_limits(rpc: Rpc, admin: AdminClient) -> None:
    settings = await told(rpc, producer_settings(await new_topic(admin)))
    assert settings.publishing.max_body_size == 4 * 1024 * 1024
    assert settings.publishing.validate_message_type
    assert settings.backoff_policy.max_attempts == 3


async def test_a_consumer_learns_its_groups_policy(rpc: Rpc, admin: AdminClient, group: str) -> None:
    topic = await new_topic(admin)
    config = SubscriptionGroupConfig(group, consume_message_orderly=True, retry_max_times=7)
    await admin.create_group(config, cluster="DefaultCluster")
    settings = await told(rpc, consumer_settings(group, topic))
    assert settings.subscription.fifo
    assert settings.backoff_policy.max_attempts == 8
    assert [entry.topic.name for entry in settings.subscription.subscriptions] == [topic]


async def test_a_client_may_change_its_settings_and_come_back(
    proxy: Proxy, rpc: Rpc, admin: AdminClient, group: str
) -> None:
    one, other = await new_topic(admin), await new_topic(admin)
    async with listening(rpc, consumer_settings(group, one)) as stream:
        await stream.write(consumer_settings(group, one, other))
        await stream.read()
        client = proxy.clients.get(rpc.client_id)
        assert client is not None
        assert client.topics == [one, other]
    await until(lambda: client.telemetry is None)
    assert proxy.clients.consumers(group) == [client]
    async with listening(rpc, consumer_settings(group, one)):
        assert client.telemetry is not None
        assert proxy.clients.consumers(group) == [client]


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (rpc_pb.TelemetryCommand(settings=pb.Settings()), "INVALID_ARGUMENT", "there is no publishing or subscription"),
        (consumer_settings("bad group!"), "INVALID_ARGUMENT", "contains illegal characters"),
        (consumer_settings(""), "INVALID_ARGUMENT", "the specified group is blank"),
        (consumer_settings("g", "rmq_sys_x"), "INVALID_ARGUMENT", "cannot access system topic"),
        (consumer_settings("g", "t", expression="||"), "INVALID_ARGUMENT", "names no tag"),
        (producer_settings("bad topic!"), "INVALID_ARGUMENT", "contains illegal characters"),
        (consumer_settings("g", *("t" * 100 for _ in range(10_000))), "INVALID_ARGUMENT", "at most 1048576 are taken"),
    ],
    ids=["nothing", "group", "no group", "system topic", "expression", "topic", "large"],
)
async def test_settings_that_no_client_has(
    proxy: Proxy, rpc: Rpc, command: rpc_pb.TelemetryCommand, code: str, words: str
) -> None:
    stream = rpc.Telemetry()
    await stream.write(command)
    with pytest.raises(grpc.aio.AioRpcError, match=words) as error:
        await stream.read()
    assert error.value.code().name == code
    assert proxy.clients.get(rpc.client_id) is None


# -- state of the brokers ---------------------------------------------------------------------------------------------


async def test_brokers_see_a_groups_members(proxy: Proxy, rpc: Rpc, admin: AdminClient, group: str) -> None:
    topic = await new_topic(admin)
    clients = sorted([rpc, another(rpc), another(rpc)], key=lambda client: client.client_id)
    ids = [client.client_id for client in clients]
    for client in clients:
        await told(client, consumer_settings(group, topic, expression="a || b"))
    stranger = another(rpc)
    await told(stranger, consumer_settings(f"{group}_2", topic, client_type=pb.SIMPLE_CONSUMER))

    async def are_there() -> bool:
        return await members_of(admin, group) == ids and await members_of(admin, f"{group}_2") == [stranger.client_id]

    await until(are_there)
    connection = await admin.consumer_connection(group)
    assert connection.consume_type == "CONSUME_PASSIVELY"
    assert connection.subscription_table[topic].tags_set == ["a", "b"]
    assert (await admin.consumer_connection(f"{group}_2")).consume_type == "CONSUME_ACTIVELY"
    # The three members of the group use three connections, and the other client shares one of them.
    assert len(proxy.members.lanes) == 3

    left = ids.pop(0)
    await clients[0].NotifyClientTermination(rpc_pb.NotifyClientTerminationRequest(group=pb.Resource(name=group)))

    async def is_gone() -> bool:
        return left not in await members_of(admin, group)

    await until(is_gone)
    assert await members_of(admin, group) == ids
    # Another client can take its position.
    newcomer = another(rpc)
    await told(newcomer, consumer_settings(group, topic))
    ids = sorted([*ids, newcomer.client_id])

    async def is_there() -> bool:
        return await members_of(admin, group) == ids

    await until(is_there)
    assert len(proxy.members.lanes) == 3


async def test_a_consumer_may_go_to_another_group(rpc: Rpc, admin: AdminClient, group: str) -> None:
    topic = await new_topic(admin)
    async with listening(rpc, consumer_settings(group, topic)) as stream:
        await stream.write(consumer_settings(f"{group}_2", topic))
        await stream.read()

        async def has_moved() -> bool:
            return await members_of(admin, f"{group}_2") == [rpc.client_id] and not await members_of(admin, group)

        await until(has_moved)


async def test_brokers_forget_all_when_the_proxy_stops(
    cluster: EmbeddedCluster, admin: AdminClient, group: str
) -> None:
    topic = await new_topic(admin)
    proxy = Proxy(proxy_config(cluster.name_server))
    await proxy.start()
    async with grpc.aio.insecure_channel(proxy.address) as channel:
        rpc = Rpc(channel, "one")
        await told(rpc, consumer_settings(group, topic))

        async def is_there() -> bool:
            return await members_of(admin, group) == ["one"]

        await until(is_there)
        await proxy.stop()
        assert await members_of(admin, group) == []


async def test_brokers_know_producers_by_their_topics(rpc: Rpc, admin: AdminClient, cluster: EmbeddedCluster) -> None:
    topics = [await new_topic(admin) for _ in range(2)]
    for topic in topics:
        await told(another(rpc), producer_settings(topic))

    async def are_known() -> bool:
        known = await admin.producers(cluster.brokers[0])
        return all(len(known.get(topic, [])) == 1 for topic in topics)

    await until(are_known)


# -- requests to clients ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resolution", [pb.COMMIT, pb.ROLLBACK], ids=["commit", "rollback"])
async def test_a_broker_asks_for_an_orphaned_transaction(
    rpc: Rpc, admin: AdminClient, resolution: pb.TransactionResolution
) -> None:
    topic = await new_topic(admin, "TRANSACTION", queues=1)
    async with listening(rpc, producer_settings(topic)) as stream:
        sent = message(topic, b"half", message_type=pb.TRANSACTION, tag="t")
        (entry,) = (await rpc.SendMessage(rpc_pb.SendMessageRequest(messages=[sent]))).entries
        assert entry.status.code == pb.OK
        command = (await stream.read()).recover_orphaned_transaction_command
        assert command.transaction_id == entry.transaction_id
        asked = command.message
        assert (asked.topic.name, asked.body, asked.system_properties.tag) == (topic, b"half", "t")
        assert asked.system_properties.message_id == sent.system_properties.message_id
        assert asked.system_properties.message_type == pb.TRANSACTION
        answer = await rpc.EndTransaction(
            rpc_pb.EndTransactionRequest(
                topic=pb.Resource(name=topic),
                message_id=asked.system_properties.message_id,
                transaction_id=command.transaction_id,
                resolution=resolution,
                source=pb.SOURCE_SERVER_CHECK,
            )
        )
        assert answer.status.code == pb.OK
        # After the end, the broker does not check this half message again. It checks each 100 ms, so some checks may be
        # earlier.
        assert await asked_until_silent(stream) < 5
    queue = pb.MessageQueue(topic=pb.Resource(name=topic), broker=pb.Broker(name="broker-a"))
    end = await rpc.QueryOffset(rpc_pb.QueryOffsetRequest(message_queue=queue, query_offset_policy=pb.END))
    assert (end.status.code, end.offset) == (pb.OK, 1 if resolution == pb.COMMIT else 0)


async def asked_until_silent(stream: Any) -> int:
    """Returns how often a client gets a check until a second passes without one; stops at 5."""
    asked = 0
    with suppress(TimeoutError):
        while asked < 5:
            await asyncio.wait_for(stream.read(), 1.0)
            asked += 1
    return asked


async def test_an_operator_asks_what_a_consumer_does(rpc: Rpc, admin: AdminClient, group: str) -> None:
    topic = await new_topic(admin)
    async with listening(rpc, consumer_settings(group, topic)) as stream:

        async def is_there() -> bool:
            return await members_of(admin, group) == [rpc.client_id]

        await until(is_there)
        info = await admin.consumer_running_info(group, rpc.client_id)
        assert [subscription.topic for subscription in info.subscription_set] == [topic]
        assert info.properties["PROP_CLIENT_VERSION"] == "JAVA 5.0.8"
        assert info.jstack is None

        asking = asyncio.ensure_future(admin.consumer_running_info(group, rpc.client_id, jstack=True))
        nonce = (await stream.read()).print_thread_stack_trace_command.nonce
        # Another client's response must be ignored.
        async with listening(another(rpc), producer_settings(topic)) as other:
            await other.write(stacks("not mine", nonce))
            await stream.write(stacks("main: at rest", nonce))
            await stream.write(stacks("nobody asked", "never"))
            assert (await asking).jstack == "main: at rest"


def stacks(text: str, nonce: str) -> rpc_pb.TelemetryCommand:
    return rpc_pb.TelemetryCommand(
        status=pb.Status(code=pb.OK),
        thread_stack_trace=rpc_pb.ThreadStackTrace(nonce=nonce, thread_stack_trace=text),
    )


@pytest.mark.parametrize(
    ("code", "result"),
    [
        (pb.OK, "CR_SUCCESS"),
        (pb.FAILED_TO_CONSUME_MESSAGE, "CR_LATER"),
        (pb.MESSAGE_CORRUPTED, "CR_RETURN_NULL"),
        (pb.VERIFY_FIFO_MESSAGE_UNSUPPORTED, ResponseCode.NO_PERMISSION),
        (pb.INTERNAL_ERROR, ResponseCode.SYSTEM_ERROR),
        (12345, ResponseCode.SYSTEM_ERROR),
    ],
    ids=str,
)
async def test_an_operator_has_a_consumer_try_a_message(
    rpc: Rpc, admin: AdminClient, cluster: EmbeddedCluster, group: str, code: pb.Code, result: str | ResponseCode
) -> None:
    topic = await new_topic(admin)
    async with Producer(cluster.name_server, "producers") as producer:
        sent = await producer.send(Message(topic, b"try me"))
    async with listening(rpc, consumer_settings(group, topic)) as stream:

        async def is_there() -> bool:
            return await members_of(admin, group) == [rpc.client_id]

        await until(is_there)
        stored = await admin.message_by_offset_id(sent.offset_msg_id, topic)
        trying = asyncio.ensure_future(admin.consume_directly(group, rpc.client_id, stored))
        command = (await stream.read()).verify_message_command
        assert (command.message.body, command.message.topic.name) == (b"try me", topic)
        await stream.write(
            rpc_pb.TelemetryCommand(
                status=pb.Status(code=code), verify_message_result=rpc_pb.VerifyMessageResult(nonce=command.nonce)
            )
        )
        if isinstance(result, str):
            answer = await trying
            assert (answer.consume_result, answer.remark) == (result, "from gRPC client")
        else:
            with pytest.raises(BrokerError) as error:
                await trying
            assert error.value.code == result


async def test_a_client_that_does_not_answer(cluster: EmbeddedCluster, admin: AdminClient, group: str) -> None:
    topic = await new_topic(admin)
    proxy = Proxy(proxy_config(cluster.name_server, grpc_proxy_relay_request_timeout_in_seconds=1))
    await proxy.start()
    async with grpc.aio.insecure_channel(proxy.address) as channel:
        rpc = Rpc(channel, "silent")
        async with listening(rpc, consumer_settings(group, topic)):

            async def is_there() -> bool:
                return await members_of(admin, group) == ["silent"]

            await until(is_there)
            with pytest.raises(BrokerError, match="call remote timeout"):
                await admin.consumer_running_info(group, "silent", jstack=True)
        client = proxy.clients.get("silent")
        assert client is not None
        await until(lambda: client.telemetry is None)
        with pytest.raises(BrokerError, match="doesn't listen just now"):
            await admin.consumer_running_info(group, "silent", jstack=True)
    await proxy.stop()
