"""Tests of the Kombu transport: the interface of every transport, and its own properties."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import kombu
import pytest
from wait_until import wait_until

import gantrymq.integrations.celery as transport
from gantrymq import AdminClient, Message, NoRouteInfo, Producer, SyncProducer
from gantrymq.client.credentials import Credentials
from gantrymq.errors import ClientError, RemotingError
from gantrymq.integrations.kombu_link import Link
from gantrymq.testing.embedded import EmbeddedCluster

VISIBLE_S = 1.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as cluster:
        yield cluster


@pytest.fixture
def connection(cluster: EmbeddedCluster) -> Iterator[kombu.Connection]:
    options = {"visibility_timeout": VISIBLE_S}
    with kombu.Connection(f"rocketmq://{cluster.name_server}", transport_options=options) as connection:
        yield connection


def publish(channel: Any, queue: kombu.Queue, body: object, **options: Any) -> None:
    kombu.Producer(channel).publish(
        body, exchange=queue.exchange, routing_key=queue.routing_key, declare=[queue], **options
    )


def drained(connection: kombu.Connection, queue: kombu.Queue, count: int, **options: Any) -> list[kombu.Message]:
    """Consumes and returns the next `count` messages of a queue."""
    messages: list[kombu.Message] = []
    deadline = time.monotonic() + 20
    with connection.Consumer([queue], callbacks=[lambda body, message: messages.append(message)], **options):
        while len(messages) < count and time.monotonic() < deadline:
            with suppress(TimeoutError):
                connection.drain_events(timeout=1)
    return messages


def test_publish_and_consume(connection: kombu.Connection) -> None:
    queue = kombu.Queue("first", kombu.Exchange("shop", "direct"), routing_key="orders")
    publish(connection.channel(), queue, {"hello": "world"}, headers={"k1": "v1"}, serializer="json")
    (message,) = drained(connection, queue, 1)
    assert (message.payload, message.headers["k1"]) == ({"hello": "world"}, "v1")
    assert message.delivery_info == {"exchange": "shop", "routing_key": "orders", "redelivered": False}
    message.ack()


def test_simple_queues(connection: kombu.Connection) -> None:
    for number, queue in enumerate((connection.SimpleQueue("simple"), connection.SimpleBuffer("buffer"))):
        with closing(queue):
            queue.put({"Hello": number}, headers={"k1": "v1"})
            message = queue.get(timeout=10)
            assert (message.payload, message.headers) == ({"Hello": number}, {"k1": "v1"})
            assert (message.content_type, message.content_encoding) == ("application/json", "utf-8")
            message.ack()


def test_a_topic_exchange(connection: kombu.Connection) -> None:
    exchange = kombu.Exchange("weather", "topic")
    queues = [kombu.Queue(f"w{n}", exchange, routing_key=key) for n, key in enumerate(("rain.*", "#.oslo", "*.rome"))]
    channel = connection.channel()
    for queue in queues:
        queue(channel).declare()
    kombu.Producer(channel).publish({"mm": 3}, exchange=exchange, routing_key="rain.oslo")
    for queue in queues[:2]:
        (message,) = drained(connection, queue, 1)
        assert message.payload == {"mm": 3}
        message.ack()
    assert queues[2](channel).get() is None


def test_get_and_purge(connection: kombu.Connection) -> None:
    channel = connection.channel()
    queue = kombu.Queue("gets", routing_key="gets")
    bound = queue(channel)
    bound.declare()
    assert bound.get() is None
    for number in range(4):
        publish(channel, queue, number)
    first, second = bound.get(no_ack=True), bound.get()
    assert {first.payload, second.payload} < {0, 1, 2, 3}
    second.ack()
    assert bound.purge() == 2
    assert bound.get() is None


def test_no_more_is_fetched_than_may_be_in_hand(connection: kombu.Connection) -> None:
    channel = connection.channel()
    queue = kombu.Queue("prefetch", routing_key="prefetch")
    for number in range(5):
        publish(channel, queue, number)
    messages: list[kombu.Message] = []
    consumer = kombu.Consumer(channel, [queue], on_message=messages.append)
    consumer.qos(prefetch_count=2)

    def drain() -> int:
        with suppress(TimeoutError):
            connection.drain_events(timeout=0.2)
        return len(messages)

    with consumer:
        wait_until(lambda: drain() == 2)
        assert connection.transport.link.asked("prefetch") == 0
        assert [drain() for _ in range(3)] == [2, 2, 2]
        messages[0].ack()
        wait_until(lambda: drain() == 3)
        for message in messages[1:]:
            message.ack()
        wait_until(lambda: drain() == 5)
        for message in messages[3:]:
            message.ack()
    assert sorted(message.payload for message in messages) == [0, 1, 2, 3, 4]


def test_what_was_not_acknowledged_comes_again(cluster: EmbeddedCluster, connection: kombu.Connection) -> None:
    queue = kombu.Queue("again", routing_key="again")
    publish(connection.channel(), queue, "requeued")
    (message,) = drained(connection, queue, 1)
    assert not message.delivery_info["redelivered"]
    message.requeue()
    (message,) = drained(connection, queue, 1)
    assert message.delivery_info["redelivered"]
    # A closed connection returns its unacknowledged messages to the queue.
    connection.release()
    with kombu.Connection(f"rocketmq://{cluster.name_server}") as other:
        (message,) = drained(other, queue, 1)
        assert message.payload == "requeued"
        message.reject()
        assert queue(other.channel()).get() is None


def test_a_message_that_is_none_of_kombu(cluster: EmbeddedCluster, connection: kombu.Connection) -> None:
    queue = kombu.Queue("strangers", routing_key="strangers")
    with SyncProducer(Producer(cluster.name_server, "strangers")) as producer:
        for body in (b"nonsense", b"[]", b'{"properties": 5}'):
            producer.send(Message("strangers", body))
    publish(connection.channel(), queue, "fine")
    (message,) = drained(connection, queue, 1)
    assert message.payload == "fine"
    message.ack()


def test_names(cluster: EmbeddedCluster) -> None:
    options = {"topic_prefix": "tasks-", "group_prefix": "workers-"}
    with kombu.Connection(f"rocketmq://{cluster.name_server}", transport_options=options) as connection:
        connection.ensure_connection(max_retries=1)
        link = connection.transport.link
        assert link.names("celery") == ("tasks-celery", "workers-tasks-celery")
        assert link.topic("a.b@ö") == "tasks-a%2Eb%40%C3%B6"
        with closing(connection.SimpleQueue("a.b@ö")) as queue:
            queue.put(1)
            queue.get(timeout=10).ack()
        assert connection.as_uri() == f"rocketmq://{cluster.name_server}"


def test_urls() -> None:
    assert transport.parse_url("rocketmq://")[0] == "127.0.0.1:9876"
    assert transport.parse_url("rocketmq://a,b:1/")[0] == "a:9876;b:1"
    servers, options = transport.parse_url("rocketmq://key:sec%2Fret@a")
    assert servers == "a:9876"
    assert options["credentials"] == Credentials("key", "sec/ret")
    with pytest.raises(ClientError, match="is wanted"):
        transport.parse_url("rocketmq://a/vhost")
    secret = kombu.Connection("rocketmq://key:secret@a")
    assert secret.as_uri() == "rocketmq://key:**@a"
    assert secret.as_uri(include_password=True) == "rocketmq://key:secret@a"
    assert transport.ssl_context_of(False) is None
    with pytest.raises(ClientError, match="SSLContext is wanted"):
        transport.ssl_context_of({"ca_certs": "x"})


def test_etas() -> None:
    def eta_ms(eta: object) -> int | None:
        return transport.eta_ms({"headers": {"eta": eta}})

    now = datetime.now(UTC)
    soon = now + timedelta(hours=1)
    assert eta_ms(soon.isoformat()) == round(soon.timestamp() * 1000)
    assert eta_ms(soon.replace(tzinfo=None).isoformat()) == round(soon.timestamp() * 1000)
    late = eta_ms((now + timedelta(days=30)).isoformat())
    assert late is not None
    assert late < (now + timedelta(days=3)).timestamp() * 1000
    for none in ((now - timedelta(seconds=1)).isoformat(), "tomorrow", None, 5):
        assert eta_ms(none) is None
    assert transport.eta_ms({"headers": None}) is None


def test_a_message_with_an_eta_comes_when_it_is_due(connection: kombu.Connection) -> None:
    queue = kombu.Queue("etas", routing_key="etas")
    due = time.time() + 1.5
    eta = datetime.fromtimestamp(due, UTC).isoformat()
    publish(connection.channel(), queue, "later", headers={"eta": eta})
    publish(connection.channel(), queue, "now")
    first, second = drained(connection, queue, 2)
    assert (first.payload, second.payload) == ("now", "later")
    assert time.time() >= due
    first.ack()
    second.ack()


def brokers_of(cluster: EmbeddedCluster, topic: str) -> set[str]:
    async def brokers() -> set[str]:
        async with AdminClient(cluster.name_server) as admin:
            return {queue.broker_name for queue in (await admin.topic_route(topic)).queue_datas}

    return asyncio.run(brokers())


@pytest.mark.parametrize(("namespace", "topic"), [("", "spread"), ("shop", "shop%spread")])
def test_a_queue_is_on_all_brokers(namespace: str, topic: str) -> None:
    with EmbeddedCluster(brokers=2) as cluster:
        options = {"namespace": namespace}
        with kombu.Connection(f"rocketmq://{cluster.name_server}", transport_options=options) as connection:
            queue = kombu.Queue("spread", kombu.Exchange("shop", "direct"), routing_key="orders")
            publish(connection.channel(), queue, "one")
            assert brokers_of(cluster, topic) == {"broker-a", "broker-b"}
            assert [message.payload for message in drained(connection, queue, 1)] == ["one"]


def test_a_declaration_creates_no_topic_if_the_brokers_create_none() -> None:
    with EmbeddedCluster(auto_create_topic_enable=False) as cluster:
        with kombu.Connection(f"rocketmq://{cluster.name_server}") as connection:
            kombu.Queue("spread", channel=connection.channel()).declare()
        with pytest.raises(NoRouteInfo):
            brokers_of(cluster, "spread")


def test_a_failed_declaration_is_repeated() -> None:
    names = {"orders": ("no topic!", "group")}
    with EmbeddedCluster(brokers=2) as cluster:
        link = Link(cluster.name_server, names.__getitem__, 60.0, {})
        link.open()
        try:
            link.declare("orders")
            names["orders"] = ("orders", "group")
            link.declare("orders")
        finally:
            link.close()
        assert brokers_of(cluster, "orders") == {"broker-a", "broker-b"}


def test_nobody_there() -> None:
    began = time.monotonic()
    with (
        kombu.Connection("rocketmq://127.0.0.1:1") as connection,
        pytest.raises(RemotingError, match=r"127\.0\.0\.1:1"),
    ):
        connection.connect()
    # The transport fails early, because users of Kombu have their own retry policy.
    assert time.monotonic() - began < 10
    assert not [thread for thread in threading.enumerate() if thread.name == "gantrymq-kombu"]


def test_what_is_sent_is_json(cluster: EmbeddedCluster, connection: kombu.Connection) -> None:
    from gantrymq import LitePullConsumer, SyncLitePullConsumer

    publish(connection.channel(), kombu.Queue("plain", routing_key="plain"), {"a": 1}, correlation_id="id-1")
    pull = LitePullConsumer(cluster.name_server, "look", start_from="earliest")
    with SyncLitePullConsumer(pull) as reader:
        reader.assign(reader.queues("plain"))
        (message,) = wait_until(lambda: reader.poll(timeout=0.5))
    assert message.keys == ["id-1"]
    assert json.loads(message.body)["content-type"] == "application/json"
