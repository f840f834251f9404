"""Start and close with cancellations: nothing is left behind, and no member stays in the group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cancelling import cancelled_after, in_every_turn
from leftovers import nothing_left
from wait_until import until

from gantrymq.client.admin.base import transport_of
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.lifecycle import Lifecycle
from gantrymq.client.popping.lite_push_consumer import LitePushConsumer
from gantrymq.client.popping.lite_simple_consumer import LiteSimpleConsumer
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.client.producing.transaction_producer import LocalTransactionState, TransactionProducer
from gantrymq.errors import BrokerError, ClientClosed, ClientError
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.message import Message, MessageExt
from gantrymq.testing.processes import ProcessCluster

TOPIC = "lives"
LITE_TOPIC = "sessions"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    """Starts a cluster in its own processes, so that all tasks and sockets of this process belong to the clients."""
    properties = {"enableLmq": "true"}
    with ProcessCluster(tmp_path_factory.mktemp("cluster"), broker_properties=properties) as cluster:
        yield cluster


async def handle(message: MessageExt) -> None:
    """Does nothing."""


def handle_in_thread(message: MessageExt) -> None:
    """Does nothing, in a thread."""


class Listener:
    def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE


def consumer(kind: Callable[..., Any], name_server: str, *args: object, **options: object) -> Any:
    made = kind(name_server, "group", *args, **options)
    made.subscribe(TOPIC)
    return made


KINDS: dict[str, Callable[[str], Any]] = {
    "producer": lambda to: Producer(to, "group"),
    "batching producer": lambda to: Producer(to, "group", linger=0.001, enable_trace=True),
    "transaction producer": lambda to: TransactionProducer(to, "group", Listener()),
    "push": lambda to: consumer(PushConsumer, to, handle, enable_trace=True),
    "push in threads": lambda to: consumer(PushConsumer, to, handle_in_thread, concurrency=3),
    "orderly": lambda to: consumer(PushConsumer, to, handle, orderly=True),
    "shared out by the broker": lambda to: consumer(PushConsumer, to, handle, client_rebalance=False),
    "lite pull": lambda to: consumer(LitePullConsumer, to),
    "simple": lambda to: consumer(SimpleConsumer, to),
    "lite simple": lambda to: LiteSimpleConsumer(to, "lite", LITE_TOPIC),
    "lite push": lambda to: LitePushConsumer(to, "lite", LITE_TOPIC, handle),
}


#: Calls that a closed client rejects.
CALLS: dict[str, Callable[[Any], Awaitable[object]]] = {
    "producer": lambda client: client.send(Message(TOPIC, b"x")),
    "batching producer": lambda client: client.enqueue(Message(TOPIC, b"x")),
    "transaction producer": lambda client: client.send_in_transaction(Message(TOPIC, b"x")),
    "lite pull": lambda client: client.poll(),
    "simple": lambda client: client.receive(),
    "lite simple": lambda client: client.receive(),
    "lite push": lambda client: client.subscribe_lite("one"),
}


async def use(client: Any) -> None:
    """Opens connections and joins the group."""
    match client:
        case TransactionProducer():
            await client.send_in_transaction(Message(TOPIC, b"x"))
        case Producer():
            await client.send(Message(TOPIC, b"x"))
        case LiteSimpleConsumer() | LitePushConsumer():
            await client.subscribe_lite("one")
        case SimpleConsumer():
            await client.receive(timeout=0.001)
        case _:
            await until(lambda: client.assignment)


@pytest.fixture
async def topic(cluster: ProcessCluster) -> None:
    """Creates the topics."""
    async with AdminClient(cluster.namesrv_addr) as admin:
        await admin.ensure_topic(LITE_TOPIC, attributes={"message.type": "LITE"})
        group = SubscriptionGroupConfig("lite", attributes={"+lite.bind.topic": LITE_TOPIC})
        await admin.create_group(group, cluster="DefaultCluster")
    async with Producer(cluster.namesrv_addr, "makers") as producer:
        await producer.send(Message(TOPIC, b"x"))

        async def known() -> bool:
            with suppress(ClientError):
                return bool(await producer.client.routes.refresh(TOPIC))
            return False

        await until(known)


async def members(cluster: ProcessCluster) -> list[str]:
    async with AdminClient(cluster.namesrv_addr) as admin:
        try:
            return await transport_of(admin).api.consumer_ids(cluster.brokers[0].address, "group")
        except BrokerError:
            return []


@pytest.mark.parametrize("kind", KINDS)
async def test_a_start_that_is_cancelled(cluster: ProcessCluster, topic: None, kind: str) -> None:
    async def attempt(turn: int) -> bool:
        async with nothing_left():
            client: Lifecycle = KINDS[kind](cluster.namesrv_addr)
            was_cancelled = await cancelled_after(turn, client.start())
            if was_cancelled:
                # It is closed, and can be started again.
                async with client:
                    pass
            await client.close()
        return was_cancelled

    await in_every_turn(attempt)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_close_that_is_cancelled(cluster: ProcessCluster, topic: None, kind: str) -> None:
    """An incomplete close would leave a member in the group whose queues have no consumer."""

    async def attempt(turn: int) -> bool:
        async with nothing_left():
            client: Lifecycle = KINDS[kind](cluster.namesrv_addr)
            await client.start()
            await use(client)
            was_cancelled = await cancelled_after(turn, client.close())
            if turn % 2:
                # A second close waits for the end. Without it, the close completes in the background.
                await client.close()
                assert not await members(cluster)
        return was_cancelled

    await in_every_turn(attempt)
    assert not await members(cluster)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_block_that_is_left_by_cancellation(cluster: ProcessCluster, topic: None, kind: str) -> None:
    async def live(client: Any) -> None:
        async with client:
            await use(client)

    async def attempt(turn: int) -> bool:
        async with nothing_left():
            return await cancelled_after(turn, live(KINDS[kind](cluster.namesrv_addr)))

    await in_every_turn(attempt)
    assert not await members(cluster)


@pytest.mark.parametrize("kind", KINDS)
async def test_closed_by_several_at_once_and_again(cluster: ProcessCluster, topic: None, kind: str) -> None:
    async with nothing_left():
        client: Lifecycle = KINDS[kind](cluster.namesrv_addr)
        await client.close()
        await client.start()
        with pytest.raises(ClientError, match="already started"):
            await client.start()
        await use(client)
        await asyncio.gather(*(client.close() for _ in range(3)))
        await client.close()
        if kind in CALLS:
            with pytest.raises(ClientClosed):
                await CALLS[kind](client)
        # The client can be started again.
        async with client:
            await use(client)


@pytest.mark.parametrize("kind", KINDS)
async def test_closed_before_it_is_up(cluster: ProcessCluster, topic: None, kind: str) -> None:
    async with nothing_left():
        client: Lifecycle = KINDS[kind](cluster.namesrv_addr)
        await asyncio.gather(client.start(), client.close())
        await client.close()


async def test_what_fails_at_the_start_leaves_nothing(cluster: ProcessCluster, tmp_path: Path) -> None:
    offsets = tmp_path / "offsets"
    offsets.write_text("a file in place of the directory")
    async with nothing_left():
        consumer = LitePullConsumer(cluster.namesrv_addr, "group", broadcasting=True, offset_directory=offsets)
        with pytest.raises(ClientError, match="offsets"):
            await consumer.start()


def test_another_event_loop_is_refused(cluster: ProcessCluster) -> None:
    """Otherwise the producer would store the message and raise RuntimeError."""
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    producer = Producer(cluster.namesrv_addr, "group")
    try:
        first.run_until_complete(producer.start())
        for work in (lambda: producer.send(Message(TOPIC, b"x")), lambda: producer.close()):
            with pytest.raises(ClientError, match="another event loop"):
                second.run_until_complete(work())
        first.run_until_complete(producer.close())
    finally:
        first.close()
        second.close()
