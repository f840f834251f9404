"""Producer calls that are cancelled in every iteration: the producer continues and leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from cancelling import cancel_at_every_turn
from internals import has_pending_requests
from scripted import ScriptedNameServer, route_over, serving
from wait_until import wait_until

from gantrymq.client.producing.producer import Producer
from gantrymq.client.producing.queue_selector import select_by_hash
from gantrymq.client.producing.transaction_producer import LocalTransactionState, TransactionProducer
from gantrymq.errors import GantryError
from gantrymq.protocol.message import Message, MessageExt
from gantrymq.sync import SyncProducer
from gantrymq.testing.processes import ProcessCluster

TOPIC, QUESTIONS = "cancelled", "questions"
LARGE = bytes(300_000)


class Listener:
    """A listener whose coroutine takes several iterations."""

    async def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        for _ in range(3):
            await asyncio.sleep(0)
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE


class ThreadListener(Listener):
    def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:  # type: ignore[override]
        return LocalTransactionState.COMMIT_MESSAGE


async def enqueue(producer: Producer) -> None:
    """Includes callers that wait for free buffer space."""
    await asyncio.gather(*[await producer.enqueue(Message(TOPIC, bytes(1000))) for _ in range(4)])


async def recall(producer: Producer) -> None:
    sent = await producer.send(Message(TOPIC, b"later", delay=60))
    assert sent.recall_handle
    await producer.recall(TOPIC, sent.recall_handle)


Kind = Callable[[str], Producer]
Call = Callable[[Any], Coroutine[Any, Any, object]]


def plain(name_server: str) -> Producer:
    return Producer(name_server, "producers")


def gathering(name_server: str) -> Producer:
    return Producer(name_server, "producers", linger=0.001, batch_size=2500, buffer_bytes=2500)


def tracing(name_server: str) -> Producer:
    return Producer(name_server, "producers", enable_trace=True)


def transactional(name_server: str) -> Producer:
    return TransactionProducer(name_server, "payers", Listener())


def transactional_in_threads(name_server: str) -> Producer:
    return TransactionProducer(name_server, "payers", ThreadListener())


CALLS: dict[str, tuple[Kind, Call]] = {
    "send": (plain, lambda producer: producer.send(Message(TOPIC, b"x"))),
    "a large body": (plain, lambda producer: producer.send(Message(TOPIC, LARGE))),
    "traced": (tracing, lambda producer: producer.send(Message(TOPIC, b"x"))),
    "send with a selector": (plain, lambda producer: producer.send(Message(TOPIC, b"x"), select=select_by_hash("key"))),
    "send_batch": (plain, lambda producer: producer.send_batch([Message(TOPIC, b"x"), Message(TOPIC, b"y")])),
    "send_oneway": (plain, lambda producer: producer.send_oneway(Message(TOPIC, b"x"))),
    "queues": (plain, lambda producer: producer.queues(TOPIC)),
    "send in a batch": (gathering, lambda producer: producer.send(Message(TOPIC, b"x"))),
    "enqueue": (gathering, enqueue),
    "request": (plain, lambda producer: producer.request(Message(QUESTIONS, b"question"), timeout=10)),
    "recall": (plain, recall),
    "transaction": (transactional, lambda producer: producer.send_in_transaction(Message(TOPIC, b"x"))),
    "transaction in a thread": (
        transactional_in_threads,
        lambda producer: producer.send_in_transaction(Message(TOPIC, b"x")),
    ),
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    """Starts a cluster and a replying consumer in other processes, so that this one has only the test's sockets."""
    directory = tmp_path_factory.mktemp("cluster")
    with ProcessCluster(directory, broker_properties={"recallMessageEnable": "true"}) as cluster:
        with SyncProducer(Producer(cluster.namesrv_addr, "repliers")) as producer:
            for topic in (TOPIC, QUESTIONS):
                producer.send(Message(topic, b"x"))
                wait_until(lambda topic=topic: _is_known(producer, topic))
        command = [sys.executable, str(Path(__file__).parent / "answering.py"), cluster.namesrv_addr, QUESTIONS]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as answering:
            assert answering.stdin is not None
            assert answering.stdout is not None
            try:
                assert answering.stdout.readline() == "ready\n"
                yield cluster
                answering.stdin.close()
                assert answering.wait(30) == 0
            finally:
                answering.kill()


def _is_known(producer: SyncProducer, topic: str) -> bool:
    try:
        return bool(producer.queues(topic))
    except GantryError:
        return False


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_that_is_cancelled(name: str, cluster: ProcessCluster, caplog: pytest.LogCaptureFixture) -> None:
    kind, call = CALLS[name]

    @asynccontextmanager
    async def new() -> AsyncIterator[Producer]:
        producer = kind(cluster.namesrv_addr)
        async with producer:
            yield producer
        assert not has_pending_requests(producer)

    def again(producer: Producer) -> Awaitable[object]:
        return call(producer)

    await cancel_at_every_turn(new, call, again)
    gc.collect()
    assert not [record for record in caplog.records if record.name == "asyncio"]


FAILING = {name: CALLS[name] for name in ("send", "send_batch", "send in a batch", "request", "transaction")}


@pytest.mark.parametrize("name", FAILING)
async def test_a_call_that_is_cancelled_while_it_fails(name: str, caplog: pytest.LogCaptureFixture) -> None:
    kind, call = FAILING[name]
    name_server = ScriptedNameServer({})
    with closing(socket.create_server(("127.0.0.1", 0))) as nobody:
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
    name_server.routes = {topic: route_over({"gone": address}) for topic in (TOPIC, QUESTIONS)}

    @asynccontextmanager
    async def new() -> AsyncIterator[Producer]:
        async with kind(name_server.address) as producer:
            yield producer

    async def fails(producer: Producer) -> None:
        with pytest.raises(GantryError):
            await call(producer)

    async with serving([name_server]):
        await cancel_at_every_turn(new, fails, fails)
    gc.collect()
    assert not [record for record in caplog.records if record.name == "asyncio"]
