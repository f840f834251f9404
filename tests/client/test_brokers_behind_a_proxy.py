"""Clients of a proxy, where two brokers have the same address. Each request names its broker."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import pytest
from inbox import Inbox
from running_proxy import running_proxy
from wait_until import until

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.protocol.message import Message, MessageExt, MessageQueue
from gantrymq.testing.embedded import EmbeddedCluster

QUEUES_OF_BROKER = 2
BODIES = [b"%d" % n for n in range(12)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """Starts a cluster with short retry delays."""
    with EmbeddedCluster(2, message_delay_level=" ".join(["1s"] * 18)) as cluster:
        yield cluster


@pytest.fixture
async def here(cluster: EmbeddedCluster) -> AsyncIterator[str]:
    """Yields the proxy's address."""
    async with running_proxy(cluster.name_server) as proxy:
        yield proxy.remoting_address


@pytest.fixture
async def topic(cluster: EmbeddedCluster, request: pytest.FixtureRequest) -> str:
    """Creates a topic with two queues on each broker."""
    async with AdminClient(cluster.name_server) as admin:
        name = "".join(char if char.isalnum() else "_" for char in request.node.name)
        await admin.ensure_topic(name, queues=QUEUES_OF_BROKER)
        return name


async def send_to_all(here: str, topic: str) -> dict[MessageQueue, list[bytes]]:
    """Sends BODIES, evenly distributed over the queues."""
    async with Producer(here, "producers") as producer:
        queues = await producer.queues(topic)
        assert Counter(queue.broker_name for queue in queues) == {"broker-a": 2, "broker-b": 2}
        sent: dict[MessageQueue, list[bytes]] = {queue: [] for queue in queues}
        for n, body in enumerate(BODIES):
            queue = queues[n % len(queues)]
            await producer.send(Message(topic, body), queue=queue)
            sent[queue].append(body)
        return sent


async def test_a_lite_pull_consumer(here: str, topic: str) -> None:
    before_ms = int(time.time() * 1000)
    sent = await send_to_all(here, topic)
    found: dict[MessageQueue, list[bytes]] = {queue: [] for queue in sent}
    async with LitePullConsumer(here, f"{topic}_readers") as consumer:
        await consumer.assign(sent)
        for queue in sent:
            await consumer.seek_to_begin(queue)
        while sum(map(len, found.values())) < len(BODIES):
            for message in await consumer.poll():
                found[MessageQueue(topic, message.broker_name, message.queue_id)].append(message.body)
        await consumer.commit()
        assert found == sent
        assert {queue: await consumer.end_offset(queue) for queue in sent} == dict.fromkeys(sent, 3)
        assert {queue: await consumer.offset_for_time(queue, before_ms) for queue in sent} == dict.fromkeys(sent, 0)
        assert {queue: await consumer.committed(queue) for queue in sent} == dict.fromkeys(sent, 3)


async def test_what_failed_comes_back_from_its_broker(here: str, topic: str) -> None:
    """Covers the pull, the send back, and the pull of the retry topic, which exists on both brokers."""
    sent = await send_to_all(here, topic)
    inbox, failed = Inbox(), set[bytes]()

    async def fail_once(message: MessageExt) -> None:
        if message.body not in failed:
            failed.add(message.body)
            raise RuntimeError("for the first time")
        await inbox(message)

    consumer = PushConsumer(here, f"{topic}_group", fail_once, start_from="earliest")
    consumer.subscribe(topic)
    async with consumer:
        await until(lambda: len(inbox.messages) >= len(BODIES))
    assert inbox.bodies == sorted(BODIES)
    # Each message is sent back to its own broker.
    brokers = {body: queue.broker_name for queue, bodies in sent.items() for body in bodies}
    assert {message.body: message.broker_name for message in inbox.messages} == brokers


async def test_queues_in_order_are_locked_at_their_broker(here: str, topic: str) -> None:
    sent = await send_to_all(here, topic)
    inbox = Inbox()
    consumer = PushConsumer(here, f"{topic}_group", inbox, orderly=True, start_from="earliest")
    consumer.subscribe(topic)
    async with consumer:
        await until(lambda: len(inbox.messages) >= len(BODIES))
    found: dict[MessageQueue, list[bytes]] = {queue: [] for queue in sent}
    for message in inbox.messages:
        found[MessageQueue(topic, message.broker_name, message.queue_id)].append(message.body)
    assert found == sent


async def test_a_simple_consumer(here: str, topic: str) -> None:
    """Pops messages, changes the invisible duration of one, and acknowledges all."""
    await send_to_all(here, topic)
    found: Counter[bytes] = Counter()
    consumer = SimpleConsumer(here, f"{topic}_group", start_from="earliest")
    consumer.subscribe(topic)
    async with consumer:

        async def all_came() -> bool:
            for message in await consumer.receive(max_messages=32, invisible_time=60, timeout=0.1):
                if not found[message.body]:
                    await consumer.change_invisible_time(message, 1)
                else:
                    await consumer.ack(message)
                found[message.body] += 1
            return all(found[body] >= 2 for body in BODIES)

        await until(all_came)
    assert found.keys() == set(BODIES)
