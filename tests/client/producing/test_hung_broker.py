"""A hanging broker (SIGSTOP) beside a healthy one: all messages are sent within a short time."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from numbered import TOPIC, two_brokers

from gantrymq.client.producing.producer import Producer
from gantrymq.client.producing.transaction_producer import LocalTransactionState, TransactionProducer
from gantrymq.errors import SendOutcomeUnknown
from gantrymq.protocol.message import Message, MessageExt
from gantrymq.testing.processes import ProcessCluster, ServerProcess

COUNT = 600
AT_A_TIME = 20


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ProcessCluster]:
    async with two_brokers(tmp_path) as cluster:
        yield cluster


@contextmanager
def hanging(broker: ServerProcess) -> Iterator[None]:
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


class Listener:
    def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE


async def send_all(producer: Producer, count: int) -> list[float]:
    """Sends the messages. Returns the times in milliseconds, longest first. Raises an error if a send fails."""
    slots = asyncio.Semaphore(AT_A_TIME)

    async def send(number: int) -> float:
        async with slots:
            began = time.monotonic()
            await producer.send(Message(TOPIC, b"%d" % number))
            return (time.monotonic() - began) * 1000

    return sorted(await asyncio.gather(*(send(number) for number in range(count))), reverse=True)


@pytest.mark.alone
async def test_all_sends_arrive_and_soon(cluster: ProcessCluster) -> None:
    """Sends must not fail after their whole timeout of 3 s."""
    async with Producer(cluster.namesrv_addr, "hung") as producer:
        await send_all(producer, AT_A_TIME)
        with hanging(cluster.brokers[0]):
            took_ms = await send_all(producer, COUNT)
            assert took_ms[COUNT // 100] < 1000
            # No send has waited for the hanging broker twice.
            assert took_ms[0] < 2000
            # The producer now avoids the hanging broker.
            assert (await send_all(producer, AT_A_TIME))[0] < 500


@pytest.mark.alone
async def test_those_that_meet_it_first(cluster: ProcessCluster) -> None:
    """All sends start at once, half of them to the hanging broker, before the connection exists."""
    with hanging(cluster.brokers[0]):
        async with Producer(cluster.namesrv_addr, "hung") as producer:
            began = time.monotonic()
            await asyncio.gather(*(producer.send(Message(TOPIC, b"%d" % number)) for number in range(100)))
            assert time.monotonic() - began < 2


async def test_transactions_go_to_the_other(cluster: ProcessCluster) -> None:
    with hanging(cluster.brokers[0]):
        async with TransactionProducer(cluster.namesrv_addr, "hung", Listener()) as producer:
            for number in range(4):
                sent = await producer.send_in_transaction(Message(TOPIC, b"%d" % number))
                assert sent.result.queue.broker_name == "broker-b"


async def test_javas_way_by_options(cluster: ProcessCluster) -> None:
    """As in Java, the first attempt may use the whole timeout."""
    async with Producer(cluster.namesrv_addr, "hung", try_timeout=0.5, send_latency_fault_enable=False) as producer:
        await send_all(producer, AT_A_TIME)
        with hanging(cluster.brokers[0]):
            results = await asyncio.gather(
                *(producer.send(Message(TOPIC, b"x"), timeout=0.5) for _ in range(10)), return_exceptions=True
            )
    assert {type(result) for result in results if isinstance(result, BaseException)} == {SendOutcomeUnknown}
