"""Every public call against faulty servers: each ends within its timeout, with a result or a GantryError.

Afterwards, the clients close in time and leave nothing behind.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import pytest
from hostile_proxy import MODES_TOGETHER, no_complaints, proxies
from leftovers import nothing_left
from stopwatch import Stopwatch
from wait_until import until, wait_until

from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.client.producing.queue_selector import select_by_hash
from gantrymq.client.producing.transaction_producer import LocalTransactionState, TransactionProducer
from gantrymq.errors import GantryError
from gantrymq.protocol.message import Message, MessageExt, MessageQueue
from gantrymq.sync import (
    SyncLitePullConsumer,
    SyncProducer,
    SyncPushConsumer,
    SyncSimpleConsumer,
    SyncTransactionProducer,
)
from gantrymq.testing.processes import ProcessCluster

TOPIC = "calls"
#: Timeout of calls that have such a parameter, in milliseconds.
TIMEOUT_S = 0.4
#: Timeout of other calls, in seconds: that of each request.
DEFAULT_S = 3.0
#: Timeout of a close, in seconds: CLOSE_TIMEOUT_S of the client.
CLOSE_S = 10.0
MESSAGE = Message(TOPIC, b"body")
Call = Callable[[], Awaitable[object]]


class Listener:
    def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE


async def handle(message: MessageExt) -> None:
    _ = message.body


class Clients:
    """One client of each kind. All are connected to the brokers."""

    def __init__(self, name_server: str) -> None:
        # Each proxy port has its own groups.
        of = name_server.rpartition(":")[2]
        self.producer = Producer(name_server, f"producers-{of}", enable_trace=True)
        self.batching = Producer(name_server, f"batchers-{of}", linger=0.001)
        self.transactions = TransactionProducer(name_server, f"payers-{of}", Listener())
        first: Final = "earliest"
        self.push = PushConsumer(name_server, f"push-{of}", handle, start_from=first)
        self.orderly = PushConsumer(name_server, f"orderly-{of}", handle, orderly=True, start_from=first)
        self.lite = LitePullConsumer(name_server, f"lite-{of}", auto_commit=False, start_from=first)
        self.assigned = LitePullConsumer(name_server, f"assigned-{of}", auto_commit=False, start_from=first)
        self.simple = SimpleConsumer(name_server, f"simple-{of}")
        for consumer in (self.push, self.orderly, self.lite, self.simple):
            consumer.subscribe(TOPIC)

    @property
    def all(self) -> list[Any]:
        return list(vars(self).values())

    async def begin(self) -> tuple[MessageExt, str]:
        """Returns a message that was received and not acknowledged, and the handle of one that can be recalled."""
        for client in self.all:
            await client.start()
        await self.producer.send(MESSAGE)
        await self.batching.send(MESSAGE)
        await self.transactions.send_in_transaction(MESSAGE)
        for consumer in (self.push, self.orderly, self.lite):
            await until(lambda consumer=consumer: consumer.assignment)
        queues = await self.assigned.queues(TOPIC)
        await self.assigned.assign(queues)
        later = await self.producer.send(Message(TOPIC, b"later", delay=600))
        assert later.recall_handle

        async def received() -> MessageExt | None:
            messages = await self.simple.receive(timeout=0.5)
            return messages[0] if messages else None

        return await until(received), later.recall_handle

    def calls(self, received: MessageExt, recall_handle: str) -> dict[str, tuple[Call, float]]:
        """Returns the calls with their timeouts. Each name begins with the method's name."""
        own_s = TIMEOUT_S
        queue = next(iter(self.lite.assignment))
        producer, lite, assigned, simple = self.producer, self.lite, self.assigned, self.simple

        async def enqueue() -> None:
            await (await self.batching.enqueue(MESSAGE, timeout=TIMEOUT_S))

        return {
            "send": (lambda: producer.send(MESSAGE, timeout=TIMEOUT_S), own_s),
            "send to a new topic": (lambda: producer.send(Message("new", b"x"), timeout=TIMEOUT_S), own_s),
            "send to a queue": (lambda: producer.send(MESSAGE, timeout=TIMEOUT_S, queue=queue), own_s),
            "send_alone": (lambda: self.batching.send_alone(MESSAGE, timeout=TIMEOUT_S), own_s),
            "send_batch": (lambda: producer.send_batch([MESSAGE, MESSAGE], timeout=TIMEOUT_S), own_s),
            "send with a selector": (
                lambda: producer.send(MESSAGE, timeout=TIMEOUT_S, select=select_by_hash("key")),
                own_s,
            ),
            "send_oneway": (lambda: producer.send_oneway(MESSAGE), DEFAULT_S),
            "request": (lambda: producer.request(MESSAGE, timeout=TIMEOUT_S), own_s),
            "recall": (lambda: producer.recall(TOPIC, recall_handle, timeout=TIMEOUT_S), own_s),
            "queues": (lambda: producer.queues("another"), DEFAULT_S),
            "send in a batch": (lambda: self.batching.send(MESSAGE, timeout=TIMEOUT_S), own_s),
            "enqueue": (enqueue, own_s),
            "flush": (lambda: self.batching.flush(), own_s),
            "send_in_transaction": (
                lambda: self.transactions.send_in_transaction(MESSAGE, None, timeout=TIMEOUT_S),
                own_s,
            ),
            "wait_assigned": (lambda: lite.wait_assigned(timeout=TIMEOUT_S), own_s),
            "poll": (lambda: lite.poll(timeout=TIMEOUT_S), own_s),
            "commit": (lambda: lite.commit(), DEFAULT_S),
            "commit of offsets": (lambda: lite.commit({queue: 1}), DEFAULT_S),
            "queues of a topic": (lambda: lite.queues("another"), DEFAULT_S),
            "seek": (lambda: lite.seek(queue, 1), DEFAULT_S),
            "seek_to_begin": (lambda: lite.seek_to_begin(queue), DEFAULT_S),
            "seek_to_end": (lambda: lite.seek_to_end(queue), DEFAULT_S),
            "seek_to_time": (lambda: lite.seek_to_time(queue, 1), DEFAULT_S),
            "offset_for_time": (lambda: lite.offset_for_time(queue, 1), DEFAULT_S),
            "end_offset": (lambda: lite.end_offset(queue), DEFAULT_S),
            "committed": (lambda: lite.committed(queue), DEFAULT_S),
            "assign": (lambda: assigned.assign([queue]), DEFAULT_S),
            "receive": (lambda: simple.receive(timeout=TIMEOUT_S), own_s),
            "ack": (lambda: simple.ack(received), DEFAULT_S),
            "change_invisible_time": (lambda: simple.change_invisible_time(received, 60), DEFAULT_S),
        }


class SyncClients:
    """The blocking clients. They run in threads, because the servers use the event loop."""

    def __init__(self, name_server: str) -> None:
        clients = Clients(name_server)
        self.producer = SyncProducer(clients.producer)
        self.batching = SyncProducer(clients.batching)
        self.transactions = SyncTransactionProducer(clients.transactions)
        self.push = SyncPushConsumer(clients.push)
        self.lite = SyncLitePullConsumer(clients.lite)
        self.assigned = SyncLitePullConsumer(clients.assigned)
        self.simple = SyncSimpleConsumer(clients.simple)

    @property
    def all(self) -> list[Any]:
        return list(vars(self).values())

    def begin(self) -> tuple[MessageExt, str]:
        for client in self.all:
            client.start()
        self.producer.send(MESSAGE)
        self.transactions.send_in_transaction(MESSAGE)
        self.assigned.assign(self.assigned.queues(TOPIC))
        wait_until(lambda: self.lite.poll(timeout=0.5))
        later = self.producer.send(Message(TOPIC, b"later", delay=600))
        assert later.recall_handle
        return wait_until(lambda: self.simple.receive(timeout=0.5))[0], later.recall_handle

    def calls(self, received: MessageExt, recall_handle: str) -> dict[str, tuple[Callable[[], object], float]]:
        own_s = TIMEOUT_S
        producer, lite, assigned, simple = self.producer, self.lite, self.assigned, self.simple
        queue = assigned.queues(TOPIC)[0]
        return {
            "send": (lambda: producer.send(MESSAGE, timeout=TIMEOUT_S), own_s),
            "send_batch": (lambda: producer.send_batch([MESSAGE, MESSAGE], timeout=TIMEOUT_S), own_s),
            "send with a selector": (
                lambda: producer.send(MESSAGE, timeout=TIMEOUT_S, select=select_by_hash("key")),
                own_s,
            ),
            "send_oneway": (lambda: producer.send_oneway(MESSAGE), DEFAULT_S),
            "enqueue": (lambda: self.batching.enqueue(MESSAGE, timeout=TIMEOUT_S).result(), own_s),
            "flush": (lambda: producer.flush(), own_s),
            "request": (lambda: producer.request(MESSAGE, timeout=TIMEOUT_S), own_s),
            "recall": (lambda: producer.recall(TOPIC, recall_handle, timeout=TIMEOUT_S), own_s),
            "queues": (lambda: producer.queues("another"), DEFAULT_S),
            "send_in_transaction": (
                lambda: self.transactions.send_in_transaction(MESSAGE, None, timeout=TIMEOUT_S),
                own_s,
            ),
            "subscribe": (lambda: self.push.subscribe("another"), own_s),
            "unsubscribe": (lambda: self.push.unsubscribe("another"), own_s),
            "health": (lambda: self.push.health(), own_s),
            "lag": (lambda: self.push.lag(), own_s),
            "wait_assigned": (lambda: self.push.wait_assigned(timeout=TIMEOUT_S), own_s),
            "poll": (lambda: lite.poll(timeout=TIMEOUT_S), own_s),
            "commit": (lambda: lite.commit(), DEFAULT_S),
            "assign": (lambda: assigned.assign([queue]), DEFAULT_S),
            "seek": (lambda: assigned.seek(queue, 1), DEFAULT_S),
            "seek_to_begin": (lambda: assigned.seek_to_begin(queue), DEFAULT_S),
            "seek_to_end": (lambda: assigned.seek_to_end(queue), DEFAULT_S),
            "seek_to_time": (lambda: assigned.seek_to_time(queue, 1), DEFAULT_S),
            "offset_for_time": (lambda: assigned.offset_for_time(queue, 1), DEFAULT_S),
            "end_offset": (lambda: assigned.end_offset(queue), DEFAULT_S),
            "position": (lambda: assigned.position(queue), DEFAULT_S),
            "committed": (lambda: assigned.committed(queue), DEFAULT_S),
            "pause": (lambda: assigned.pause([queue]), own_s),
            "resume": (lambda: assigned.resume([queue]), own_s),
            "receive": (lambda: simple.receive(timeout=TIMEOUT_S), own_s),
            "ack": (lambda: simple.ack(received), DEFAULT_S),
            "change_invisible_time": (lambda: simple.change_invisible_time(received, 60), DEFAULT_S),
        }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = tmp_path_factory.mktemp("cluster")
    with ProcessCluster(directory, broker_properties={"recallMessageEnable": "true"}) as cluster:
        yield cluster


async def call(wrong: list[str], name: str, work: Call, own_s: float) -> None:
    stopwatch = Stopwatch()
    try:
        await work()
    except GantryError:
        pass
    except Exception as e:
        wrong.append(f"{name} raised {e!r}")
    # The calls of all modes share this process, so other calls' CPU time does not count as waiting.
    waited_s = stopwatch.waited_s()
    if waited_s > own_s + 1:
        wrong.append(f"{name} waited {waited_s:.1f} s")


@pytest.mark.parametrize("modes", MODES_TOGETHER, ids=", ".join)
async def test_every_call_ends(modes: list[str], cluster: ProcessCluster, caplog: pytest.LogCaptureFixture) -> None:
    async def attack(mode: str) -> None:
        async with proxies(cluster) as (name_server, broker):
            clients = Clients(name_server.address)
            calls = clients.calls(*await clients.begin())
            name_server.mode = broker.mode = mode
            await asyncio.gather(
                *(call(wrong, f"{mode}: {name}", work, own_s) for name, (work, own_s) in calls.items())
            )
            closes = [
                (f"{mode}: close of {client!r}", lambda client=client: client.close(timeout=1))
                for client in clients.all
            ]
            await asyncio.gather(*(call(wrong, name, work, 1.0) for name, work in closes))

    with no_complaints(caplog) as wrong:
        async with nothing_left():
            await asyncio.gather(*(attack(mode) for mode in modes))


@pytest.mark.parametrize("mode", ["silent", "closed in the middle", "garbage"])
async def test_every_synchronous_call_ends(
    mode: str, cluster: ProcessCluster, caplog: pytest.LogCaptureFixture
) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(40))
    with no_complaints(caplog) as wrong:
        async with nothing_left(), proxies(cluster) as (name_server, broker):
            clients = SyncClients(name_server.address)
            calls = await asyncio.to_thread(lambda: clients.calls(*clients.begin()))
            name_server.mode = broker.mode = mode
            await asyncio.gather(
                *(call(wrong, name, partial(asyncio.to_thread, work), own_s) for name, (work, own_s) in calls.items())
            )
            closes = [(f"close of {client!r}", partial(asyncio.to_thread, client.close)) for client in clients.all]
            await asyncio.gather(*(call(wrong, name, work, CLOSE_S) for name, work in closes))


def test_every_call_is_among_them() -> None:
    # `handler` sends no request.
    queue, received, own = MessageQueue(TOPIC, "broker-a", 0), object(), {"start", "close", "handler"}
    clients = Clients("127.0.0.1:9")
    clients.lite = SimpleNamespace(assignment=[queue])  # type: ignore[assignment]
    named = {name.partition(" ")[0] for name in clients.calls(received, "handle")}  # type: ignore[arg-type]
    for kind in (TransactionProducer, PushConsumer, LitePullConsumer, SimpleConsumer):
        coroutines = {name for name, _ in inspect.getmembers(kind, inspect.iscoroutinefunction) if name[0] != "_"}
        assert not coroutines - named - own, kind
    sync_clients = SyncClients("127.0.0.1:9")
    sync_clients.assigned = SimpleNamespace(queues=lambda topic: [queue])  # type: ignore[assignment]
    named = set(sync_clients.calls(received, "handle"))  # type: ignore[arg-type]
    for sync_kind in (SyncTransactionProducer, SyncPushConsumer, SyncLitePullConsumer, SyncSimpleConsumer):
        methods = {name for name, _ in inspect.getmembers(sync_kind, inspect.isfunction) if name[0] != "_"}
        assert not methods - named - own, sync_kind


async def test_they_go_on_when_it_is_over(cluster: ProcessCluster) -> None:
    async with nothing_left(), proxies(cluster) as (name_server, broker):
        clients = Clients(name_server.address)
        received, recall_handle = await clients.begin()
        for mode in ("garbage", "closed in the middle", "cut", "empty"):
            name_server.mode = broker.mode = mode
            await asyncio.gather(
                *(work() for work, own_s in clients.calls(received, recall_handle).values() if own_s < 1),
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
            found.extend(message.body for message in await clients.lite.poll(timeout=0.5))
            return b"last" in found

        await until(polled, 40)
        for client in clients.all:
            await client.close(timeout=1)
