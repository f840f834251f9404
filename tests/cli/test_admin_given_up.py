"""Tests of `gantry admin givenUpTransactions`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from admin_support import Admin, admin
from wait_until import until

from gantrymq.cli.main import run
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.producing.transaction_producer import LocalTransactionState, TransactionProducer
from gantrymq.protocol.message import Message, MessageExt
from gantrymq.testing.embedded import EmbeddedCluster

__all__ = ["admin"]


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    """A cluster without transaction checks: it gives up a transaction that is not ended at once."""
    with EmbeddedCluster(transaction_time_out=0, transaction_check_interval=20, transaction_check_max=0) as cluster:
        yield cluster


class Undecided:
    async def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN

    async def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN


async def give_up(name_server: str, count: int) -> None:
    async with TransactionProducer(name_server, "shops", Undecided()) as producer:
        for number in range(count):
            message = Message("orders", b"%d" % number, keys=f"key-{number}", properties={"own": "1"})
            await producer.send_in_transaction(message)


async def received(name_server: str, count: int) -> list[MessageExt]:
    found: list[MessageExt] = []

    async def handle(message: MessageExt) -> None:
        found.append(message)

    consumer = PushConsumer(name_server, "group", handle, start_from="earliest")
    consumer.subscribe("orders")
    async with consumer:
        await until(lambda: len(found) >= count)
    return found


def test_they_are_listed_and_ended(admin: Admin, cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert admin("givenUpTransactions") == []
    asyncio.run(give_up(cluster.name_server, 4))
    rows = admin("givenUpTransactions", until=lambda rows: len(rows) == 4)
    assert [row["keys"] for row in rows] == ["key-0", "key-1", "key-2", "key-3"]
    assert {(row["topic"], row["producerGroup"]) for row in rows} == {("orders", "shops")}
    assert admin("givenUpTransactions", "--drop", "--count", "1") == {"dropped": 1}
    assert admin("givenUpTransactions", "--commit", "--count", "2") == {"committed": 2}
    assert [row["keys"] for row in admin("givenUpTransactions")] == ["key-3"]
    messages = asyncio.run(received(cluster.name_server, 2))
    assert sorted(message.body for message in messages) == [b"1", b"2"]
    assert {message.properties["own"] for message in messages} == {"1"}
    assert {message.msg_id for message in messages} == {row["msgId"] for row in rows[1:3]}
    assert admin("givenUpTransactions", "--drop") == {"dropped": 1}
    assert admin("givenUpTransactions") == []
    capsys.readouterr()
    assert run(["admin", "givenUpTransactions", "--commit", "--drop", "-n", cluster.name_server]) == 2
    assert "either --commit or --drop" in capsys.readouterr().err
