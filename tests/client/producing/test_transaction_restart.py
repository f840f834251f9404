"""An open transaction whose broker goes down and restarts."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from constants import change_constant
from numbered import restarted
from wait_until import until

from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.client.producing.transaction_producer import LocalTransactionState, TransactionProducer
from gantrymq.protocol.message import Message, MessageExt
from gantrymq.testing.processes import ProcessCluster

QUICK_CHECKS = {"transactionTimeOut": "500", "transactionCheckInterval": "300"}


class Database:
    """A listener that returns UNKNOWN until the transaction is in `committed`."""

    def __init__(self) -> None:
        self.committed: set[bytes] = set()
        self.checked: list[bytes] = []

    async def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN

    async def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        self.checked.append(message.body)
        return LocalTransactionState.COMMIT_MESSAGE if message.body in self.committed else LocalTransactionState.UNKNOWN


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("ending", ["stopped", "killed"])
async def test_is_asked_about_and_committed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    # A restarted broker gets its clients from their heartbeats.
    change_constant(monkeypatch, "client_instance.HEARTBEAT_INTERVAL_S", 0.2)
    change_constant(monkeypatch, "queue_puller.RETRY_DELAY_S", 0.05)
    database, received = Database(), asyncio.Queue[bytes]()

    async def handle(message: MessageExt) -> None:
        received.put_nowait(message.body)

    with ProcessCluster(tmp_path, broker_properties=QUICK_CHECKS) as cluster:
        consumer = PushConsumer(cluster.namesrv_addr, "readers", handle, start_from="earliest")
        consumer.subscribe("payments")
        async with (
            TransactionProducer(cluster.namesrv_addr, "payers", database) as payer,
            Producer(cluster.namesrv_addr, "plain") as producer,
            asyncio.timeout(60),
        ):
            await producer.send(Message("payments", b"plain"))
            sent = await payer.send_in_transaction(Message("payments", b"across the restart"))
            assert sent.state is LocalTransactionState.UNKNOWN
            async with consumer:
                assert await received.get() == b"plain"
                if ending == "killed":
                    os.kill(cluster.brokers[0].pid, signal.SIGKILL)
                cluster.brokers[0] = await asyncio.to_thread(restarted, cluster, 0)
                asked = len(database.checked)
                await until(lambda: len(database.checked) > asked, 40)
                assert received.empty()
                database.committed.add(b"across the restart")
                assert await received.get() == b"across the restart"
                # A second transaction, after which a duplicate of the first one would have arrived.
                database.committed.add(b"afterwards")
                await payer.send_in_transaction(Message("payments", b"afterwards"))
                assert await received.get() == b"afterwards"
            queues = await producer.queues("payments")
            address = cluster.brokers[0].address
            ends = [await producer.client.api.max_offset(address, "payments", queue.queue_id) for queue in queues]
    assert received.empty()
    assert sum(ends) == 3
    assert set(database.checked) == {b"across the restart", b"afterwards"}
