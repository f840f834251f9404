"""Orders in a database, and a message for each of them. The message is delivered if and only if the database commits.

With SQLAlchemy: `python orders.py` places an order in shop.db.
"""

from contextlib import suppress

from sqlalchemy import create_engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from gantrymq import LocalTransactionState, Message, MessageExt, SyncTransactionProducer, TransactionProducer


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[str] = mapped_column(primary_key=True)
    what: Mapped[str]
    count: Mapped[int]


class Outbox(Base):
    """One row for each message: whether it is committed or rolled back."""

    __tablename__ = "outbox"

    message_id: Mapped[str] = mapped_column(primary_key=True)
    committed: Mapped[bool]


class OrderTransactions:
    def __init__(self, sessions: sessionmaker[Session]) -> None:
        self._sessions = sessions

    def execute_local_transaction(self, message: Message, order: Order) -> LocalTransactionState:
        try:
            with self._sessions.begin() as session:
                session.add(order)
                session.add(Outbox(message_id=message.properties["UNIQ_KEY"], committed=True))
        except IntegrityError:
            return LocalTransactionState.ROLLBACK_MESSAGE
        # After any other error, the outcome is unknown, and the broker checks the transaction.
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        # A transaction without a row may still be running. This row makes its commit fail.
        with suppress(IntegrityError), self._sessions.begin() as session:
            session.add(Outbox(message_id=message.msg_id, committed=False))
        with self._sessions() as session:
            committed = session.get_one(Outbox, message.msg_id).committed
        return LocalTransactionState.COMMIT_MESSAGE if committed else LocalTransactionState.ROLLBACK_MESSAGE


def place_order(producer: SyncTransactionProducer, order: Order) -> LocalTransactionState:
    message = Message("placed-orders", f"{order.count} {order.what}".encode(), keys=order.id)
    return producer.send_in_transaction(message, order).state


if __name__ == "__main__":
    engine = create_engine("sqlite:///shop.db")
    Base.metadata.create_all(engine)
    transactions = OrderTransactions(sessionmaker(engine))
    with SyncTransactionProducer(TransactionProducer("127.0.0.1:9876", "shop-orders", transactions)) as producer:
        print(place_order(producer, Order(id="order-17", what="apples", count=42)))
