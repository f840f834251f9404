"""Reads the message that a test has sent."""

from gantrymq import LitePullConsumer, MessageExt, SyncLitePullConsumer

TIMEOUT_S = 60.0


def received(name_server: str, topic: str) -> MessageExt:
    consumer = LitePullConsumer(name_server, "test", start_from="earliest", auto_commit=False)
    with SyncLitePullConsumer(consumer) as reader:
        reader.assign(reader.queues(topic))
        (message,) = reader.poll(timeout=TIMEOUT_S)
    return message
