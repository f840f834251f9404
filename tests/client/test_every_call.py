"""Every public call against servers that do all sorts of things: each ends in its time, with a result or our error.

Afterwards the clients can be closed, in time, and nothing is left of them.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from hostile_proxy import MODES, HostileProxy
from leftovers import nothing_left
from waiting import until

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.client.producing.queue_selector import select_by_hash
from gantrymq.client.producing.transaction_producer import LocalTransactionState, TransactionProducer
from gantrymq.errors import GantryError
from gantrymq.protocol.bodies.heartbeat import CONSUME_FROM_FIRST_OFFSET
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.message import Message, MessageExt
from gantrymq.testing.processes import ProcessCluster

TOPIC = "calls"
#: What a call is given, where it can be.
TIMEOUT_MS = 400
#: Of calls without a timeout of their own: that of each request.
DEFAULT_S = 3.0
MESSAGE = Message(TOPIC, b"body")


class Listener:
    def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE


async def handle(message: MessageExt) -> None:
    _ = message.body


class Clients:
    """One of each kind; all have been in touch with the brokers."""

    def __init__(self, name_server: str) -> None:
        self.producer = Producer(name_server, "producers", enable_trace=True)
        self.batching = Producer(name_server, "batchers", linger_ms=1)
        self.transactions = TransactionProducer(name_server, "payers", Listener())
        first = CONSUME_FROM_FIRST_OFFSET
        self.push = PushConsumer(name_server, "push", handle, consume_from_where=first)
        self.orderly = PushConsumer(name_server, "orderly", handle, orderly=True, consume_from_where=first)
        self.lite = LitePullConsumer(name_server, "lite", auto_commit=False, consume_from_where=first)
        self.simple = SimpleConsumer(name_server, "simple")
        self.admin = AdminClient(name_server, timeout_ms=TIMEOUT_MS)
        for consumer in (self.push, self.orderly, self.lite, self.simple):
            consumer.subscribe(TOPIC)

    @property
    def all(self) -> list[Any]:
        """All but the admin client."""
        return [value for name, value in vars(self).items() if name != "admin"]

    async def begin(self) -> MessageExt:
        """Returns a message that was received and not acknowledged."""
        for client in self.all:
            await client.start()
        await self.producer.send(MESSAGE)
        await self.batching.send(MESSAGE)
        await self.transactions.send_in_transaction(MESSAGE)
        for consumer in (self.push, self.orderly, self.lite):
            await until(lambda consumer=consumer: consumer.assignment)
        await self.admin.cluster_info()

        async def received() -> MessageExt | None:
            messages = await self.simple.receive(await_ms=500)
            return messages[0] if messages else None

        return await until(received)

    def calls(self, received: MessageExt, broker: str) -> dict[str, tuple[Callable[[], Awaitable[object]], float]]:
        """What is called, and the time that it has."""
        own_s = TIMEOUT_MS / 1000
        queue = next(iter(self.lite.assignment))
        producer, lite, simple, admin = self.producer, self.lite, self.simple, self.admin
        return {
            "send": (lambda: producer.send(MESSAGE, TIMEOUT_MS), own_s),
            "send to a new topic": (lambda: producer.send(Message("new", b"x"), TIMEOUT_MS), own_s),
            "send to a queue": (lambda: producer.send(MESSAGE, TIMEOUT_MS, queue), own_s),
            "send_batch": (lambda: producer.send_batch([MESSAGE, MESSAGE], TIMEOUT_MS), own_s),
            "send_with": (lambda: producer.send_with(MESSAGE, select_by_hash, "key", TIMEOUT_MS), own_s),
            "send_oneway": (lambda: producer.send_oneway(MESSAGE), DEFAULT_S),
            "request": (lambda: producer.request(MESSAGE, TIMEOUT_MS), own_s),
            "queues": (lambda: producer.queues("another"), DEFAULT_S),
            "send in a batch": (lambda: self.batching.send(MESSAGE, TIMEOUT_MS), own_s),
            "send_in_transaction": (
                lambda: self.transactions.send_in_transaction(MESSAGE, None, TIMEOUT_MS),
                own_s,
            ),
            "poll": (lambda: lite.poll(TIMEOUT_MS), own_s),
            "commit": (lambda: lite.commit(), DEFAULT_S),
            "commit of offsets": (lambda: lite.commit({queue: 1}), DEFAULT_S),
            "queues of a topic": (lambda: lite.queues("another"), DEFAULT_S),
            "seek_to_begin": (lambda: lite.seek_to_begin(queue), DEFAULT_S),
            "seek_to_time": (lambda: lite.seek_to_time(queue, 1), DEFAULT_S),
            "end_offset": (lambda: lite.end_offset(queue), DEFAULT_S),
            "committed": (lambda: lite.committed(queue), DEFAULT_S),
            "receive": (lambda: simple.receive(await_ms=TIMEOUT_MS), own_s),
            "ack": (lambda: simple.ack(received), DEFAULT_S),
            "change_invisible_time": (lambda: simple.change_invisible_time(received, 60_000), DEFAULT_S),
            "cluster_info": (lambda: admin.cluster_info(), own_s),
            "topic_route": (lambda: admin.topic_route(TOPIC), DEFAULT_S),
            "create_topic": (lambda: admin.create_topic(TopicConfig("made", 1, 1), broker=broker), own_s),
            "runtime_info": (lambda: admin.runtime_info(broker), own_s),
            "topic_stats": (lambda: admin.topic_stats(TOPIC), DEFAULT_S),
        }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with ProcessCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@asynccontextmanager
async def proxies(cluster: ProcessCluster) -> AsyncIterator[tuple[HostileProxy, HostileProxy]]:
    """Before the NameServer and before the broker."""
    async with AsyncExitStack() as stack:
        real = cluster.brokers[0].address
        broker = await stack.enter_async_context(HostileProxy(real, {}).running())
        rewrites = {real: broker.address}
        name_server = await stack.enter_async_context(HostileProxy(cluster.namesrv_addr, rewrites).running())
        yield name_server, broker


@pytest.mark.parametrize("mode", MODES)
async def test_every_call_ends(mode: str, cluster: ProcessCluster, caplog: pytest.LogCaptureFixture) -> None:
    wrong: list[str] = []

    async def call(name: str, work: Callable[[], Awaitable[object]], own_s: float) -> None:
        began = time.monotonic()
        try:
            await work()
        except GantryError:
            pass
        except Exception as e:
            wrong.append(f"{name} raised {e!r}")
        took_s = time.monotonic() - began
        if took_s > own_s + 1:
            wrong.append(f"{name} took {took_s:.1f} s")

    async with nothing_left(), proxies(cluster) as (name_server, broker):
        clients = Clients(name_server.address)
        received = await clients.begin()
        name_server.mode = broker.mode = mode
        calls = clients.calls(received, broker.address)
        await asyncio.gather(*(call(name, work, own_s) for name, (work, own_s) in calls.items()))
        closing = [(f"close of {client!r}", lambda client=client: client.close(1)) for client in clients.all]
        await asyncio.gather(*(call(name, work, 1.0) for name, work in closing))
        await call("close of AdminClient", clients.admin.close, 2.0)
    gc.collect()
    wrong += [record.getMessage() for record in caplog.records if record.name == "asyncio"]
    assert not wrong


async def test_they_go_on_when_it_is_over(cluster: ProcessCluster) -> None:
    async with nothing_left(), proxies(cluster) as (name_server, broker):
        clients = Clients(name_server.address)
        received = await clients.begin()
        for mode in ("garbage", "closed in the middle", "cut", "empty"):
            name_server.mode = broker.mode = mode
            await asyncio.gather(
                *(work() for work, own_s in clients.calls(received, broker.address).values() if own_s < 1),
                return_exceptions=True,
            )
        name_server.mode = broker.mode = None

        async def sent() -> bool:
            try:
                await clients.producer.send(Message(TOPIC, b"last"))
            except GantryError:
                return False
            return True

        await until(sent)
        found: list[bytes] = []

        async def polled() -> bool:
            found.extend(message.body for message in await clients.lite.poll(500))
            return b"last" in found

        await until(polled, 40)
        for client in clients.all:
            await client.close(1)
        await clients.admin.close()
