"""Consumers of lite topics against a cluster of two brokers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from constants import change_constant
from internals import lite_client_of
from ports import free_port
from wait_until import until, wait_until

from gantrymq import OffsetOption, SyncLitePushConsumer, SyncLiteSimpleConsumer
from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.lite import LiteTopics
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.middleware import Middleware, ReceiveCall, ReceiveContext
from gantrymq.client.popping import lite_subscription_manager
from gantrymq.client.popping.lite_consumer import LiteConsumer
from gantrymq.client.popping.lite_push_consumer import LitePushConsumer
from gantrymq.client.popping.lite_simple_consumer import LiteSimpleConsumer
from gantrymq.client.popping.pop_api import lite_counts
from gantrymq.client.popping.popped_queues import PopOptions
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import (
    BrokerError,
    ClientClosed,
    ClientError,
    IllegalMessage,
    LiteSubscriptionQuotaExceeded,
    LiteTopicQuotaExceeded,
    RemotingError,
)
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.namesrv.server import NameServer
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.message import Message, MessageExt
from gantrymq.store.config import StoreConfig
from gantrymq.testing.embedded import EmbeddedCluster

FIRST = OffsetOption.min_offset()


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=2, enable_lmq=True) as cluster:
        yield cluster


@pytest.fixture
def name_server(cluster: EmbeddedCluster) -> str:
    return cluster.name_server


@pytest.fixture
async def admin(name_server: str) -> AsyncIterator[AdminClient]:
    async with AdminClient(name_server) as admin:
        yield admin


async def create(admin: AdminClient, topic: str, **attributes: str) -> None:
    """Creates a parent topic with four queues on each broker, and the group of the same name."""
    await admin.ensure_topic(topic, queues=4, attributes={"message.type": "LITE"})
    all_attributes = {"+lite.bind.topic": topic, **{f"+{name}": value for name, value in attributes.items()}}
    await admin.create_group(SubscriptionGroupConfig(topic, attributes=all_attributes), cluster="DefaultCluster")


@pytest.fixture
async def topic(admin: AdminClient, unique: str) -> str:
    await create(admin, unique)
    return unique


def simple(name_server: str, topic: str, **options: Any) -> LiteSimpleConsumer:
    return LiteSimpleConsumer(name_server, topic, topic, **options)


async def receive_all(consumer: LiteSimpleConsumer, count: int) -> list[MessageExt]:
    """Receives and acknowledges messages."""
    messages: list[MessageExt] = []
    async with asyncio.timeout(30):
        while len(messages) < count:
            for message in await consumer.receive(timeout=2):
                messages.append(message)
                await consumer.ack(message)
    return messages


async def subscriptions(admin: AdminClient) -> list[int]:
    """Returns the number of subscriptions of each broker."""
    return [(await admin.broker_lite_info(address)).lite_subscription_count for address in await brokers(admin)]


async def brokers(admin: AdminClient) -> list[str]:
    return sorted(await admin.masters_of("DefaultCluster"))


# -- sending ----------------------------------------------------------------------------------------------------------


async def test_a_lite_topic_selects_the_queue(producer: Producer, topic: str) -> None:
    names = [f"session-{number}" for number in range(20)]
    queues = [{(await producer.send(Message(topic, b"x", lite_topic=name))).queue for _ in range(3)} for name in names]
    assert all(len(used) == 1 for used in queues)
    assert len({queue.broker_name for used in queues for queue in used}) == 2
    message = Message(topic, b"x", lite_topic="session-0", sharding_key="key", deduplicate_id="id")
    assert (await producer.send(message)).queue in queues[0]


async def test_messages_of_lite_topics_are_in_no_batch(name_server: str, producer: Producer, topic: str) -> None:
    messages = [Message(topic, b"x", lite_topic="one"), Message(topic, b"y")]
    with pytest.raises(IllegalMessage, match="lite topic"):
        await producer.send_batch(messages)
    async with Producer(name_server, "batching", linger=0.01) as batching:
        with pytest.raises(IllegalMessage, match="lite topic"):
            await batching.enqueue(messages[0])
        # `send` sends it alone.
        queues = {(await batching.send(messages[0])).queue for _ in range(5)}
        await batching.send_oneway(messages[0])
    assert queues == {(await producer.send(messages[0])).queue}


@pytest.mark.parametrize("name", ["", " ", "a$b", "a,b", "a\nb", "x" * 250, 17])
def test_illegal_names(name: Any) -> None:
    with pytest.raises(IllegalMessage, match=r"lite.topic"):
        Message("topic", b"x", lite_topic=name)


async def test_too_many_lite_topics(unique: str) -> None:
    with EmbeddedCluster(enable_lmq=True, enable_lmq_quota=True, max_lmq_consume_queue_num=1) as small:
        async with AdminClient(small.name_server) as admin, Producer(small.name_server, "producers") as producer:
            await create(admin, unique)
            await producer.send(Message(unique, b"x", lite_topic="one"))
            with pytest.raises(LiteTopicQuotaExceeded):
                await producer.send(Message(unique, b"x", lite_topic="two"))


# -- subscriptions ----------------------------------------------------------------------------------------------------


async def test_messages_of_each_lite_topic_in_order(name_server: str, producer: Producer, topic: str) -> None:
    names = [f"session-{number}" for number in range(10)]
    for number in range(5):
        for name in [*names, "other"]:
            await producer.send(Message(topic, b"%d" % number, lite_topic=name))
    async with simple(name_server, topic) as consumer:
        for name in names:
            await consumer.subscribe_lite(name, offset_option=FIRST)
        assert consumer.lite_topic_set == set(names)
        received = await receive_all(consumer, 50)
        assert {message.topic for message in received} == {topic}
        for name in names:
            bodies = [message.body for message in received if message.lite_topic == name]
            assert bodies == [b"0", b"1", b"2", b"3", b"4"]
        # A lite topic that does not exist yet.
        await consumer.subscribe_lite("later")
        await producer.send(Message(topic, b"new", lite_topic="later"))
        assert [message.body for message in await receive_all(consumer, 1)] == [b"new"]


async def test_a_message_comes_again(name_server: str, producer: Producer, topic: str) -> None:
    async with simple(name_server, topic) as consumer:
        await consumer.subscribe_lite("one", offset_option=FIRST)
        for body in (b"1", b"2"):
            await producer.send(Message(topic, body, lite_topic="one"))
        async with asyncio.timeout(20):
            [first] = await consumer.receive(1, timeout=10)
            # Other messages wait for it.
            assert await consumer.receive(timeout=0.2) == []
            await consumer.change_invisible_time(first, 0.2)
            again = await consumer.receive(timeout=10)
        assert (again[0].body, again[0].reconsume_times) == (b"1", 1)
        for message in again:
            await consumer.ack(message)
        first.properties.pop("POP_CK")
        with pytest.raises(IllegalMessage, match="not popped"):
            await consumer.ack(first)


async def test_unsubscribe(name_server: str, producer: Producer, admin: AdminClient, topic: str) -> None:
    before = await subscriptions(admin)
    async with simple(name_server, topic) as consumer:
        await consumer.subscribe_lite("one")
        await consumer.subscribe_lite("one")
        await consumer.subscribe_lite("two")
        assert await subscriptions(admin) == [count + 2 for count in before]
        await consumer.unsubscribe_lite("one")
        await consumer.unsubscribe_lite("unknown")
        assert consumer.lite_topic_set == {"two"}
        assert await subscriptions(admin) == [count + 1 for count in before]
        await producer.send(Message(topic, b"1", lite_topic="one"))
        await producer.send(Message(topic, b"2", lite_topic="two"))
        assert [message.body for message in await receive_all(consumer, 1)] == [b"2"]
        assert await consumer.receive(timeout=0.2) == []
    # The close removes the subscriptions. A start begins without any.
    assert await subscriptions(admin) == before
    assert consumer.lite_topic_set == set()
    async with consumer:
        assert consumer.lite_topic_set == set()


async def test_offset_options(name_server: str, producer: Producer, topic: str) -> None:
    for number in range(4):
        await producer.send(Message(topic, b"%d" % number, lite_topic="one"))

    async def first_after(option: OffsetOption) -> bytes:
        await consumer.subscribe_lite("one", offset_option=option)
        message, *others = await consumer.receive(timeout=10)
        for each in (message, *others):
            await consumer.ack(each)
        return message.body

    async with simple(name_server, topic) as consumer:
        assert await first_after(OffsetOption.min_offset()) == b"0"
        assert await first_after(OffsetOption.of_offset(2)) == b"2"
        assert await first_after(OffsetOption.of_tail_n(1)) == b"3"
        assert await first_after(OffsetOption.of_timestamp(0)) == b"0"
        await consumer.subscribe_lite("one", offset_option=OffsetOption.min_offset())
        await consumer.subscribe_lite("one", offset_option=OffsetOption.max_offset())
        await consumer.subscribe_lite("one", offset_option=OffsetOption.last_offset())
        assert await consumer.receive(timeout=0.2) == []
    for wrong in (-1, True, "1", 1 << 63):
        with pytest.raises(ClientError, match="offset="):
            OffsetOption.of_offset(wrong)  # type: ignore[arg-type]


async def test_an_exclusive_group(name_server: str, producer: Producer, admin: AdminClient, unique: str) -> None:
    await create(admin, unique, **{"lite.sub.model": "Exclusive"})
    lost: list[str] = []

    def on_unsubscribe_lite(lite_topic: str) -> None:
        lost.append(lite_topic)
        raise ValueError("an error of the application")

    async with (
        simple(name_server, unique, on_unsubscribe_lite=on_unsubscribe_lite) as first,
        simple(name_server, unique) as second,
    ):
        await first.subscribe_lite("one")
        await first.subscribe_lite("two")
        await second.subscribe_lite("one")
        await until(lambda: lost == ["one"])
        assert first.lite_topic_set == {"two"}
        await producer.send(Message(unique, b"x", lite_topic="one"))
        assert [message.body for message in await receive_all(second, 1)] == [b"x"]
        # It can take the lite topic back.
        await first.subscribe_lite("one")
        await until(lambda: second.lite_topic_set == set())
    assert lost == ["one"]


async def test_too_many_subscriptions(name_server: str, admin: AdminClient, unique: str) -> None:
    await create(admin, unique, **{"lite.sub.client.quota": "1"})
    before = await subscriptions(admin)
    async with simple(name_server, unique) as consumer:
        await consumer.subscribe_lite("one")
        with pytest.raises(LiteSubscriptionQuotaExceeded, match=r"lite\.sub\.client\.quota"):
            await consumer.subscribe_lite("two")
        assert consumer.lite_topic_set == {"one"}
        await consumer.unsubscribe_lite("one")
        await consumer.subscribe_lite("two")
        assert await subscriptions(admin) == [count + 1 for count in before]


async def test_wrong_calls(name_server: str, admin: AdminClient, topic: str) -> None:
    consumer = simple(name_server, topic)
    with pytest.raises(ClientClosed):
        await consumer.subscribe_lite("one")
    async with consumer:
        for name in ("a$b", "", 17):
            with pytest.raises(IllegalMessage, match=r"lite.topic"):
                await consumer.subscribe_lite(name)  # type: ignore[arg-type]
        with pytest.raises(ClientError, match="max_messages"):
            await consumer.receive(33)
    for wrong in ("a b", "", 17):
        with pytest.raises(IllegalMessage):
            LiteSimpleConsumer(name_server, "group", wrong)  # type: ignore[arg-type]
    # A group that is bound to no topic.
    await admin.create_group(SubscriptionGroupConfig("unbound"), cluster="DefaultCluster")
    with pytest.raises(BrokerError, match=r"lite\.bind\.topic"):
        await LiteSimpleConsumer(name_server, "unbound", topic).start()
    with pytest.raises(ClientError, match="no handler"):
        await LitePushConsumer(name_server, topic, topic).start()


async def test_a_group_that_is_disabled_meanwhile(
    name_server: str, admin: AdminClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers that refuse the whole set get it again after the interval, not after each pop."""
    changes: list[str] = []
    encode = lite_subscription_manager.encode_json

    def encoded(body: Any) -> bytes:
        changes.extend(change.action.name for change in body.subscription_set)
        return encode(body)

    async with simple(name_server, topic) as consumer:
        await consumer.subscribe_lite("one")
        monkeypatch.setattr(lite_subscription_manager, "encode_json", encoded)
        await admin.create_group(
            SubscriptionGroupConfig(topic, consume_enable=False, attributes={}), cluster="DefaultCluster"
        )
        for _ in range(20):
            with pytest.raises(BrokerError):
                await consumer.receive(timeout=0)
        assert changes.count("COMPLETE_ADD") <= 4
        assert await subscriptions(admin) == [1, 1]
    assert changes.count("COMPLETE_REMOVE") == 2
    assert await subscriptions(admin) == [0, 0]


def test_a_coroutine_function_is_no_callback() -> None:
    async def lost(lite_topic: str) -> None:
        """Does nothing."""

    with pytest.raises(ClientError, match="plain function"):
        LiteSimpleConsumer("127.0.0.1:9876", "group", "topic", on_unsubscribe_lite=lost)


async def test_middleware(name_server: str, producer: Producer, topic: str) -> None:
    seen: list[Any] = []

    class Recorder(Middleware):
        async def around_receive(self, call: ReceiveCall, context: ReceiveContext) -> list[MessageExt]:
            seen.append(context.topics)
            return await call(context)

    async with simple(name_server, topic, middleware=[Recorder()]) as consumer:
        await consumer.subscribe_lite("one")
        await producer.send(Message(topic, b"x", lite_topic="one"))
        await receive_all(consumer, 1)
    assert seen == [[topic]] * len(seen)
    assert seen


async def test_a_namespace(name_server: str, admin: AdminClient, unique: str) -> None:
    await create(admin, f"space%{unique}")
    async with (
        Producer(name_server, "producers", namespace="space") as producer,
        simple(name_server, unique, namespace="space") as consumer,
    ):
        await consumer.subscribe_lite("one")
        await producer.send(Message(unique, b"x", lite_topic="one"))
        [message] = await receive_all(consumer, 1)
        assert (message.topic, message.lite_topic) == (unique, "one")


# -- brokers that fail ------------------------------------------------------------------------------------------------


class Restarting:
    """A NameServer and two brokers in this event loop."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ports = {name: free_port() for name in ("a", "b")}
        self.name_server = NameServer(NamesrvConfig(listen_port=0, kv_config_path=directory / "kvConfig.json"))
        self.brokers: dict[str, Broker] = {}

    async def start(self, name: str) -> None:
        broker = self.brokers[name] = Broker(
            BrokerConfig(
                broker_name=name,
                bind_address="127.0.0.1",
                listen_port=self._ports[name],
                namesrv_addr=[self.name_server.address],
                store=StoreConfig(
                    store_path_root_dir=self._directory / name,
                    mapped_file_size_commit_log=4 * 1024 * 1024,
                    enable_lmq=True,
                ),
            )
        )
        await broker.start()

    async def stop(self, name: str) -> None:
        await self.brokers.pop(name).stop()

    def lite(self, name: str) -> LiteTopics:
        found = self.brokers[name].features.lite
        assert found is not None
        return found

    def counts(self) -> dict[str, int]:
        return {name: self.lite(name).subscriptions.count for name in self.brokers}


@pytest.fixture
async def restarting(tmp_path: Path) -> AsyncIterator[Restarting]:
    cluster = Restarting(tmp_path)
    await cluster.name_server.start()
    for name in ("a", "b"):
        await cluster.start(name)
    async with AdminClient(cluster.name_server.address) as admin:
        await create(admin, "sessions")
    yield cluster
    for name in list(cluster.brokers):
        await cluster.stop(name)
    await cluster.name_server.stop()


async def test_subscriptions_are_repeated(restarting: Restarting, monkeypatch: pytest.MonkeyPatch) -> None:
    change_constant(monkeypatch, "lite_subscription_manager.REPEAT_S", 0.05)
    async with simple(restarting.name_server.address, "sessions") as consumer:
        await consumer.subscribe_lite("one")
        await consumer.subscribe_lite("two")
        for name in ("a", "b"):
            # As after the expiry.
            restarting.lite(name).subscriptions.forget_all()
        await until(lambda: restarting.counts() == {"a": 2, "b": 2})


async def test_a_broker_restarts(restarting: Restarting) -> None:
    address = restarting.name_server.address
    async with Producer(address, "producers") as producer, simple(address, "sessions") as consumer:
        names = [f"session-{number}" for number in range(8)]
        for name in names:
            await consumer.subscribe_lite(name)
        await restarting.stop("a")
        await restarting.start("a")
        # The next `receive` sends the subscriptions again.
        receiving = asyncio.create_task(receive_all(consumer, 8))
        await until(lambda: restarting.counts() == {"a": 8, "b": 8})
        for name in names:
            await producer.send(Message("sessions", b"x", lite_topic=name), timeout=20)
        assert sorted(message.lite_topic or "" for message in await receiving) == names


async def test_subscribing_while_a_broker_is_down(restarting: Restarting, monkeypatch: pytest.MonkeyPatch) -> None:
    change_constant(monkeypatch, "lite_subscription_manager.RETRY_S", 0.05)
    # The client requests the route without the stopped broker only after the first failed request.
    change_constant(monkeypatch, "client_instance.RECONNECT_S", 60.0)
    async with simple(restarting.name_server.address, "sessions") as consumer:
        await consumer.subscribe_lite("gone")
        await restarting.stop("a")
        with pytest.raises(RemotingError):
            await consumer.subscribe_lite("two", offset_option=FIRST)
        await consumer.subscribe_lite("one")
        await consumer.unsubscribe_lite("gone")
        assert consumer.lite_topic_set == {"one"}
        await until(lambda: restarting.counts() == {"b": 1})
        await restarting.start("a")

        async def has_returned() -> bool:
            await lite_client_of(consumer).routes.refresh("sessions")
            return restarting.counts() == {"a": 1, "b": 1}

        await until(has_returned)


# -- push consumers ---------------------------------------------------------------------------------------------------


class Inbox:
    """A handler. Fails the first delivery of the bodies in `failing`."""

    def __init__(self, *failing: bytes) -> None:
        self.failing = set(failing)
        self.received: list[tuple[str | None, bytes, int]] = []

    def __call__(self, message: MessageExt) -> None:
        self.received.append((message.lite_topic, message.body, message.reconsume_times))
        if message.body in self.failing and not message.reconsume_times:
            raise ValueError("an error of the application")

    async def asynchronously(self, message: MessageExt) -> None:
        self(message)

    def of(self, lite_topic: str) -> list[tuple[bytes, int]]:
        return [(body, times) for name, body, times in self.received if name == lite_topic]


@pytest.mark.parametrize("is_coroutine", [True, False], ids=["coroutine", "thread"])
async def test_a_handler(name_server: str, producer: Producer, topic: str, is_coroutine: bool) -> None:
    inbox = Inbox(b"1")
    handler: Callable[[MessageExt], object] = inbox.asynchronously if is_coroutine else inbox
    consumer = LitePushConsumer(name_server, topic, topic, suspend=0.2)
    consumer.handler(handler)
    with pytest.raises(ClientError, match="has a handler"):
        consumer.handler(handler)
    names = [f"session-{number}" for number in range(4)]
    for number in range(3):
        for name in names:
            await producer.send(Message(topic, b"%d" % number, lite_topic=name))
    async with consumer:
        for name in names:
            await consumer.subscribe_lite(name, offset_option=FIRST)
        await until(lambda: all(inbox.of(name)[-1:] == [(b"2", 1)] for name in names))
    # The message after the failed one waits for it.
    for name in names:
        assert inbox.of(name) == [(b"0", 0), (b"1", 0), (b"1", 1), (b"2", 1)]


async def test_lite_topics_are_handled_concurrently(name_server: str, producer: Producer, topic: str) -> None:
    running: list[str | None] = []
    both = asyncio.Event()

    async def handle(message: MessageExt) -> None:
        running.append(message.lite_topic)
        if set(running) == {"one", "two"}:
            both.set()
        await both.wait()

    async with LitePushConsumer(name_server, topic, topic, handle, pop=PopOptions(max_messages=1)) as consumer:
        for name in ("one", "two"):
            await consumer.subscribe_lite(name)
            for _ in range(3):
                await producer.send(Message(topic, b"x", lite_topic=name))
        await until(lambda: len(running) == 6)


async def test_a_handler_that_takes_too_long(
    name_server: str, producer: Producer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = Inbox()
    is_slow = True

    async def handle(message: MessageExt) -> None:
        nonlocal is_slow
        inbox(message)
        if is_slow:
            is_slow = False
            # As after the invisible duration, which is 5 s or longer.
            parts = message.properties["POP_CK"].split(" ")
            message.properties["POP_CK"] = " ".join([*parts[:1], "0", "1", *parts[3:]])

    for body in (b"1", b"2"):
        await producer.send(Message(topic, body, lite_topic="one"))
    options = PopOptions(invisible_time=5)
    async with LitePushConsumer(name_server, topic, topic, handle, pop=options) as consumer:
        await consumer.subscribe_lite("one", offset_option=FIRST)
        await until(lambda: inbox.of("one") == [(b"1", 0), (b"1", 1), (b"2", 1)])


# -- without asyncio --------------------------------------------------------------------------------------------------


async def test_blocking_consumers(name_server: str, producer: Producer, topic: str) -> None:
    received = threading.Event()

    def use() -> None:
        with SyncLiteSimpleConsumer(simple(name_server, topic)) as consumer:
            consumer.subscribe_lite("one")
            consumer.subscribe_lite("two")
            consumer.unsubscribe_lite("two")
            assert consumer.lite_topic_set == {"one"}
            asyncio.run_coroutine_threadsafe(producer.send(Message(topic, b"x", lite_topic="one")), loop).result()
            [message] = consumer.receive(timeout=10)
            consumer.change_invisible_time(message, 60)
            consumer.ack(message)
        push = SyncLitePushConsumer(LitePushConsumer(name_server, topic, topic))

        @push.handler
        def handle(message: MessageExt) -> None:
            received.set()

        with push:
            push.subscribe_lite("one")
            asyncio.run_coroutine_threadsafe(producer.send(Message(topic, b"x", lite_topic="one")), loop).result()
            wait_until(received.is_set)

    loop = asyncio.get_running_loop()
    await asyncio.to_thread(use)


@pytest.mark.parametrize("kind", [LiteSimpleConsumer, LitePushConsumer])
async def test_a_topic_without_a_route(
    name_server: str, admin: AdminClient, unique: str, kind: Callable[..., LiteConsumer]
) -> None:
    """The consumer starts, and works when the topic exists."""

    async def handle(message: MessageExt) -> None:
        """Does nothing."""

    options = {} if kind is LiteSimpleConsumer else {"handler": handle}
    consumer = kind(name_server, unique, unique, **options)
    async with consumer:
        await create(admin, unique)
        await until(lambda: _subscribed(consumer))


async def _subscribed(consumer: LiteConsumer) -> bool:
    try:
        await consumer.subscribe_lite("one")
    except ClientError:
        return False
    return True


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("0;2", [0, 2]),
        ("0 qo0%0 1;0 qo0%1 12", [1, 12]),
        (";1", [0, 1]),
        ("", [0, 0]),
        ("1", [0, 0]),
        ("1;2;3", [0, 0]),
        ("x;0 qo0%1 y", [0, 0]),
        (f"{'9' * 5000};\u0661", [0, 0]),
    ],
)
def test_numbers_of_deliveries(text: str, counts: list[int]) -> None:
    """Java's broker names the queue and the offset of a redelivered message."""
    assert lite_counts(text, 2) == counts
