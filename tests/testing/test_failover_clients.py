"""Tests that consumers of all kinds, transactions and delayed messages lose nothing in failovers."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from wait_until import until

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.broker_api import SendResult, SendStatus
from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.client.producing.transaction_producer import LocalTransactionState, TransactionProducer
from gantrymq.errors import GantryError
from gantrymq.protocol.message import Message, MessageExt

sys.path.append(str(Path(__file__).parent.parent.parent / "bench"))
from failover import Run
from failover_servers import Servers

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(sys.platform != "linux", reason="the proxy needs all of 127.0.0.0/8"),
]

TOPIC = "orders"
STATES = (LocalTransactionState.COMMIT_MESSAGE, LocalTransactionState.ROLLBACK_MESSAGE, LocalTransactionState.UNKNOWN)
PAUSE_S = 0.05
#: In seconds. Includes the time until locks and invisible durations expire.
CATCH_UP_S = 90.0


class Decisions:
    """Decides by the number of a transaction: commit, roll back, or commit when the broker checks."""

    def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        return STATES[_number(message.body) % 3]

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        is_undone = _number(message.body) % 3 == 1
        return LocalTransactionState.ROLLBACK_MESSAGE if is_undone else LocalTransactionState.COMMIT_MESSAGE


def _number(body: bytes) -> int:
    return int(body.rpartition(b" ")[2])


class Clients:
    """Producers of three kinds and consumers of three groups."""

    def __init__(self, names: str) -> None:
        self._names = names
        self.sent: set[bytes] = set()
        self.received: dict[str, set[bytes]] = {"push": set(), "lite pull": set(), "pop": set()}
        self.is_over = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            push = PushConsumer(self._names, "push", self._handle, start_from="earliest", pull_batch_size=64)
            lite_pull = LitePullConsumer(self._names, "lite-pull", start_from="earliest")
            pop = SimpleConsumer(self._names, "pop")
            for consumer in (push, lite_pull, pop):
                consumer.subscribe(TOPIC)
                await stack.enter_async_context(consumer)
            plain = await stack.enter_async_context(Producer(self._names, "plain"))
            transactional = await stack.enter_async_context(TransactionProducer(self._names, "open", Decisions()))
            jobs = [
                self._produce("plain", lambda body: plain.send(Message(TOPIC, body))),
                self._produce("delayed", lambda body: plain.send(Message(TOPIC, body, delay_level=1))),
                self._produce("timed", lambda body: plain.send(Message(TOPIC, body, delay=2.5))),
                self._produce("open", lambda body: in_transaction(transactional, body)),
                self._poll(lite_pull),
                self._pop(pop),
            ]
            tasks = [asyncio.ensure_future(job) for job in jobs]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                ended = await asyncio.gather(*tasks, return_exceptions=True)
            for each in ended:
                if isinstance(each, Exception):
                    raise each

    async def _produce(self, kind: str, send: Callable[[bytes], Awaitable[SendResult]]) -> None:
        number = 0
        while not self.is_over:
            body = b"%b %d" % (kind.encode(), number)
            number += 1
            try:
                sent = await send(body)
            except GantryError:
                pass
            else:
                if sent.status is SendStatus.SEND_OK and not is_undone(body):
                    self.sent.add(body)
            await asyncio.sleep(PAUSE_S)

    async def _handle(self, message: MessageExt) -> None:
        self.received["push"].add(message.body)

    async def _poll(self, consumer: LitePullConsumer) -> None:
        while True:
            self.received["lite pull"] |= {message.body for message in await consumer.poll(timeout=0.5)}

    async def _pop(self, consumer: SimpleConsumer) -> None:
        while True:
            try:
                messages = await consumer.receive(invisible_time=10, timeout=1)
                self.received["pop"] |= {message.body for message in messages}
                for message in messages:
                    await consumer.ack(message)
            except GantryError:
                await asyncio.sleep(PAUSE_S)

    def missing(self) -> dict[str, set[bytes]]:
        return {kind: self.sent - received for kind, received in self.received.items() if self.sent - received}


async def in_transaction(producer: TransactionProducer, body: bytes) -> SendResult:
    return (await producer.send_in_transaction(Message(TOPIC, body))).result


def is_undone(body: bytes) -> bool:
    return body.startswith(b"open") and _number(body) % 3 == 1


async def test_nothing_is_lost(tmp_path: Path) -> None:
    broker = {"transactionTimeOut": "2000", "transactionCheckInterval": "1000"}
    with Servers(tmp_path, "sqlite", broker) as servers:
        # The faults: cut off, stopped, killed.
        async with Run(servers, 50, random.Random(3)) as run:
            async with AdminClient(servers.names) as admin:
                await admin.ensure_topic(TOPIC, queues=4)
            clients = Clients(servers.names)
            async with clients.running():
                for _ in range(3):
                    await run.one_round()
                clients.is_over = True
                await until(lambda: not clients.missing(), CATCH_UP_S)
            assert await run.finish() == []
    assert {body.split()[0] for body in clients.sent} == {b"plain", b"delayed", b"timed", b"open"}
    assert not [body for received in clients.received.values() for body in received if is_undone(body)]
