"""Helpers of the tests of a mirror: they run it, and create, send and read on both sides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.producing.producer import Producer
from gantrymq.mirror import Mirror, MirrorOptions, Progress
from gantrymq.mirror.cluster import Cluster
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.message import Message, MessageExt, MessageQueue
from gantrymq.testing.embedded import EmbeddedCluster
from gantrymq.testing.processes import ProcessCluster

Side = EmbeddedCluster | ProcessCluster


def name_server(side: Side) -> str:
    return side.name_server if isinstance(side, EmbeddedCluster) else side.namesrv_addr


@asynccontextmanager
async def both(source: Side, target: Side, timeout: float = 5.0) -> AsyncIterator[tuple[Cluster, Cluster]]:
    async with (
        AdminClient(name_server(source), timeout=timeout) as reader,
        AdminClient(name_server(target), timeout=timeout) as writer,
    ):
        yield Cluster(reader), Cluster(writer)


async def mirror_once(source: Side, target: Side, *topics: str, **options: Any) -> Progress:
    async with both(source, target) as sides:
        return await Mirror(*sides, MirrorOptions(topics=topics, once=True, **options)).run(asyncio.Event())


async def create(cluster: Side, topic: str, queues: int = 4, **attributes: str) -> None:
    config = TopicConfig(topic, queues, queues, attributes={f"+{name}": value for name, value in attributes.items()})
    async with AdminClient(name_server(cluster)) as admin:
        for broker in (await Cluster(admin).masters()).values():
            await admin.create_topic(config, broker=broker)
        await admin.ensure_topic(topic)


async def send(cluster: Side, topic: str, bodies: Sequence[bytes], key: str | None = None) -> None:
    async with Producer(name_server(cluster), "test") as producer:
        for body in bodies:
            await producer.send(Message(topic, body, sharding_key=key))


async def messages(cluster: Side, topic: str) -> list[MessageExt]:
    found: list[MessageExt] = []
    async with AdminClient(name_server(cluster)) as admin:
        side = Cluster(admin)
        for queue in await side.queues(topic):
            begin, end = await side.bounds(queue)
            found += [message async for message in admin.messages_of_queue(queue, begin, end)]
    return found


def bodies(found: Sequence[MessageExt]) -> list[bytes]:
    return sorted(message.body for message in found)


async def commit(cluster: Side, group: str, offsets: dict[MessageQueue, int]) -> None:
    async with AdminClient(name_server(cluster)) as admin:
        side = Cluster(admin)
        for queue, offset in offsets.items():
            address = await side.address(queue)
            await admin.create_group(SubscriptionGroupConfig(group), broker=address)
            await side.commit_offset(queue, group, offset)


async def committed(cluster: Side, group: str, queue: MessageQueue) -> int | None:
    async with AdminClient(name_server(cluster)) as admin:
        return await Cluster(admin).committed_offset(queue, group)


async def send_to(cluster: Side, queue: MessageQueue, count: int) -> None:
    async with Producer(name_server(cluster), "test") as producer:
        for number in range(count):
            await producer.send(Message(queue.topic, b"%d" % number), queue=queue)
