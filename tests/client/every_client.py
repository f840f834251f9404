"""A program that uses each kind of client once: python every_client.py NAME_SERVER [uvloop|asyncio]."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from gantrymq import (
    AdminClient,
    LitePullConsumer,
    LocalTransactionState,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    SimpleConsumer,
    SyncLitePullConsumer,
    SyncProducer,
    SyncPushConsumer,
    SyncSimpleConsumer,
    SyncTransactionProducer,
    TransactionProducer,
    reply_message,
    run,
    select_by_hash,
)

TOPICS = ("asynchronous", "synchronous", "questions")
FIRST: Final = "earliest"
COUNT = 6


class Listener:
    async def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.ROLLBACK_MESSAGE


class Inbox:
    """A handler. Sets `all` after it has received all messages."""

    def __init__(self) -> None:
        self.bodies: set[bytes] = set()
        self.all = threading.Event()

    def __call__(self, message: MessageExt) -> None:
        self.bodies.add(message.body)
        if len(self.bodies) == COUNT:
            self.all.set()

    async def asynchronously(self, message: MessageExt) -> None:
        self(message)

    async def together(self, messages: list[MessageExt]) -> None:
        for message in messages:
            self(message)


async def produce(name_server: str) -> None:
    topic = TOPICS[0]
    async with Producer(name_server, "producers", enable_trace=True) as producer:
        await producer.send(Message(topic, b"0", keys="a"))
        await producer.send_batch([Message(topic, b"1"), Message(topic, b"2")])
        await producer.send(Message(topic, b"3"), select=select_by_hash("key"))
        await producer.send_oneway(Message(topic, b"4"))
    async with TransactionProducer(name_server, "payers", Listener(), enable_trace=True) as transactions:
        await transactions.send_in_transaction(Message(topic, b"5"))
    async with Producer(name_server, "batchers", linger=0.005) as batching:
        await asyncio.gather(*(batching.send(Message(topic, b"0")) for _ in range(10)))


async def ask(name_server: str) -> None:
    async def answer(request: MessageExt) -> None:
        await producer.send(reply_message(request, b"answer"))

    async with Producer(name_server, "askers") as producer:
        consumer = PushConsumer(name_server, "answerers", answer, start_from=FIRST)
        consumer.subscribe(TOPICS[2])
        async with consumer:
            await consumer.wait_assigned()
            reply = await producer.request(Message(TOPICS[2], b"question"), timeout=60)
            assert reply.body == b"answer"


async def consume(name_server: str, offsets: Path) -> None:
    inboxes = {group: Inbox() for group in ("async", "thread", "batch", "orderly", "broadcast", "shared-out")}
    consumers = [
        PushConsumer(name_server, "async", inboxes["async"].asynchronously, start_from=FIRST),
        PushConsumer(name_server, "thread", inboxes["thread"], start_from=FIRST, enable_trace=True),
        PushConsumer(name_server, "batch", inboxes["batch"].together, consume_batch_size=2, start_from=FIRST),
        PushConsumer(name_server, "orderly", inboxes["orderly"], orderly=True, start_from=FIRST),
        PushConsumer(
            name_server,
            "broadcast",
            inboxes["broadcast"],
            broadcasting=True,
            offset_directory=offsets,
            start_from=FIRST,
        ),
        PushConsumer(name_server, "shared-out", inboxes["shared-out"], client_rebalance=False, start_from=FIRST),
    ]
    for consumer in consumers:
        consumer.subscribe(TOPICS[0])
        await consumer.start()
    for name, inbox in inboxes.items():
        assert await asyncio.to_thread(inbox.all.wait, 60), (name, inbox.bodies)
    for consumer in consumers:
        await consumer.close()


async def pull(name_server: str) -> None:
    found: set[bytes] = set()
    lite = LitePullConsumer(name_server, "lite", start_from=FIRST)
    lite.subscribe(TOPICS[0])
    async with lite:
        async for message in lite:
            found.add(message.body)
            if len(found) == COUNT:
                break
    found.clear()
    simple = SimpleConsumer(name_server, "simple")
    simple.subscribe(TOPICS[0])
    async with simple:
        while len(found) < COUNT:
            for message in await simple.receive(timeout=1):
                await simple.ack(message)
                found.add(message.body)


async def asynchronous(name_server: str, offsets: Path) -> None:
    async with AdminClient(name_server) as admin:
        for topic in TOPICS:
            await admin.ensure_topic(topic)
    await produce(name_server)
    await asyncio.gather(ask(name_server), consume(name_server, offsets), pull(name_server))
    async with AdminClient(name_server) as admin:
        await admin.cluster_info()
        await admin.topic_list()
    # The timeout cancels a call of this consumer.
    lite = LitePullConsumer(name_server, "given-up")
    lite.subscribe(TOPICS[2])
    with suppress(TimeoutError):
        async with asyncio.timeout(0.5), lite:
            while True:
                await lite.poll()


def synchronous(name_server: str) -> None:
    topic = TOPICS[1]
    with SyncProducer(Producer(name_server, "sync-producers", enable_trace=True)) as producer:
        for number in range(COUNT - 1):
            producer.send(Message(topic, b"%d" % number))
    with SyncTransactionProducer(TransactionProducer(name_server, "sync-payers", Listener())) as transactions:
        transactions.send_in_transaction(Message(topic, b"%d" % (COUNT - 1)))
    inbox = Inbox()
    push = SyncPushConsumer(PushConsumer(name_server, "sync-push", inbox, start_from=FIRST))
    push.subscribe(topic)
    with push:
        assert inbox.all.wait(60)
    found: set[bytes] = set()
    lite = SyncLitePullConsumer(LitePullConsumer(name_server, "sync-lite", start_from=FIRST))
    lite.subscribe(topic)
    with lite:
        for message in lite:
            found.add(message.body)
            if len(found) == COUNT:
                break
    simple = SyncSimpleConsumer(SimpleConsumer(name_server, "sync-simple"))
    simple.subscribe(topic)
    with simple:
        while found:
            for message in simple.receive(timeout=1):
                simple.ack(message)
                found.discard(message.body)


def main() -> None:
    name_server, loop = sys.argv[1:]
    with TemporaryDirectory() as offsets:
        if loop == "uvloop":
            run(lambda: asynchronous(name_server, Path(offsets)))
        else:
            asyncio.run(asynchronous(name_server, Path(offsets)))
    synchronous(name_server)
    gc.collect()
    print("done")


if __name__ == "__main__":
    main()
