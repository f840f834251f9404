"""The blocking API for transactions and requests, against a cluster."""

from __future__ import annotations

import threading
from typing import Any

from wait_until import wait_until

from gantrymq import (
    LitePullConsumer,
    LocalTransactionState,
    Message,
    MessageExt,
    Producer,
    SyncLitePullConsumer,
    SyncProducer,
    SyncTransactionProducer,
    TransactionProducer,
    reply_message,
)


class Listener:
    def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE if arg else LocalTransactionState.ROLLBACK_MESSAGE

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN


def consumer_of(name_server: str, topic: str, group: str) -> SyncLitePullConsumer:
    consumer = LitePullConsumer(name_server, group, start_from="earliest")
    consumer.subscribe(topic)
    return SyncLitePullConsumer(consumer)


def test_transactions(name_server: str, topic: str, unique: str) -> None:
    with SyncTransactionProducer(TransactionProducer(name_server, unique, Listener())) as producer:
        for number in range(6):
            producer.send_in_transaction(Message(topic, b"%d" % number), number % 2 == 0, timeout=10)
        producer.send(Message(topic, b"last"), timeout=10)
        found: set[bytes] = set()
        with consumer_of(name_server, topic, unique) as consumer:
            while len(found) < 4:
                found.update(message.body for message in consumer.poll(timeout=20))
    assert found == {b"0", b"2", b"4", b"last"}


def test_flush(name_server: str, topic: str, unique: str) -> None:
    with SyncProducer(Producer(name_server, unique, linger=30)) as producer:
        thread = threading.Thread(target=producer.send, args=(Message(topic, b"in a batch"),))
        thread.start()

        def is_sent() -> bool:
            producer.flush()
            return not thread.is_alive()

        wait_until(is_sent)


def test_request_and_reply(name_server: str, topic: str, unique: str) -> None:
    def reply() -> None:
        with consumer_of(name_server, topic, unique) as consumer, SyncProducer(Producer(name_server, "b")) as replier:
            (message,) = consumer.poll(timeout=20, max_messages=1)
            replier.send(reply_message(message, b"re: " + message.body))

    thread = threading.Thread(target=reply)
    thread.start()
    with SyncProducer(Producer(name_server, "a")) as producer:
        assert producer.request(Message(topic, b"question"), timeout=20).body == b"re: question"
    thread.join()
