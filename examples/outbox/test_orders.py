"""Tests that an order has a message if and only if the database has the order, also after failures."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from orders import Base, Order, OrderTransactions, place_order
from sqlalchemy import create_engine
from sqlalchemy.orm import Session, sessionmaker

from gantrymq import (
    LitePullConsumer,
    LocalTransactionState,
    Message,
    SyncLitePullConsumer,
    SyncTransactionProducer,
    TransactionProducer,
)
from gantrymq.testing.embedded import EmbeddedCluster

COMMIT, ROLLBACK = LocalTransactionState.COMMIT_MESSAGE, LocalTransactionState.ROLLBACK_MESSAGE
TIMEOUT_S = 60.0


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[sessionmaker[Session]]:
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    Base.metadata.create_all(engine)
    yield sessionmaker(engine)
    engine.dispose()


@pytest.fixture(scope="module")
def name_server() -> Iterator[str]:
    with EmbeddedCluster(transaction_time_out=500, transaction_check_interval=200) as cluster:
        yield cluster.name_server


class DiesAfterCommit(OrderTransactions):
    """Never reports that the database has committed."""

    def execute_local_transaction(self, message: Message, order: Order) -> LocalTransactionState:
        super().execute_local_transaction(message, order)
        raise ConnectionError("the process dies here")


def started(name_server: str, transactions: OrderTransactions) -> SyncTransactionProducer:
    return SyncTransactionProducer(TransactionProducer(name_server, "shop-orders", transactions))


def received(name_server: str, count: int, group: str) -> list[Any]:
    consumer = LitePullConsumer(name_server, group, start_from="earliest", auto_commit=False)
    messages: list[Any] = []
    end = time.monotonic() + TIMEOUT_S
    with SyncLitePullConsumer(consumer) as reader:
        reader.assign(reader.queues("placed-orders"))
        while len(messages) < count and time.monotonic() < end:
            messages += reader.poll(timeout=1)
    return [(message.keys[0], message.body) for message in messages]


def test_an_order_that_the_database_refuses_has_no_message(name_server: str, sessions: sessionmaker[Session]) -> None:
    orders = [Order(id=number, what="apples", count=42) for number in ("order-1", "order-1", "order-2")]
    with started(name_server, OrderTransactions(sessions)) as producer:
        assert [place_order(producer, order) for order in orders] == [COMMIT, ROLLBACK, COMMIT]
    assert sorted(received(name_server, 2, "refused")) == [("order-1", b"42 apples"), ("order-2", b"42 apples")]


def test_a_check_commits_what_the_database_has_committed(name_server: str, sessions: sessionmaker[Session]) -> None:
    with started(name_server, DiesAfterCommit(sessions)) as producer:
        assert place_order(producer, Order(id="order-3", what="pears", count=1)) is LocalTransactionState.UNKNOWN
        assert ("order-3", b"1 pears") in received(name_server, 3, "checked")


def test_a_checked_transaction_can_not_commit_later(sessions: sessionmaker[Session]) -> None:
    class Checked:
        msg_id = "A1"

    transactions = OrderTransactions(sessions)
    assert transactions.check_local_transaction(Checked()) is ROLLBACK
    message = Message("placed-orders", b"", properties={"UNIQ_KEY": "A1"})
    assert transactions.execute_local_transaction(message, Order(id="order-4", what="figs", count=1)) is ROLLBACK
    with sessions() as session:
        assert session.get(Order, "order-4") is None
