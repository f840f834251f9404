"""Apache's gRPC clients with Apache's proxy and this project's."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from proxies import (
    Client,
    Received,
    gantry_proxy,
    java_client,
    java_proxy,
    message,
    node_client,
    node_client_missing,
    python_client,
    python_client_missing,
    rust_client,
    rust_client_missing,
)
from servers import Server, gantry_broker, gantry_namesrv, java_broker, java_namesrv
from wait_until import wait_until

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.doctor.finding import Severity
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import GantryError
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.compression import CompressionType
from gantrymq.protocol.message import Message, MessageExt
from gantrymq.proxy.doctor.diagnosis import diagnose_proxy

pytestmark = pytest.mark.interop(feature="send and receive", clients="grpc-{client}", servers="{cluster}")

T = TypeVar("T")

CLIENTS = {
    "java": java_client(),
    "java-tls": java_client(tls=True),
    "python": python_client(),
    "node": node_client(),
    "rust": rust_client(),
}
MISSING = {"python": python_client_missing, "node": node_client_missing, "rust": rust_client_missing}
#: NameServer, broker and proxy. The first one is all Java. It is the control: it tests the test programs.
PROXIES: dict[str, tuple[Callable[..., Server], Callable[..., Server], Callable[..., Server]]] = {
    "java": (java_namesrv, java_broker, java_proxy),
    "gantry": (gantry_namesrv, gantry_broker, gantry_proxy),
    "gantry-over-java": (java_namesrv, java_broker, gantry_proxy),
}
#: Number of messages sent and consumed while a proxy is killed.
MANY = 2000
_BROKER_CONFIG = {
    "enablePropertyFilter": "true",
    "recallMessageEnable": "true",
    "transactionTimeOut": 1000,
    "transactionCheckInterval": 1000,
    # Apache's proxy registers producers with brokers every 20 s. By then, a broker would have given up a half message.
    "transactionCheckMax": 1000,
    # Redelivers messages at once, as far as brokers support it.
    "messageDelayLevel": " ".join(["1s"] * 18),
}


@dataclass(frozen=True)
class Cluster:
    """A proxy with a broker, by their addresses."""

    name_server: str
    proxy: str
    start_proxy: Callable[..., Server]

    def admin(self, work: Callable[[AdminClient], Coroutine[Any, Any, T]]) -> T:
        """Runs `work` with an admin client in its own event loop. Returns the result."""

        async def run() -> T:
            async with AdminClient(self.name_server) as admin:
                return await work(admin)

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, run()).result()

    def new_topic(self, kind: str = "NORMAL", queues: int = 4) -> str:
        topic = f"interop_{kind.lower()}_{uuid.uuid4().hex[:8]}"
        config = TopicConfig(topic, queues, queues, attributes={"+message.type": kind})
        self.admin(lambda admin: admin.create_topic(config, cluster="DefaultCluster"))
        return topic

    def stored(self, topic: str) -> int:
        """Returns the number of messages in a topic."""
        queues = self.admin(lambda admin: admin.topic_stats(topic)).offset_table.values()
        return sum(queue.max_offset - queue.min_offset for queue in queues)

    def consumed(self, group: str, topic: str) -> int:
        """Returns the number of messages of a topic that a group has acknowledged."""
        try:
            # Without the topic, the group must have a retry topic, which Apache's proxy does not create.
            queues = self.admin(lambda admin: admin.consume_stats(group, topic)).offset_table.values()
        except GantryError:
            return 0
        return sum(queue.consumer_offset for queue in queues)

    def new_group(self, **config: Any) -> str:
        group = f"interop_group_{uuid.uuid4().hex[:8]}"
        self.admin(lambda admin: admin.create_group(SubscriptionGroupConfig(group, **config), cluster="DefaultCluster"))
        return group


@pytest.fixture(scope="session", params=PROXIES)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    start_namesrv, start_broker, start_proxy = PROXIES[request.param]
    directory: Path = tmp_path_factory.mktemp(f"proxy-{request.param}")
    servers: list[Server] = []
    try:
        servers.append(start_namesrv(directory / "namesrv"))
        servers.append(start_broker(directory / "broker", servers[0].address, **_BROKER_CONFIG))
        servers.append(start_proxy(directory / "proxy", servers[0].address))
        yield Cluster(servers[0].address, servers[2].address, start_proxy)
    finally:
        for server in reversed(servers):
            server.kill()


@pytest.fixture(scope="session")
def missing() -> Callable[[str], str | None]:
    """Returns a function that gives the reason why a client cannot run, or None. Caches the results."""
    found: dict[str, str | None] = {}

    def ask(name: str) -> str | None:
        if name not in found:
            found[name] = MISSING[name]() if name in MISSING else None
        return found[name]

    return ask


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, missing: Callable[[str], str | None]) -> Client:
    if why := missing(request.param):
        pytest.skip(why)
    return CLIENTS[request.param]


def _needs_more_than_simple(client: Client) -> None:
    if client.name == "rust":
        pytest.skip("this client has simple consumers alone, which can't give a message back")


def bodies(messages: list[Received]) -> list[str]:
    return sorted(message.body for message in messages)


def test_what_is_sent_is_received(cluster: Cluster, client: Client) -> None:
    topic, group = cluster.new_topic(), cluster.new_group()
    sent = [
        message(f"body {n} \u2713", tag=f"t{n % 2}", keys=[f"k{n}"], properties={"colour": f"c{n}", "число": "пять"})
        for n in range(10)
    ]
    ids = client.produce(cluster.proxy, topic, sent)
    received = sorted(client.consume(cluster.proxy, group, topic, 10), key=lambda one: one.body)
    assert [one.message_id for one in received] == ids
    assert received == [
        Received(
            body=f"body {n} \u2713",
            attempt=1,
            tag=f"t{n % 2}",
            keys=(f"k{n}",),
            message_group=None,
            properties={"colour": f"c{n}", "число": "пять"},
            message_id=ids[n],
        )
        for n in range(10)
    ]


@pytest.mark.interop(feature="filters")
@pytest.mark.parametrize("expression", ["t0 || t2", "colour in ('c0', 'c2')"], ids=["tags", "sql"])
def test_filters(cluster: Cluster, client: Client, expression: str) -> None:
    topic, group = cluster.new_topic(), cluster.new_group()
    sent = [message(f"{n}", tag=f"t{n}", properties={"colour": f"c{n}"}) for n in range(4)]
    client.produce(cluster.proxy, topic, sent)
    assert bodies(client.consume(cluster.proxy, group, topic, 2, expression=expression)) == ["0", "2"]


@pytest.mark.interop(feature="retries and dead letters")
@pytest.mark.parametrize("mode", ["again", "retry"])
def test_comes_again(cluster: Cluster, client: Client, mode: str) -> None:
    _needs_more_than_simple(client)
    topic, group = cluster.new_topic(), cluster.new_group()
    client.produce(cluster.proxy, topic, [message(f"{n}") for n in range(3)])
    received = client.consume(cluster.proxy, group, topic, 6, mode=mode)
    assert sorted((one.body, one.attempt) for one in received) == [
        (f"{n}", attempt) for n in range(3) for attempt in (1, 2)
    ]


@pytest.mark.interop(feature="ordered messages")
def test_in_order(cluster: Cluster, client: Client) -> None:
    _needs_more_than_simple(client)
    topic, group = cluster.new_topic("FIFO"), cluster.new_group(consume_message_orderly=True)
    client.produce(cluster.proxy, topic, [message(f"{n}", message_group=f"g{n % 3}") for n in range(12)])
    # Python retries a message itself without an attempt count. Node does not support the times of this policy.
    attempts = (1, 2) if client.name.startswith("java") else (1,)
    mode = "retry" if client.name.startswith("java") else "push"
    received = client.consume(cluster.proxy, group, topic, 12 * len(attempts), mode=mode)
    for number in range(3):
        mine = [(int(one.body), one.attempt) for one in received if one.message_group == f"g{number}"]
        assert mine == [(n, attempt) for n in range(number, 12, 3) for attempt in attempts]


@pytest.mark.interop(feature="transactions")
def test_transactions(cluster: Cluster, client: Client) -> None:
    topic, group = cluster.new_topic("TRANSACTION"), cluster.new_group()
    delivered = ["commit", "orphan"]
    sent = [message(end, transaction=end) for end in (*delivered, "rollback")]
    with ThreadPoolExecutor(1) as thread:
        # The producer stays connected until the broker has checked its transaction.
        producing = thread.submit(client.produce, cluster.proxy, topic, sent)
        mode = "simple" if client.name == "rust" else "push"
        received = client.consume(cluster.proxy, group, topic, len(delivered), mode=mode)
        producing.result()
    assert bodies(received) == delivered


@pytest.mark.interop(feature="delayed messages")
def test_delays(cluster: Cluster, client: Client) -> None:
    topic, group = cluster.new_topic("DELAY"), cluster.new_group()
    client.produce(cluster.proxy, topic, [message("late", delay_ms=3000)])
    assert bodies(client.consume(cluster.proxy, group, topic, 1)) == ["late"]


@pytest.mark.interop(feature="delayed messages")
def test_recalls(cluster: Cluster, client: Client) -> None:
    if client.name == "rust":
        pytest.skip("this client can't take messages back")
    topic, group = cluster.new_topic("DELAY"), cluster.new_group()
    # Without the recall, this message would arrive first.
    sent = [message("taken back", delay_ms=4000, recall=True), message("kept", delay_ms=6000)]
    client.produce(cluster.proxy, topic, sent)
    assert bodies(client.consume(cluster.proxy, group, topic, 1)) == ["kept"]


@pytest.mark.interop(feature="failure of a proxy")
def test_a_proxy_that_is_killed(cluster: Cluster, client: Client, tmp_path: Path) -> None:
    """All messages arrive, although the proxy is killed and restarted while clients send and consume."""
    _needs_more_than_simple(client)
    if client.name == "python":
        pytest.skip("this client doesn't open a lost telemetry stream again, and tells its settings minutes later")
    topic, group = cluster.new_topic(), cluster.new_group()
    sent = [message(f"{n}", again_s=60) for n in range(MANY)]
    # Pending messages are redelivered soon.
    soon = {"defaultInvisibleTimeMills": 10_000, "renewAheadTimeMillis": 5000}
    proxy = cluster.start_proxy(tmp_path / "proxy", cluster.name_server, **soon)
    address = proxy.address
    try:
        with ThreadPoolExecutor(2) as thread:
            consuming = thread.submit(client.consume, address, group, topic, MANY, mode="push", timeout_s=90)
            producing = thread.submit(client.produce, address, topic, sent)
            # A client that is just starting gives up.
            wait_until(lambda: cluster.consumed(group, topic) or consuming.done(), 60)
            for share in (4, 2):
                wait_until(lambda share=share: cluster.stored(topic) > MANY // share, 60)
                proxy.kill()
                proxy = cluster.start_proxy(tmp_path / "proxy", cluster.name_server, proxy.port, **soon)
            producing.result()
            received = consuming.result()
    finally:
        proxy.kill()
    assert {one.body for one in received} == {f"{n}" for n in range(MANY)}


@pytest.mark.interop(clients="grpc-{client} gantry")
@pytest.mark.parametrize("compression", [None, *CompressionType], ids=str)
async def test_from_a_producer_of_the_remoting_protocol(
    cluster: Cluster, client: Client, compression: CompressionType | None
) -> None:
    if compression is not None and client.name != "java":
        pytest.skip("one client shows it")
    topic, group = await asyncio.to_thread(cluster.new_topic), await asyncio.to_thread(cluster.new_group)
    options: dict[str, Any] = {} if compression is None else {"compress_over": 10, "compression": compression}
    async with Producer(cluster.name_server, "interop", **options) as producer:
        await producer.send(
            Message(topic, b"old " * 100, tags="t", keys=["a", "b"], properties={"mine": "x"}), timeout=10
        )
    (received,) = await asyncio.to_thread(client.consume, cluster.proxy, group, topic, 1)
    assert (received.body, received.tag, received.keys) == ("old " * 100, "t", ("a", "b"))
    assert received.properties["mine"] == "x"


@pytest.mark.interop(clients="grpc-{client} gantry")
async def test_to_a_consumer_of_the_remoting_protocol(cluster: Cluster, client: Client) -> None:
    topic = await asyncio.to_thread(cluster.new_topic)
    sent = [message("new", tag="t", keys=["a"], properties={"mine": "x"})]
    (message_id,) = await asyncio.to_thread(client.produce, cluster.proxy, topic, sent)
    came: asyncio.Queue[MessageExt] = asyncio.Queue()
    consumer = PushConsumer(cluster.name_server, f"interop_{uuid.uuid4().hex[:8]}", came.put, start_from="earliest")
    consumer.subscribe(topic)
    async with consumer, asyncio.timeout(60):
        received = await came.get()
    assert (received.body, received.tags, received.keys, received.msg_id) == (b"new", "t", ["a"], message_id)
    assert received.properties["mine"] == "x"


@pytest.mark.interop(feature="doctor", clients="gantry")
async def test_what_the_doctor_says(cluster: Cluster) -> None:
    """`gantry doctor` finds no problems, with Apache's proxy, too."""
    topic = await asyncio.to_thread(cluster.new_topic)
    for name in (topic, None):
        findings = await diagnose_proxy(cluster.proxy, name)
        assert [finding for finding in findings if finding.severity is not Severity.OK] == []
