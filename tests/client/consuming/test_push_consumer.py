"""Push consumers against a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from contextvars import ContextVar

import pytest
from inbox import Inbox, queues_of, send_all
from internals import process_queues
from wait_until import until

from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.consuming.process_queue import FlowLimits
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.middleware import ConsumeCall, ConsumeContext, Middleware
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import ClientError, IllegalMessage
from gantrymq.protocol.message import Message, MessageExt


async def test_from_the_beginning(name_server: str, producer: Producer, topic: str, unique: str) -> None:
    await send_all(producer, topic, [b"first", b"second"])
    inbox = Inbox()
    consumer = PushConsumer(name_server, unique, inbox, start_from="earliest")
    consumer.subscribe(topic)
    async with consumer:
        await until(lambda: len(inbox.messages) == 2)
        await send_all(producer, topic, [b"third"])
        await until(lambda: len(inbox.messages) == 3)
    assert inbox.bodies == [b"first", b"second", b"third"]


async def test_goes_on_where_it_was_closed(name_server: str, producer: Producer, topic: str, unique: str) -> None:
    first, second = Inbox(), Inbox()
    for inbox, number in ((first, 0), (second, 1)):
        await send_all(producer, topic, [b"%d-%02d" % (number, n) for n in range(40)])
        consumer = PushConsumer(name_server, unique, inbox, start_from="earliest")
        consumer.subscribe(topic)
        async with consumer:
            await until(lambda inbox=inbox: len(inbox.messages) == 40)
    assert first.bodies == [b"0-%02d" % n for n in range(40)]
    assert second.bodies == [b"1-%02d" % n for n in range(40)]


async def test_tags_are_compared_as_text(name_server: str, producer: Producer, topic: str, unique: str) -> None:
    inbox = Inbox()
    consumer = PushConsumer(name_server, unique, inbox, start_from="earliest")
    consumer.subscribe(topic, tags="Aa || other")
    async with consumer:
        # "Aa" and "BB" have the same hash code in Java.
        for tags in ("Aa", "BB", "no", "other", None):
            await send_all(producer, topic, [str(tags).encode()], tags)
        await until(lambda: len(inbox.messages) >= 2)
        await send_all(producer, topic, [b"end"] * 4, "other")
        await until(lambda: len(inbox.messages) >= 6)
    assert inbox.bodies == [b"Aa", b"end", b"end", b"end", b"end", b"other"]


async def test_plain_functions_run_in_threads(name_server: str, producer: Producer, topic: str, unique: str) -> None:
    threads: list[str] = []

    def handle(message: MessageExt) -> None:
        threads.append(threading.current_thread().name)
        time.sleep(0.001)

    consumer = PushConsumer(name_server, unique, handle, start_from="earliest", concurrency=4)
    consumer.subscribe(topic)
    async with consumer:
        await send_all(producer, topic, [b"x"] * 50)
        await until(lambda: len(threads) == 50)
    assert len(set(threads)) > 1
    assert threading.main_thread().name not in threads


async def test_a_failed_message_comes_again(name_server: str, producer: Producer, topic: str, unique: str) -> None:
    tries: list[tuple[str, bytes, int]] = []

    async def handle(message: MessageExt) -> None:
        tries.append((message.topic, message.body, message.reconsume_times))
        if message.body == b"bad" and message.reconsume_times < 2:
            raise ValueError("not yet")

    consumer = PushConsumer(name_server, unique, handle)
    consumer.subscribe(topic)
    async with consumer:
        await until(lambda: queues_of(consumer, topic) == 4)
        await send_all(producer, topic, [b"good", b"bad"])
        await until(lambda: (topic, b"bad", 2) in tries)
    assert Counter(tries) == Counter([(topic, b"good", 0), (topic, b"bad", 0), (topic, b"bad", 1), (topic, b"bad", 2)])


async def test_a_hopeless_message_goes_to_the_dead_letters(
    name_server: str, producer: Producer, topic: str, unique: str
) -> None:
    tries: list[int] = []

    def handle(message: MessageExt) -> None:
        tries.append(message.reconsume_times)
        raise ValueError("never")

    consumer = PushConsumer(name_server, unique, handle, max_reconsume_times=1)
    consumer.subscribe(topic)
    dead_letters = f"%DLQ%{unique}"
    async with consumer:
        await until(lambda: queues_of(consumer, topic) == 4)
        await send_all(producer, topic, [b"hopeless"])
        await until(lambda: len(tries) == 2)
        async with LitePullConsumer(name_server, f"{unique}_reader") as reader:
            queues = await _queues_when_there(reader, dead_letters)
            await reader.assign(queues)
            for queue in queues:
                await reader.seek_to_begin(queue)
            (message,) = await reader.poll(timeout=10)
    assert message.body == b"hopeless"
    assert message.properties["RETRY_TOPIC"] == topic
    assert tries == [0, 1]


async def _queues_when_there(reader: LitePullConsumer, topic: str) -> list[object]:
    async def queues() -> list[object]:
        with contextlib.suppress(ClientError):
            return await reader.queues(topic)
        return []

    return await until(queues)


async def test_a_group_shares_the_queues(name_server: str, producer: Producer, topic: str, unique: str) -> None:
    inboxes = Inbox(), Inbox()
    consumers = [PushConsumer(name_server, unique, inbox) for inbox in inboxes]
    for consumer in consumers:
        consumer.subscribe(topic)
    async with consumers[0]:
        await until(lambda: queues_of(consumers[0], topic) == 4)
        async with consumers[1]:
            await until(lambda: [queues_of(consumer, topic) for consumer in consumers] == [2, 2])
            await send_all(producer, topic, [b"%02d" % n for n in range(40)])
            await until(lambda: sum(len(inbox.messages) for inbox in inboxes) >= 40)
            assert [len(inbox.messages) for inbox in inboxes] == [20, 20]
        await until(lambda: queues_of(consumers[0], topic) == 4)
        await send_all(producer, topic, [b"%02d" % n for n in range(40, 50)])
        await until(lambda: sum(len(inbox.messages) for inbox in inboxes) >= 50)
    assert sorted(inboxes[0].bodies + inboxes[1].bodies) == [b"%02d" % n for n in range(50)]


async def test_what_was_not_finished_is_delivered_again(
    name_server: str, producer: Producer, topic: str, unique: str
) -> None:
    async def hang(message: MessageExt) -> None:
        begun.append(message)
        await asyncio.sleep(60)

    await send_all(producer, topic, [b"unfinished"])
    begun: list[MessageExt] = []
    consumer = PushConsumer(name_server, unique, hang, start_from="earliest")
    consumer.subscribe(topic)
    await consumer.start()
    await until(lambda: begun)
    await consumer.close(timeout=0.05)
    inbox = Inbox()
    consumer = PushConsumer(name_server, unique, inbox)
    consumer.subscribe(topic)
    async with consumer:
        await until(lambda: inbox.messages)
    assert inbox.bodies == [b"unfinished"]


async def test_a_slow_handler_stops_the_pulling(name_server: str, producer: Producer, topic: str, unique: str) -> None:
    queue = (await producer.queues(topic))[1]
    for _ in range(3):
        await producer.send_batch([Message(topic, b"x")] * 100, queue=queue)
    go_on = asyncio.Event()
    begun: list[int] = []

    async def handle(message: MessageExt) -> None:
        begun.append(message.queue_offset)
        await go_on.wait()

    consumer = PushConsumer(
        name_server,
        unique,
        handle,
        concurrency=1000,
        start_from="earliest",
        flow_limits=FlowLimits(max_messages=50),
        pull_batch_size=20,
    )
    consumer.subscribe(topic)
    async with consumer:
        await until(lambda: len(begun) >= 50)
        await asyncio.sleep(0.2)
        # The pull that reached the limit of 50 may have returned up to 19 more messages.
        assert len(begun) <= 69
        go_on.set()
        await until(lambda: len(begun) == 300)


def test_wrong_use_is_refused() -> None:
    with pytest.raises(IllegalMessage):
        PushConsumer("127.0.0.1:9876", "no group", Inbox())
    consumer = PushConsumer("127.0.0.1:9876", "group", Inbox())
    with pytest.raises(IllegalMessage):
        consumer.subscribe("no topic")
    with pytest.raises(ClientError, match="subscribe"):
        asyncio.run(consumer.start())
    with pytest.raises(ClientError, match="concurrency"):
        PushConsumer("127.0.0.1:9876", "group", Inbox(), concurrency=0)
    with pytest.raises(ClientError, match="consume_timeout"):
        PushConsumer("127.0.0.1:9876", "group", Inbox(), consume_timeout=0)
    with pytest.raises(ClientError, match="neither orderly nor broadcasting"):
        PushConsumer("127.0.0.1:9876", "group", Inbox(), client_rebalance=False, orderly=True)


async def test_topics_may_change_while_it_runs(name_server: str, producer: Producer, topic: str, unique: str) -> None:
    second = f"{unique}_2"
    await send_all(producer, second, [b"second"])
    inbox = Inbox()
    consumer = PushConsumer(name_server, unique, inbox, start_from="earliest")
    consumer.subscribe(topic, tags="first")
    async with consumer:
        await until(lambda: queues_of(consumer, topic) == 4)
        consumer.subscribe(second)
        await until(lambda: inbox.bodies == [b"second"])
        before = [held for held in process_queues(consumer) if held.queue.topic == topic]
        consumer.subscribe(topic, tags="other")
        consumer.unsubscribe(second)
        # Either topic may come first. The queues of the changed subscription have new objects.
        await until(lambda: not queues_of(consumer, second) and all(held.dropped for held in before))
        await until(lambda: queues_of(consumer, topic) == 4)
        await send_all(producer, second, [b"not asked for"])
        await send_all(producer, topic, [b"first"], "first")
        await send_all(producer, topic, [b"other"] * 8, "other")
        await until(lambda: len(inbox.messages) == 9)
    assert inbox.bodies == [b"other"] * 8 + [b"second"]


async def test_a_handler_that_takes_too_long_is_overtaken(
    name_server: str, producer: Producer, topic: str, unique: str
) -> None:
    release = threading.Event()
    tries: list[int] = []

    def handle(message: MessageExt) -> None:
        tries.append(message.reconsume_times)
        if message.reconsume_times == 0:
            release.wait(30)
            raise ValueError("too late to matter")

    consumer = PushConsumer(name_server, unique, handle, consume_timeout=0.3)
    consumer.subscribe(topic)
    async with consumer:
        await until(lambda: queues_of(consumer, topic) == 4)
        await send_all(producer, topic, [b"slow"])
        await until(lambda: tries == [0, 1])
        release.set()
    assert tries == [0, 1]


async def test_namespaces_keep_groups_and_topics_apart(name_server: str, unique: str) -> None:
    tries: list[tuple[str, int]] = []

    async def handle(message: MessageExt) -> None:
        tries.append((message.topic, message.reconsume_times))
        if not message.reconsume_times:
            raise ValueError("not yet")

    async with Producer(name_server, "producers", namespace="ns") as producer:
        await producer.send(Message(unique, b"inside"))
    async with Producer(name_server, "producers") as producer:
        await producer.send(Message(unique, b"outside"))
        assert await producer.queues(f"ns%{unique}")
    consumer = PushConsumer(name_server, unique, handle, namespace="ns", start_from="earliest")
    consumer.subscribe(unique)
    async with consumer:
        await until(lambda: len(tries) == 2)
        assert queues_of(consumer, unique)
    assert tries == [(unique, 0), (unique, 1)]


VARIABLE: ContextVar[str] = ContextVar("variable", default="")


class Outcomes(Middleware):
    """Records the outcome of each handler, and sets a context variable for it."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def around_consume(self, call: ConsumeCall, context: ConsumeContext) -> None:
        VARIABLE.set(context.group)
        try:
            await call(context)
        except Exception as e:
            self.seen.append(repr(e))
            raise
        self.seen.append("consumed")


@pytest.mark.parametrize("is_coroutine", [False, True])
async def test_middleware_and_traces(
    name_server: str, producer: Producer, topic: str, unique: str, is_coroutine: bool
) -> None:
    traces = f"{unique}_traces"
    await producer.send(Message(traces, b"makes the topic"))
    outcomes, variables = Outcomes(), []

    def handle(message: MessageExt) -> None:
        variables.append(VARIABLE.get())
        if not message.reconsume_times:
            raise ValueError("not yet")

    async def handle_in_task(message: MessageExt) -> None:
        handle(message)

    consumer = PushConsumer(
        name_server,
        unique,
        handle_in_task if is_coroutine else handle,
        middleware=[outcomes],
        enable_trace=True,
        trace_topic=traces,
    )
    consumer.subscribe(topic)
    async with consumer:
        await until(lambda: queues_of(consumer, topic) == 4)
        sent = await producer.send(Message(topic, b"traced", keys="a b"))
        await until(lambda: len(outcomes.seen) == 2)
    assert outcomes.seen == ["ValueError('not yet')", "consumed"]
    assert variables == [unique, unique]
    reader = LitePullConsumer(name_server, f"{unique}_reader", start_from="earliest")
    reader.subscribe(traces)
    async with reader:
        texts = ""
        async with asyncio.timeout(20):
            while texts.count("SubAfter") < 2:
                texts += "".join(message.body.decode() for message in await reader.poll())
    assert texts.count("SubBefore") == 2
    assert sent.msg_id in texts


async def test_a_handler_may_be_cancelled_from_within(
    name_server: str, producer: Producer, topic: str, unique: str
) -> None:
    tries: list[int] = []

    async def handle(message: MessageExt) -> None:
        tries.append(message.reconsume_times)
        if not message.reconsume_times:
            raise asyncio.CancelledError

    consumer = PushConsumer(name_server, unique, handle)
    consumer.subscribe(topic)
    async with consumer:
        await until(lambda: queues_of(consumer, topic) == 4)
        await send_all(producer, topic, [b"cancelled"])
        await until(lambda: tries == [0, 1])


async def test_a_decorated_handler(name_server: str, producer: Producer, topic: str, unique: str) -> None:
    consumer = PushConsumer(name_server, unique, start_from="earliest")
    consumer.subscribe(topic)
    inbox = Inbox()

    @consumer.handler
    async def handle(message: MessageExt) -> None:
        await inbox(message)

    async with consumer:
        await producer.send(Message(topic, b"greeting"))
        await until(lambda: inbox.bodies == [b"greeting"])


async def test_one_handler_exactly() -> None:
    consumer = PushConsumer("127.0.0.1:9876", "group")
    consumer.subscribe("topic")
    with pytest.raises(ClientError, match=r"no handler: decorate a function with `@consumer\.handler`"):
        await consumer.start()
    with pytest.raises(ClientError, match=r"can't be called with a message"):
        consumer.handler(lambda: None)  # type: ignore[type-var]
    handler = Inbox()
    assert consumer.handler(handler) is handler
    for made in (consumer, PushConsumer("127.0.0.1:9876", "group", handler)):
        with pytest.raises(ClientError, match="the consumer of group group has a handler: "):
            made.handler(Inbox())
