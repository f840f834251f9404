"""A program that replies to each message of a topic. It prints a line when its consumer is ready."""

from __future__ import annotations

import sys

from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.client.producing.request_reply import reply_message
from gantrymq.protocol.message import Message, MessageExt
from gantrymq.sync import SyncProducer, SyncPushConsumer


def main(name_server: str, topic: str) -> None:
    with SyncProducer(Producer(name_server, "repliers")) as producer:

        def answer(message: MessageExt) -> None:
            # The requester of a cancelled request does not wait for the reply.
            if message.body == b"question":
                producer.send(reply_message(message, b"reply"))

        consumer = PushConsumer(name_server, "answering", answer)
        consumer.subscribe(topic)
        with SyncPushConsumer(consumer):
            producer.request(Message(topic, b"question"), timeout=20)
            print("ready", flush=True)
            sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
