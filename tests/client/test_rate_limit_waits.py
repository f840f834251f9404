"""Clients wait while a rate limit is exceeded, and lose and reorder nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from scripted import ScriptedNameServer, route_over, serving

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.broker_api import BrokerApi
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import BrokerError, RefusalReason, RequestRefused
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.pull import PullMessageRequestHeader
from gantrymq.protocol.headers.send import SendMessageRequestHeaderV2, SendMessageResponseHeader
from gantrymq.protocol.message import Message, MessageExt
from gantrymq.protocol.private_fields import RETRY_AFTER_FIELD
from gantrymq.protocol.refusals import retry_after_ms
from gantrymq.protocol.sys_flag import PULL_SUSPEND
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import Connection
from gantrymq.remoting.listener import ListenOptions
from gantrymq.remoting.server import RemotingServer
from gantrymq.testing.embedded import EmbeddedCluster


class LimitedBroker:
    """Refuses the first `refusals` sends with a time to wait. `bodies` has the bodies of all sends."""

    def __init__(self, name: str, refusals: int = 0, wait_ms: int = 20) -> None:
        self.name = name
        self.refusals = refusals
        self.wait_ms = wait_ms
        self.bodies: list[bytes] = []
        self.stored: list[bytes] = []
        self.server = RemotingServer({RequestCode.SEND_MESSAGE_V2: self._send}, ListenOptions("127.0.0.1"))

    def _send(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        self.bodies.append(request.body)
        if self.refusals:
            self.refusals -= 1
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY, "limited", RefusalReason.RATE_LIMITED, retry_after_ms=self.wait_ms
            )
        self.stored.append(request.body)
        queue_id = request.read_header(SendMessageRequestHeaderV2).queue_id
        header = SendMessageResponseHeader(msg_id="0" * 32, queue_id=queue_id, queue_offset=len(self.stored))
        return RemotingCommand.response(header=header)


@pytest.mark.parametrize("to_one_queue", [False, True])
async def test_a_send_waits_and_is_repeated(to_one_queue: bool) -> None:
    """The waits are no retries: `retry_times` does not limit them."""
    broker = LimitedBroker("broker-a", refusals=7)
    name_server = ScriptedNameServer({})
    async with serving([broker, name_server]):
        name_server.routes["orders"] = route_over({"broker-a": f"127.0.0.1:{broker.server.port}"})
        async with Producer(name_server.address, "producers", retry_times=0) as producer:
            queue = (await producer.queues("orders"))[0] if to_one_queue else None
            began = asyncio.get_running_loop().time()
            await producer.send(Message("orders", b"x"), queue=queue, timeout=20)
            assert asyncio.get_running_loop().time() - began >= 7 * 0.02
    assert (len(broker.bodies), broker.stored) == (8, [b"x"])


@pytest.mark.parametrize("to_one_queue", [False, True])
async def test_a_wait_longer_than_the_timeout_is_an_error_at_once(to_one_queue: bool) -> None:
    broker = LimitedBroker("broker-a", refusals=1, wait_ms=60_000)
    name_server = ScriptedNameServer({})
    async with serving([broker, name_server]):
        name_server.routes["orders"] = route_over({"broker-a": f"127.0.0.1:{broker.server.port}"})
        async with Producer(name_server.address, "producers") as producer:
            queue = (await producer.queues("orders"))[0] if to_one_queue else None
            with pytest.raises(BrokerError) as raised:
                await producer.send(Message("orders", b"x"), queue=queue, timeout=20)
    error = raised.value
    assert (error.code, error.reason, error.retry_after_ms) == (
        ResponseCode.SYSTEM_BUSY,
        RefusalReason.RATE_LIMITED,
        60_000,
    )
    assert (len(broker.bodies), broker.stored) == (1, [])


async def test_another_broker_takes_what_one_refuses() -> None:
    limited, free = LimitedBroker("broker-a", refusals=10**6), LimitedBroker("broker-b")
    name_server = ScriptedNameServer({})
    async with serving([limited, free, name_server]):
        addresses = {one.name: f"127.0.0.1:{one.server.port}" for one in (limited, free)}
        name_server.routes["orders"] = route_over(addresses)
        async with Producer(name_server.address, "producers") as producer:
            for number in range(8):
                await producer.send(Message("orders", b"%d" % number), timeout=20)
    assert (limited.stored, free.stored) == ([], [b"%d" % number for number in range(8)])
    assert limited.bodies


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", 1), ("60000", 60_000), ("0", None), ("-1", None), ("", None), ("1.5", None), ("x", None), ("9" * 11, None)],
)
def test_an_illegal_time_to_wait_is_none(text: str, expected: int | None) -> None:
    response = RemotingCommand.response(ResponseCode.SYSTEM_BUSY, "", fields={RETRY_AFTER_FIELD: text})
    assert retry_after_ms(response) == expected


# -- a real broker ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as cluster:
        yield cluster


async def limit(cluster: EmbeddedCluster, name: str, messages: int) -> None:
    """Creates a topic and a group with this name and this limit."""
    attributes = {"+rate.limit.messages": str(messages)}
    async with AdminClient(cluster.name_server) as admin:
        await admin.create_topic(TopicConfig(name, 1, 1, attributes=attributes), cluster="DefaultCluster")
        await admin.create_group(SubscriptionGroupConfig(name, attributes=attributes), cluster="DefaultCluster")


async def test_ordered_messages_stay_in_order(cluster: EmbeddedCluster, unique: str) -> None:
    """Faster sends and pulls than the limits allow lose, repeat and reorder no message."""
    await limit(cluster, unique, 100)
    sent = [b"%d" % number for number in range(40)]
    received: list[bytes] = []
    all_there = asyncio.Event()

    async def handle(message: MessageExt) -> None:
        received.append(message.body)
        if len(received) == len(sent):
            all_there.set()

    began = asyncio.get_running_loop().time()
    async with Producer(cluster.name_server, "producers") as producer:
        for body in sent:
            await producer.send(Message(unique, body, sharding_key="one"), timeout=60)
    # 100 messages a second, after a burst of 10.
    assert asyncio.get_running_loop().time() - began >= (len(sent) - 12) / 100
    consumer = PushConsumer(cluster.name_server, unique, handle, orderly=True, start_from="earliest")
    consumer.subscribe(unique)
    async with consumer:
        async with asyncio.timeout(60):
            await all_there.wait()
    assert received == sent


async def test_enqueued_messages_are_stored_once(cluster: EmbeddedCluster, unique: str) -> None:
    await limit(cluster, unique, 100)
    async with Producer(cluster.name_server, "producers", linger=0.001, batch_size=200) as producer:
        sends = [await producer.enqueue(Message(unique, b"%d" % number), timeout=60) for number in range(40)]
        await producer.flush()
        offsets = [(await send).queue_offset for send in sends]
    assert sorted(offsets) == list(range(40))


async def test_a_simple_consumer_waits(cluster: EmbeddedCluster, unique: str) -> None:
    await limit(cluster, unique, 100)
    async with Producer(cluster.name_server, "producers") as producer:
        for number in range(30):
            await producer.send(Message(unique, b"%d" % number), timeout=60)
    received: set[bytes] = set()
    consumer = SimpleConsumer(cluster.name_server, unique, start_from="earliest")
    consumer.subscribe(unique)
    async with consumer, asyncio.timeout(60):
        while len(received) < 30:
            for message in await consumer.receive(32, timeout=1):
                received.add(message.body)
                await consumer.ack(message)
    assert received == {b"%d" % number for number in range(30)}


async def test_a_pull_leaves_the_time_for_which_the_broker_may_hold_it() -> None:
    """The waits end early enough, so that a held pull does not time out."""
    timeouts: list[float] = []

    class Refusing(RemotingClient):
        async def invoke(self, address: str, request: RemotingCommand, timeout_ms: int = 3000) -> RemotingCommand:
            timeouts.append(timeout_ms)
            return RemotingCommand.response(ResponseCode.FLOW_CONTROL, "limited", fields={RETRY_AFTER_FIELD: "20"})

    header = PullMessageRequestHeader(
        consumer_group="consumers",
        topic="orders",
        queue_id=0,
        queue_offset=0,
        max_msg_nums=32,
        sys_flag=PULL_SUSPEND,
        commit_offset=0,
        suspend_timeout_millis=15_000,
        sub_version=0,
    )
    with pytest.raises(BrokerError) as raised:
        await BrokerApi(Refusing()).pull("127.0.0.1:1", header, 17_000)
    assert raised.value.retry_after_ms == 20
    # Under load, waits take longer than the demanded time.
    assert 2 <= len(timeouts) <= 51
    assert timeouts[0] == 17_000
    assert timeouts == sorted(set(timeouts), reverse=True)
