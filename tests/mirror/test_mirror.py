"""Tests of Mirror between two embedded clusters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from wait_until import until

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import ClientError, GantryError
from gantrymq.mirror import Mirror, MirrorOptions, Progress
from gantrymq.mirror.cluster import Cluster
from gantrymq.mirror.origin import ORIGIN, PATH
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.message import Message, MessageExt, MessageQueue
from gantrymq.testing.embedded import EmbeddedCluster


@pytest.fixture
def source() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=2, broker_cluster_name="east") as cluster:
        yield cluster


@pytest.fixture
def target() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(broker_cluster_name="west") as cluster:
        yield cluster


@asynccontextmanager
async def both(source: EmbeddedCluster, target: EmbeddedCluster) -> AsyncIterator[tuple[Cluster, Cluster]]:
    async with AdminClient(source.name_server) as reader, AdminClient(target.name_server) as writer:
        yield Cluster(reader), Cluster(writer)


async def mirror_once(source: EmbeddedCluster, target: EmbeddedCluster, *topics: str, **options: Any) -> Progress:
    async with both(source, target) as sides:
        return await Mirror(*sides, MirrorOptions(topics=topics, once=True, **options)).run(asyncio.Event())


async def create(cluster: EmbeddedCluster, topic: str, queues: int = 4, **attributes: str) -> None:
    config = TopicConfig(topic, queues, queues, attributes={f"+{name}": value for name, value in attributes.items()})
    async with AdminClient(cluster.name_server) as admin:
        for broker in cluster.brokers:
            await admin.create_topic(config, broker=broker)
        await admin.ensure_topic(topic)


async def send(cluster: EmbeddedCluster, topic: str, bodies: Sequence[bytes], key: str | None = None) -> None:
    async with Producer(cluster.name_server, "test") as producer:
        for body in bodies:
            await producer.send(Message(topic, body, sharding_key=key))


async def messages(cluster: EmbeddedCluster, topic: str) -> list[MessageExt]:
    found: list[MessageExt] = []
    async with AdminClient(cluster.name_server) as admin:
        side = Cluster(admin)
        for queue in await side.queues(topic):
            begin, end = await side.bounds(queue)
            found += [message async for message in admin.messages_of_queue(queue, begin, end)]
    return found


def bodies(found: Sequence[MessageExt]) -> list[bytes]:
    return sorted(message.body for message in found)


async def test_copies_messages_and_topics(source: EmbeddedCluster, target: EmbeddedCluster) -> None:
    await create(source, "orders", 3)
    async with Producer(source.name_server, "test", compress_over=1000) as producer:
        sent = await producer.send(
            Message("orders", b"one", tags="new", keys="k-1", properties={"colour": "red"}, delay_level=1)
        )
        await producer.send(Message("orders", b"x" * 5000))
    async with AdminClient(source.name_server) as admin:

        async def both_are_stored() -> bool:
            table = (await admin.topic_stats("orders")).offset_table
            return sum(offset.max_offset for offset in table.values()) == 2

        # The delayed message is copied after its delivery.
        await until(both_are_stored)
    progress = await mirror_once(source, target, "ord*")
    assert (progress.copied, progress.lag, progress.failed) == (2, 0, [])
    copies = {message.body: message for message in await messages(target, "orders")}
    assert copies.keys() == {b"one", b"x" * 5000}
    copy = copies[b"one"]
    assert (copy.tags, copy.keys, copy.properties["colour"], copy.msg_id) == ("new", ["k-1"], "red", sent.msg_id)
    assert copy.properties[ORIGIN].startswith("east/broker-")
    assert copy.properties[PATH] == "east"
    async with AdminClient(target.name_server) as admin:
        config = await admin.topic_config(target.brokers[0], "orders")
        assert (config.read_queue_nums, config.write_queue_nums) == (3, 3)


async def test_keeps_queues_and_their_order(source: EmbeddedCluster, target: EmbeddedCluster) -> None:
    await create(source, "ordered")
    for key in ("a", "b", "c", "d"):
        await send(source, "ordered", [f"{key}{i:03}".encode() for i in range(20)], key)
    await mirror_once(source, target, "ordered")
    found = await messages(target, "ordered")
    assert len(found) == 80
    for start in (b"a", b"b", b"c", b"d"):
        of_key = [message for message in found if message.body.startswith(start)]
        assert [message.body for message in of_key] == sorted(message.body for message in of_key)
        assert len({message.queue_id for message in of_key}) == 1
    sent = {message.body: message.queue_id for message in await messages(source, "ordered")}
    assert {message.body: message.queue_id for message in found} == sent


async def test_a_second_run_copies_only_new_messages(source: EmbeddedCluster, target: EmbeddedCluster) -> None:
    await create(source, "orders")
    await send(source, "orders", [b"%d" % i for i in range(20)])
    assert (await mirror_once(source, target, "orders")).copied == 20
    await send(source, "orders", [b"new"])
    assert (await mirror_once(source, target, "orders")).copied == 1
    assert len(await messages(target, "orders")) == 21


async def test_without_its_state_it_finds_its_copies(source: EmbeddedCluster, target: EmbeddedCluster) -> None:
    await create(source, "orders")
    await send(source, "orders", [b"%d" % i for i in range(20)])
    await mirror_once(source, target, "orders")
    # Messages of other producers come after the copies.
    await send(target, "orders", [b"other %d" % i for i in range(20)])
    assert (await mirror_once(source, target, "orders", state_topic="another_state")).copied == 0
    assert len(await messages(target, "orders")) == 40


async def test_a_killed_mirror_continues_without_loss(source: EmbeddedCluster, target: EmbeddedCluster) -> None:
    await create(source, "orders")
    await send(source, "orders", [b"%04d" % i for i in range(100)])
    async with both(source, target) as sides:
        # The rate makes the kill come in the middle.
        mirror = Mirror(*sides, MirrorOptions(topics=["orders"], rate=25))
        task = asyncio.create_task(mirror.run(asyncio.Event()))
        await until(lambda: mirror.progress.copied > 0)
        # Closed connections, as after a kill: no state can be stored.
        await sides[1].admin.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert mirror.progress.copied < 100
    await mirror_once(source, target, "orders")
    # Each message of the source has one copy. A retry of the producer may have stored a message twice at the source.
    sent = await messages(source, "orders")
    copies = await messages(target, "orders")
    assert len(copies) == len({copy.properties[ORIGIN] for copy in copies}) == len(sent)
    assert bodies(copies) == bodies(sent)


async def test_continuous_mirror_stops_and_stores_positions(source: EmbeddedCluster, target: EmbeddedCluster) -> None:
    await create(source, "orders")
    stop = asyncio.Event()
    async with both(source, target) as sides:
        mirror = Mirror(*sides, MirrorOptions(topics=["orders"]))
        task = asyncio.create_task(mirror.run(stop))
        await send(source, "orders", [b"one", b"two"])
        await until(lambda: mirror.progress.copied == 2)
        stop.set()
        assert (await task).copied == 2
    assert (await mirror_once(source, target, "orders")).copied == 0


async def test_both_directions_make_no_loop(source: EmbeddedCluster, target: EmbeddedCluster) -> None:
    await create(source, "orders")
    await send(source, "orders", [b"east"])
    await mirror_once(source, target, "orders")
    await send(target, "orders", [b"west"])
    back = await mirror_once(target, source, "orders")
    assert (back.copied, back.left_out) == (1, 1)
    forth = await mirror_once(source, target, "orders")
    assert (forth.copied, forth.left_out) == (0, 1)
    assert bodies(await messages(source, "orders")) == bodies(await messages(target, "orders")) == [b"east", b"west"]


async def test_renames_topics(source: EmbeddedCluster, target: EmbeddedCluster) -> None:
    await create(source, "orders")
    await send(source, "orders", [b"one"])
    await mirror_once(source, target, "orders", rename="east-")
    assert bodies(await messages(target, "east-orders")) == [b"one"]


async def test_a_refused_message_is_named_and_other_queues_continue(source: EmbeddedCluster) -> None:
    with EmbeddedCluster(broker_cluster_name="west", max_message_size=10_000) as target:
        await create(source, "orders", 1)
        await create(source, "small", 1)
        async with Producer(source.name_server, "test", compress_over=1 << 20) as producer:
            for body in (b"first", b"x" * 20_000, b"last"):
                await producer.send(Message("orders", body), queue=MessageQueue("orders", "broker-a", 0))
            await producer.send(Message("orders", b"other"), queue=MessageQueue("orders", "broker-b", 0))
            await producer.send(Message("small", b"small"))
        progress = await mirror_once(source, target, "orders", "small")
        assert bodies(await messages(target, "orders")) == [b"first", b"other"]
        assert bodies(await messages(target, "small")) == [b"small"]
        [failed] = progress.failed
        assert failed[:3] == ("orders", "broker-a", 0)
        assert "offset 1 of queue 0 of orders on broker-a" in failed.error


async def test_system_topics_match_no_pattern(source: EmbeddedCluster, target: EmbeddedCluster) -> None:
    with pytest.raises(ClientError, match="no topic of the source"):
        await mirror_once(source, target, "*_SYS_*", "%*")


async def test_one_cluster_is_refused(source: EmbeddedCluster) -> None:
    with pytest.raises(ClientError, match="the same cluster"):
        await mirror_once(source, source, "orders")


async def commit(cluster: EmbeddedCluster, group: str, offsets: dict[MessageQueue, int]) -> None:
    async with AdminClient(cluster.name_server) as admin:
        side = Cluster(admin)
        for queue, offset in offsets.items():
            address = await side.address(queue)
            await admin.create_group(SubscriptionGroupConfig(group), broker=address)
            await side.commit_offset(queue, group, offset)


async def committed(cluster: EmbeddedCluster, group: str, queue: MessageQueue) -> int | None:
    async with AdminClient(cluster.name_server) as admin:
        return await Cluster(admin).committed_offset(queue, group)


async def send_to(cluster: EmbeddedCluster, queue: MessageQueue, count: int) -> None:
    async with Producer(cluster.name_server, "test") as producer:
        for number in range(count):
            await producer.send(Message(queue.topic, b"%d" % number), queue=queue)


QUEUE = MessageQueue("orders", "broker-a", 0)


@pytest.fixture
def single() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(broker_cluster_name="east") as cluster:
        yield cluster


async def test_group_offsets_are_translated(single: EmbeddedCluster, target: EmbeddedCluster) -> None:
    await create(single, "orders", 1)
    await create(target, "orders", 1)
    # Other messages on the target make offsets of source and target differ.
    await send_to(target, QUEUE, 5)
    await send_to(single, QUEUE, 50)
    await commit(single, "billing", {QUEUE: 20})
    await commit(single, "other", {QUEUE: 20})
    progress = await mirror_once(single, target, "orders", groups=["bill*"])
    assert (progress.groups, progress.failed_groups) == (1, [])
    assert await committed(target, "billing", QUEUE) == 25
    assert await committed(target, "other", QUEUE) is None


async def test_offsets_of_an_earlier_run_are_found_in_the_target(
    single: EmbeddedCluster, target: EmbeddedCluster
) -> None:
    await create(single, "orders", 1)
    await create(target, "orders", 1)
    await send_to(single, QUEUE, 30)
    await mirror_once(single, target, "orders")
    # The next copies come after messages of another producer.
    await send_to(target, QUEUE, 100)
    await send_to(single, QUEUE, 30)
    await commit(single, "billing", {QUEUE: 12})
    # The second run has no map of the first run's copies.
    await mirror_once(single, target, "orders", groups=["*"])
    assert await committed(target, "billing", QUEUE) == 12
    await commit(single, "billing", {QUEUE: 60})
    await mirror_once(single, target, "orders", groups=["*"])
    assert await committed(target, "billing", QUEUE) == 160


async def test_offsets_on_the_target_never_move_back(single: EmbeddedCluster, target: EmbeddedCluster) -> None:
    await create(single, "orders", 1)
    await create(target, "orders", 1)
    await send_to(single, QUEUE, 10)
    await commit(single, "billing", {QUEUE: 3})
    await mirror_once(single, target, "orders")
    await commit(target, "billing", {QUEUE: 8})
    assert (await mirror_once(single, target, "orders", groups=["*"])).groups == 0
    assert await committed(target, "billing", QUEUE) == 8


async def test_a_group_with_a_consumer_on_the_target_is_left_out(
    single: EmbeddedCluster, target: EmbeddedCluster
) -> None:
    await create(single, "orders", 1)
    await create(target, "orders", 1)
    await send_to(single, QUEUE, 10)
    await commit(single, "billing", {QUEUE: 3})
    consumer = LitePullConsumer(target.name_server, "billing", auto_commit=False)
    consumer.subscribe("orders")
    async with consumer, AdminClient(target.name_server) as admin:

        async def is_connected() -> bool:
            with suppress(GantryError):
                return bool((await admin.consumer_connection("billing")).connection_set)
            return False

        await until(is_connected)
        assert (await mirror_once(single, target, "orders", groups=["*"])).groups == 0
    assert await committed(target, "billing", QUEUE) is None
