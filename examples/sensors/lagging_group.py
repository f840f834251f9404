"""A topic and a consumer group for tests: some messages are not consumed. Also reads the messages of a topic."""

from gantrymq import LitePullConsumer, Message, MessageExt, Producer, SyncLitePullConsumer, SyncProducer

TIMEOUT_S = 60.0


def send(name_server: str, count: int) -> None:
    with SyncProducer(Producer(name_server, "test")) as producer:
        for _ in range(count):
            producer.send(Message("orders", b"42 apples"))


def consume(name_server: str, count: int) -> None:
    """Consumes and commits this number of messages as the group `warehouse`."""
    consumer = LitePullConsumer(name_server, "warehouse", start_from="earliest", auto_commit=False)
    consumer.subscribe("orders")
    with SyncLitePullConsumer(consumer) as reader:
        while count:
            messages = reader.poll(timeout=TIMEOUT_S, max_messages=count)
            assert messages
            count -= len(messages)
        reader.commit()


def received(name_server: str, topic: str, count: int = 1) -> list[MessageExt]:
    """Returns the first messages of a topic."""
    consumer = LitePullConsumer(name_server, "reader", start_from="earliest")
    consumer.subscribe(topic)
    messages = list[MessageExt]()
    with SyncLitePullConsumer(consumer) as reader:
        while len(messages) < count:
            found = reader.poll(timeout=TIMEOUT_S, max_messages=count - len(messages))
            assert found
            messages += found
    return messages
