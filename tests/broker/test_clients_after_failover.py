"""Producers and consumers of every kind follow a broker set to its new master."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from controlled_support import ControlledBrokers, Link, elect
from wait_until import until

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.popping.lite_push_consumer import LitePushConsumer
from gantrymq.client.popping.lite_simple_consumer import LiteSimpleConsumer
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import GantryError
from gantrymq.protocol.bodies.pop import MODE_POP, RequestMode
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.message import Message, MessageExt

TOPIC = "orders"
PUSHES: dict[str, dict[str, Any]] = {
    "push": {},
    "orderly": {"orderly": True},
    "broadcasting": {"broadcasting": True},
    "popping": {"client_rebalance": False},
}
KINDS = (*PUSHES, "lite", "assigned", "simple")
#: Longest delivery gap after a new master acknowledges its first message, in seconds.
GAP_S = 4.0


class Inboxes:
    """Messages received by the consumer of each kind, with timestamps."""

    def __init__(self) -> None:
        self.received: dict[str, dict[bytes, float]] = {kind: {} for kind in KINDS}

    def put(self, kind: str, message: MessageExt) -> None:
        self.received[kind].setdefault(message.body, time.monotonic())

    def have(self, body: bytes) -> bool:
        return all(body in bodies for bodies in self.received.values())

    def lacking(self, body: bytes) -> list[str]:
        return [kind for kind, bodies in self.received.items() if body not in bodies]


async def polling(poll: Callable[[], Awaitable[list[MessageExt]]], kind: str, inboxes: Inboxes) -> None:
    while True:
        try:
            messages = await poll()
        except GantryError:
            await asyncio.sleep(0.1)
            continue
        for message in messages:
            inboxes.put(kind, message)


@asynccontextmanager
async def consumers(name_server: str, directory: Path) -> AsyncIterator[Inboxes]:
    inboxes = Inboxes()
    async with AsyncExitStack() as stack:
        for kind, options in PUSHES.items():

            async def handle(message: MessageExt, kind: str = kind) -> None:
                inboxes.put(kind, message)

            push = PushConsumer(
                name_server,
                kind,
                handle,
                start_from="earliest",
                offset_directory=directory,
                **options,
            )
            push.subscribe(TOPIC)
            await stack.enter_async_context(push)
        lite = LitePullConsumer(name_server, "lite", start_from="earliest")
        assigned = LitePullConsumer(name_server, "assigned", start_from="earliest")
        simple = SimpleConsumer(name_server, "simple")
        for consumer in (lite, simple):
            consumer.subscribe(TOPIC)
        for entered in (lite, assigned, simple):
            await stack.enter_async_context(entered)
        await assigned.assign(await assigned.queues(TOPIC))
        tasks = [
            asyncio.ensure_future(polling(lambda: lite.poll(timeout=1), "lite", inboxes)),
            asyncio.ensure_future(polling(lambda: assigned.poll(timeout=1), "assigned", inboxes)),
            asyncio.ensure_future(polling(lambda: simple.receive(timeout=1), "simple", inboxes)),
        ]
        try:
            yield inboxes
        finally:
            for task in tasks:
                task.cancel()


async def send_until_acknowledged(producer: Producer, body: bytes, lite_topic: str | None = None) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            await producer.send(Message(TOPIC, body, lite_topic=lite_topic), timeout=1)
        except GantryError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)
        else:
            return


@pytest.mark.parametrize("how", ["elected", "stopped", "cut off from its controllers"])
async def test_all_clients_follow_the_master(tmp_path: Path, how: str) -> None:
    async with ControlledBrokers(tmp_path) as replicas:
        await replicas.all_in_sync()
        name_server = replicas.name_server.address
        async with AdminClient(name_server) as admin:
            await until(lambda: _made(admin))
        mode = RequestMode(TOPIC, "popping", MODE_POP)
        request = RemotingCommand.request(RequestCode.SET_MESSAGE_REQUEST_MODE, body=encode_json(mode))
        master = await replicas.master()
        await replicas.remoting.call(f"127.0.0.1:{replicas.brokers[master].port}", request)
        async with (
            Producer(name_server, "producers", retry_times=0) as producer,
            consumers(name_server, tmp_path / "offsets") as inboxes,
        ):
            await send_until_acknowledged(producer, b"before")
            await until(lambda: inboxes.have(b"before"), 40)
            await replicas.caught_up()
            other = next(number for number in replicas.brokers if number != master)
            began = time.monotonic()
            if how == "cut off from its controllers":
                Link(replicas.brokers[master])
            if how != "stopped":
                await elect(replicas, other)
            else:
                await replicas.stop(master)
            await replicas.master(other_than=master)
            elected = time.monotonic()
            await send_until_acknowledged(producer, b"after")
            acknowledged = time.monotonic()
            # The producer must not stay with the deposed master.
            assert acknowledged - elected < GAP_S, acknowledged - began
            await until(lambda: inboxes.have(b"after"), 40)
            late = {kind: bodies[b"after"] - acknowledged for kind, bodies in inboxes.received.items()}
            assert max(late.values()) < GAP_S, late


async def test_lite_consumers_follow_the_master(tmp_path: Path) -> None:
    """The new master has no subscriptions until the consumers repeat them."""
    replicas = ControlledBrokers(tmp_path)
    replicas.store_options["enable_lmq"] = True
    received: dict[str, list[tuple[str | None, bytes]]] = {"simple": [], "push": []}

    async def handle(message: MessageExt) -> None:
        received["push"].append((message.lite_topic, message.body))

    async def receive(consumer: LiteSimpleConsumer) -> None:
        while True:
            try:
                for message in await consumer.receive(timeout=1):
                    received["simple"].append((message.lite_topic, message.body))
                    await consumer.ack(message)
            except GantryError:
                await asyncio.sleep(0.1)

    def have(body: bytes) -> bool:
        return all({("one", body), ("two", body)} <= set(messages) for messages in received.values())

    async with replicas:
        await replicas.all_in_sync()
        name_server = replicas.name_server.address
        async with AdminClient(name_server) as admin:
            await until(lambda: _made(admin, {"message.type": "LITE"}))
            for group in received:
                config = SubscriptionGroupConfig(group, attributes={"+lite.bind.topic": TOPIC})
                await admin.create_group(config, cluster="DefaultCluster")
        # A new master knows only what it has copied.
        await until(
            lambda: all(
                broker.topics.get(TOPIC) is not None and all(map(broker.groups.find, received))
                for broker in replicas.brokers.values()
            ),
            40,
        )
        async with (
            Producer(name_server, "producers", retry_times=0) as producer,
            LiteSimpleConsumer(name_server, "simple", TOPIC) as simple,
            LitePushConsumer(name_server, "push", TOPIC, handle) as push,
        ):
            for consumer in (simple, push):
                for lite_topic in ("one", "two"):
                    await consumer.subscribe_lite(lite_topic)
            receiving = asyncio.create_task(receive(simple))
            for body in (b"before", b"after"):
                for lite_topic in ("one", "two"):
                    await send_until_acknowledged(producer, body, lite_topic)
                await until(lambda body=body: have(body), 40)  # type: ignore[misc]
                if body == b"before":
                    await replicas.caught_up()
                    master = await replicas.master()
                    await elect(replicas, next(number for number in replicas.brokers if number != master))
                    await replicas.master(other_than=master)
            receiving.cancel()


async def _made(admin: AdminClient, attributes: dict[str, str] | None = None) -> bool:
    try:
        await admin.ensure_topic(TOPIC, queues=4, attributes=attributes)
    except GantryError:
        return False
    return True
